// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-form-kernels --split-input-file --verify-diagnostics

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @scalar_argument(%x: !x, %c: f32) -> !x {
  // expected-error @below {{the body reads a scalar made by an argument outside of it; only constants and sizes can be copied into a kernel}}
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = arith.mulf %v, %c : f32
    shapejit.yield %e : f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @scalar_op(%x: !x) -> !x {
  %n = shapejit.size affine_map<()[s0] -> (s0)>
  %i = arith.index_cast %n : index to i64
  // expected-error @below {{the body reads a scalar made by arith.index_cast outside of it}}
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %f = arith.sitofp %i : i64 to f32
    %e = arith.mulf %v, %f : f32
    shapejit.yield %e : f32
  }
  return %0 : !x
}

// -----

!x = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0) -> (d0)>
func.func @made_otherwise(%x: !x, %y: !x) -> (!x {shapejit.updates = 1 : i64}) {
  %0 = shapejit.scatter over [8] from(%y at #id : !x) into(%x at #id : !x)
  // expected-error @below {{result 0 is to be the new value of argument 1, but is not made by scatters into it}}
  return %0 : !x
}
