// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-canonicalize-shapes --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s
// RUN: shapejit-opt %s --shapejit-canonicalize-shapes=rows=false --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s --check-prefix=APART

#id3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#lhs = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#rhs = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @tokens {id = 1, min = 1, max = 512}

// A loop follows though one input is indexed by a part of the row, as is its body; one that reduces
// over a part of the row does not follow, and reads the rows apart.
// CHECK-LABEL: func.func @table
// CHECK: %[[G:.*]] = shapejit.gemm over [s0 * s1, 8, 8]
// CHECK: %[[Y:.*]] = shapejit.loop over [s0 * s1, 8]
// CHECK-NEXT: ins(%[[G]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %{{.*}} at affine_map<(d0, d1)[s0, s1] -> (d0 mod s1, d1)> : tensor<512x8xf32
// CHECK: %[[I:.*]] = shapejit.index 0
// CHECK: %[[N:.*]] = shapejit.size affine_map<()[s0, s1] -> (s1)>
// CHECK: arith.divui %[[I]], %[[N]] : index
// CHECK: shapejit.loop over [s0, s1, 8]
// CHECK-NEXT: ins(%[[Y]] at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)>
// CHECK-NEXT: outs(max affine_map<(d0, d1, d2) -> (d0, d2)>
// APART-LABEL: func.func @table
// APART: shapejit.gemm over [s0, s1, 8, 8]
// APART: shapejit.loop over [s0, s1, 8]
func.func @table(%x: tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %w: tensor<8x8xf32, #shapejit.shape<[8, 8]>>, %t: tensor<512x8xf32, #shapejit.shape<[512, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {
  %g = shapejit.gemm over [s0, s1, 8, 8]
      lhs(%x at #lhs : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>)
      rhs(%w at #rhs : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
  %y = shapejit.loop over [s0, s1, 8]
      ins(%g at #id3 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %t at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<512x8xf32, #shapejit.shape<[512, 8]>>)
      outs(#id3 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>) {
  ^bb0(%v: f32, %p: f32):
    %i = shapejit.index 0
    %c = arith.index_cast %i : index to i32
    %f = arith.sitofp %c : i32 to f32
    %0 = arith.addf %v, %p : f32
    %1 = arith.addf %0, %f : f32
    shapejit.yield %1 : f32
  }
  %m = shapejit.loop over [s0, s1, 8]
      ins(%y at #id3 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>)
      outs(max affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %m : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// Weights of each batch, or an lhs that is not laid out by rows: the space stays.
// CHECK-LABEL: func.func @batched
// CHECK: shapejit.gemm over [s0, s1, 8, 8]
// CHECK: shapejit.gemm over [s0, s1, 8, 8]
// CHECK-NEXT: lhs(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d1, d0, d3)>
func.func @batched(%x: tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %b: tensor<?x8x8xf32, #shapejit.shape<[s0, 8, 8]>>, %z: tensor<?x?x8xf32, #shapejit.shape<[s1, s0, 8]>>, %w: tensor<8x8xf32, #shapejit.shape<[8, 8]>>)
    -> (tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>) {
  %0 = shapejit.gemm over [s0, s1, 8, 8]
      lhs(%x at #lhs : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>)
      rhs(%b at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x8x8xf32, #shapejit.shape<[s0, 8, 8]>>) -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
  %1 = shapejit.gemm over [s0, s1, 8, 8]
      lhs(%z at affine_map<(d0, d1, d2, d3) -> (d1, d0, d3)> : tensor<?x?x8xf32, #shapejit.shape<[s1, s0, 8]>>)
      rhs(%w at #rhs : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
  return %0, %1 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
}

// An epilogue's extras follow; rows that were collapsed before are found by their index.
// CHECK-LABEL: func.func @extras
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<?x8xf32, {{[^)]*}}, %[[B:[a-z0-9]+]]: tensor<?x8xf32, #shapejit.shape<[s1, 8]>>)
// CHECK: shapejit.gemm over [s0 * s1, 8, 8]
// CHECK-NEXT: lhs(%[[X]] at affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK: extras(%[[B]] at affine_map<(d0, d1)[s0, s1] -> (d0 mod s1, d1)>
func.func @extras(%x: tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>, %w: tensor<8x8xf32, #shapejit.shape<[8, 8]>>, %b: tensor<?x8xf32, #shapejit.shape<[s1, 8]>>) -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>> {
  %0 = shapejit.gemm over [s0, s1, 8, 8]
      lhs(%x at affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d1, d3)> : tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>)
      rhs(%w at #rhs : tensor<8x8xf32, #shapejit.shape<[8, 8]>>)
      extras(%b at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<?x8xf32, #shapejit.shape<[s1, 8]>>) epilogue {
  ^bb0(%acc: f32, %e: f32):
    %s = arith.addf %acc, %e : f32
    shapejit.yield %s : f32
  } -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
  return %0 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
}

// A static batch of one leaves no batch; constant rows are a constant; all of size one keep one dim.
// CHECK-LABEL: func.func @constant
// CHECK: shapejit.gemm over [s1, 8, 8]
// CHECK: shapejit.gemm over [12, 8, 8]
// CHECK: shapejit.loop over [1]
// CHECK: -> tensor<1x1xf32, #shapejit.shape<[1, 1]>>
func.func @constant(%x: tensor<1x?x8xf32, #shapejit.shape<[1, s1, 8]>>, %z: tensor<3x4x8xf32, #shapejit.shape<[3, 4, 8]>>, %w: tensor<8x8xf32, #shapejit.shape<[8, 8]>>, %u: tensor<1x1xf32, #shapejit.shape<[1, 1]>>)
    -> (tensor<1x?x8xf32, #shapejit.shape<[1, s1, 8]>>, tensor<3x4x8xf32, #shapejit.shape<[3, 4, 8]>>, tensor<1x1xf32, #shapejit.shape<[1, 1]>>) {
  %0 = shapejit.gemm over [1, s1, 8, 8]
      lhs(%x at #lhs : tensor<1x?x8xf32, #shapejit.shape<[1, s1, 8]>>)
      rhs(%w at #rhs : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<1x?x8xf32, #shapejit.shape<[1, s1, 8]>>
  %1 = shapejit.gemm over [3, 4, 8, 8]
      lhs(%z at #lhs : tensor<3x4x8xf32, #shapejit.shape<[3, 4, 8]>>)
      rhs(%w at #rhs : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<3x4x8xf32, #shapejit.shape<[3, 4, 8]>>
  %2 = shapejit.loop over [1, 1]
      ins(%u at affine_map<(d0, d1) -> (d0, d1)> : tensor<1x1xf32, #shapejit.shape<[1, 1]>>)
      outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<1x1xf32, #shapejit.shape<[1, 1]>>) {
  ^bb0(%v: f32):
    %n = arith.negf %v : f32
    shapejit.yield %n : f32
  }
  return %0, %1, %2 : tensor<1x?x8xf32, #shapejit.shape<[1, s1, 8]>>, tensor<3x4x8xf32, #shapejit.shape<[3, 4, 8]>>, tensor<1x1xf32, #shapejit.shape<[1, 1]>>
}
