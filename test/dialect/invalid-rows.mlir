// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @f(%x: !x) -> !x {
  // expected-error @below {{expected add, mul, max, min or logaddexp}}
  %0 = shapejit.scan sub over [s0, 8] ins(%x at #id : !x) -> !x
  return %0 : !x
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!i = tensor<?x8xi32, #shapejit.shape<[s0, 8]>>
func.func @f(%x: !x) -> !x {
  // expected-error @below {{indices hold 'i32', expected i64}}
  %0, %1 = shapejit.scan max over [s0, 8] ins(%x at #id : !x) -> !x, !i
  return %0 : !x
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!i = tensor<?x8xi64, #shapejit.shape<[s0, 8]>>
func.func @f(%x: !x) -> !x {
  // expected-error @below {{has indices, which only max and min have, not 'add'}}
  %0, %1 = shapejit.scan add over [s0, 8] ins(%x at #id : !x) -> !x, !i
  return %0 : !x
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!y = tensor<?x4xf32, #shapejit.shape<[s0, 4]>>
func.func @f(%x: !x) -> !y {
  // expected-error @below {{has rows of 4 elements as its result but runs over 8}}
  %0 = shapejit.scan add over [s0, 8] ins(%x at #id : !x) -> !y
  return %0 : !y
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!y = tensor<?x8xf64, #shapejit.shape<[s0, 8]>>
func.func @f(%x: !x) -> !y {
  // expected-error @below {{values hold 'f64' but the input holds 'f32'}}
  %0 = shapejit.scan add over [s0, 8] ins(%x at #id : !x) -> !y
  return %0 : !y
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s1, 8]>>
func.func @f(%x: !x) -> !y {
  // expected-error @below {{whose sizes but for the last are not those of the space}}
  %0 = shapejit.scan add over [s0, 8] ins(%x at #id : !x) -> !y
  return %0 : !y
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!y = tensor<?x9xf32, #shapejit.shape<[s0, 9]>>
func.func @f(%x: !x) -> !y {
  // expected-error @below {{input: index 1 (d1) spans [0, 8], outside of dimension 1 of size 8}}
  %0 = shapejit.scan add over [s0, 9] ins(%x at #id : !x) -> !y
  return %0 : !y
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!y = tensor<?x9xf32, #shapejit.shape<[s0, 9]>>
!i = tensor<?x9xi64, #shapejit.shape<[s0, 9]>>
func.func @f(%x: !x) -> !y {
  // expected-error @below {{gives the first 9 elements of rows of 8}}
  %0, %1 = shapejit.sort over [s0, 8] ins(%x at #id : !x) -> !y, !i
  return %0 : !y
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!i = tensor<?x4xi64, #shapejit.shape<[s0, 4]>>
func.func @f(%x: !x) -> !x {
  // expected-error @below {{has rows of different lengths as values and as indices}}
  %0, %1 = shapejit.sort over [s0, 8] ins(%x at #id : !x) -> !x, !i
  return %0 : !x
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!i = tensor<?x8xi64, #shapejit.shape<[s0, 8]>>
func.func @f(%x: !x) -> !x {
  // expected-error @below {{expected one input, got 2}}
  %0, %1 = shapejit.sort over [s0, 8] ins(%x at #id : !x, %x at #id : !x) -> !x, !i
  return %0 : !x
}

// -----

#id = affine_map<(d0) -> (d0)>
!x = tensor<?xi1, #shapejit.shape<[s0]>>
func.func @f(%x: !x) -> !x {
  // expected-error @below {{cannot combine i1 by 'max'; cast it to an integer}}
  %0 = shapejit.scan max over [s0] ins(%x at #id : !x) -> !x
  return %0 : !x
}

// -----

#id = affine_map<(d0) -> (d0)>
!x = tensor<?xi32, #shapejit.shape<[s0]>>
func.func @f(%x: !x) -> !x {
  // expected-error @below {{combines floating-point values by 'logaddexp', got 'i32'}}
  %0 = shapejit.scan logaddexp over [s0] ins(%x at #id : !x) -> !x
  return %0 : !x
}

// -----

#id = affine_map<() -> ()>
!x = tensor<f32, #shapejit.shape<[]>>
func.func @f(%x: !x) -> !x {
  // expected-error @below {{needs a space with a dimension, its rows}}
  %0 = shapejit.scan add over [] ins(%x at #id : !x) -> !x
  return %0 : !x
}
