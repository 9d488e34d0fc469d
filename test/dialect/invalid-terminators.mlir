// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

// Bodies that end with an operation that is no terminator, or with nothing.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @loop(%x: !x) -> !x {
  // expected-error @below {{body must end with shapejit.yield}}
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    %w = arith.negf %v : f32
  }
  return %0 : !x
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @epilogue(%x: !x, %w: !w) -> !y {
  // expected-error @below {{epilogue must yield one 'f32'}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) epilogue {
  ^bb0(%acc: f32):
    %n = arith.negf %acc : f32
  } -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @empty_epilogue(%x: !x, %w: !w) -> !y {
  // expected-error @below {{epilogue must yield one 'f32'}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) epilogue {
  ^bb0(%acc: f32):
  } -> !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>
func.func @conv_epilogue(%x: !x, %w: !w) -> !y {
  // expected-error @below {{epilogue must yield one 'f32'}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w) epilogue {
  ^bb0(%acc: f32):
    %n = arith.negf %acc : f32
  } -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>
// expected-error @below {{body must end with shapejit.yield}}
shapejit.kernel @kernel symbols 1 (%x: !x) {
  %0 = shapejit.view %x at affine_map<(d0) -> (d0)> : !x -> !x
}
