// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

// Scatters, and what launches write in place.

!x = tensor<4xf32, #shapejit.shape<[4]>>
!y = tensor<4xf16, #shapejit.shape<[4]>>
#id = affine_map<(d0) -> (d0)>
func.func @element_type(%x: !x, %y: !y) -> !x {
  // expected-error @below {{source holds 'f16' but dest holds 'f32'}}
  %0 = shapejit.scatter over [4] from(%y at #id : !y) into(%x at #id : !x)
  return %0 : !x
}

// -----

!x = tensor<4xf32, #shapejit.shape<[4]>>
#id = affine_map<(d0) -> (d0)>
func.func @positions_are_integers(%x: !x) -> !x {
  // expected-error @below {{position 0 holds 'f32', expected i64 or i32}}
  %0 = shapejit.scatter over [4] from(%x at #id : !x) by(%x at #id : !x)
      into(%x at affine_map<(d0, d1) -> (d1)> : !x)
  return %0 : !x
}

// -----

!x = tensor<4xf32, #shapejit.shape<[4]>>
!p = tensor<4xi64, #shapejit.shape<[4]>>
#id = affine_map<(d0) -> (d0)>
func.func @a_dim_a_position(%x: !x, %p: !p) -> !x {
  // expected-error @below {{dest: the map has 1 dimensions, expected 2}}
  %0 = shapejit.scatter over [4] from(%x at #id : !x) by(%p at #id : !p) into(%x at #id : !x)
  return %0 : !x
}

// -----

!x = tensor<4xf32, #shapejit.shape<[4]>>
#id = affine_map<(d0) -> (d0)>
func.func @out_of_bounds(%x: !x) -> !x {
  // expected-error @below {{dest: index 0 (d0 + 1) spans [1, 4], outside of dimension 0 of size 4}}
  %0 = shapejit.scatter over [4] from(%x at #id : !x) into(%x at affine_map<(d0) -> (d0 + 1)> : !x)
  return %0 : !x
}

// -----

!x = tensor<4xf32, #shapejit.shape<[4]>>
func.func @maps(%x: !x) -> !x {
  // expected-error @below {{has 1 maps, expected one for each of the 2 operands}}
  %0 = "shapejit.scatter"(%x, %x) {space = #shapejit.shape<[4]>, maps = [affine_map<(d0) -> (d0)>]} : (!x, !x) -> !x
  return %0 : !x
}

// -----

!x = tensor<4xf32, #shapejit.shape<[4]>>
!y = tensor<2x2xf32, #shapejit.shape<[2, 2]>>
func.func @result_type(%x: !x) -> !y {
  // expected-error @below {{result is 'tensor<2x2xf32, #shapejit.shape<[2, 2]>>' but dest is 'tensor<4xf32, #shapejit.shape<[4]>>'}}
  %0 = "shapejit.scatter"(%x, %x) {space = #shapejit.shape<[4]>, maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>]} : (!x, !x) -> !y
  return %0 : !y
}

// -----

module @a {}
!x = tensor<4xf32, #shapejit.shape<[4]>>
func.func @one_a_result(%x: !x) -> !x {
  // expected-error @below {{says of 2 results whether they are in place, but has 1}}
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) {in_place = array<i64: 0, 0>} : (!x) -> !x
  return %0 : !x
}

// -----

module @a {}
!x = tensor<4xf32, #shapejit.shape<[4]>>
func.func @which_operand(%x: !x) -> !x {
  // expected-error @below {{writes result 0 into operand 1, which it does not have}}
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) {in_place = array<i64: 1>} : (!x) -> !x
  return %0 : !x
}

// -----

module @a {}
!x = tensor<4xf32, #shapejit.shape<[4]>>
!y = tensor<2x2xf32, #shapejit.shape<[2, 2]>>
func.func @operand_type(%x: !x) -> !y {
  // expected-error @below {{writes result 0 into operand 0 of another type}}
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) {in_place = array<i64: 0>} : (!x) -> !y
  return %0 : !y
}

// -----

// expected-error @below {{a buffer is in `arena`, `output` or `input`, got `heap`}}
func.func private @buffer() attributes {a = #shapejit.buffer<heap 0>}
