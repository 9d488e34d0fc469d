// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --cse --mlir-print-local-scope | FileCheck %s

// Ops of the dialect are pure: equal ones are one, unread ones go.

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!t = tensor<16x8xf32, #shapejit.shape<[16, 8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

// CHECK-LABEL: func.func @equal
// CHECK-COUNT-1: shapejit.view
// CHECK-NOT: shapejit.view
// CHECK: %[[G:.*]] = shapejit.gemm
// CHECK-NOT: shapejit.gemm
// CHECK: %[[L:.*]] = shapejit.loop
// CHECK-NOT: shapejit.loop
// CHECK: return %[[L]], %[[L]]
func.func @equal(%x: !x, %w: !w) -> (!y, !y) {
  %t0 = shapejit.view %w at affine_map<(d0, d1) -> (d1, d0)> : !w -> !t
  %t1 = shapejit.view %w at affine_map<(d0, d1) -> (d1, d0)> : !w -> !t
  %g0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%t0 at affine_map<(d0, d1, d2) -> (d2, d1)> : !t) -> !y
  %g1 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%t1 at affine_map<(d0, d1, d2) -> (d2, d1)> : !t) -> !y
  %l0 = shapejit.loop over [s0, 8] ins(%g0 at affine_map<(d0, d1) -> (d0, d1)> : !y)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !y) {
  ^bb0(%v: f32):
    %n = arith.negf %v : f32
    shapejit.yield %n : f32
  }
  %l1 = shapejit.loop over [s0, 8] ins(%g1 at affine_map<(d0, d1) -> (d0, d1)> : !y)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !y) {
  ^bb0(%v: f32):
    %n = arith.negf %v : f32
    shapejit.yield %n : f32
  }
  return %l0, %l1 : !y, !y
}

// Loops over different spaces, or that combine differently, are different.

// CHECK-LABEL: func.func @different
// CHECK: outs(add
// CHECK: outs(max
func.func @different(%x: !x) -> (tensor<?xf32, #shapejit.shape<[s0]>>, tensor<?xf32, #shapejit.shape<[s0]>>) {
  %0 = shapejit.loop over [s0, 16] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.loop over [s0, 16] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(max affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0, %1 : tensor<?xf32, #shapejit.shape<[s0]>>, tensor<?xf32, #shapejit.shape<[s0]>>
}

// CHECK-LABEL: func.func @dead
// CHECK-NEXT: return
func.func @dead(%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  %1 = shapejit.size affine_map<()[s0] -> (s0)>
  return
}
