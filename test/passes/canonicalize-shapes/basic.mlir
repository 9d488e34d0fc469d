// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-canonicalize-shapes --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

#id2 = affine_map<(d0, d1) -> (d0, d1)>
#id3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @tokens {id = 1, min = 1, max = 512}
shapejit.symbol @keys {id = 2, min = 1, max = 512, equal_to = 1}

// A linear layer, what follows it and the norm of its rows all run over rows.
// CHECK-LABEL: func.func @linear
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
// CHECK: %[[R:.*]] = shapejit.view %[[X]] at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)>
// CHECK: %[[G:.*]] = shapejit.gemm over [s0 * s1, 8, 384]
// CHECK-NEXT: lhs(%[[R]] at affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK-NEXT: rhs(%{{.*}} at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x384xf32
// CHECK: %[[S:.*]] = shapejit.loop over [s0 * s1, 8]
// CHECK-NEXT: ins(%[[G]] at affine_map<(d0, d1) -> (d0, d1)>
// CHECK-NEXT: outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0 * s1]>>)
// CHECK: %[[M:.*]] = shapejit.loop over [s0 * s1]
// CHECK-NEXT: ins(%[[S]] at
// CHECK: %[[Y:.*]] = shapejit.loop over [s0 * s1, 8]
// CHECK-NEXT: ins(%[[G]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %[[M]] at affine_map<(d0, d1) -> (d0)>
// CHECK: %[[V:.*]] = shapejit.view %[[Y]] at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)>
// CHECK-SAME: -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
// CHECK-NEXT: return %[[V]]
func.func @linear(%x: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>, %w: tensor<8x384xf32, #shapejit.shape<[8, 384]>>) -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>> {
  %t = shapejit.view %w at affine_map<(d0, d1) -> (d1, d0)> : tensor<8x384xf32, #shapejit.shape<[8, 384]>> -> tensor<384x8xf32, #shapejit.shape<[384, 8]>>
  %g = shapejit.gemm over [s0, s1, 8, 384]
      lhs(%x at affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)> : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
      rhs(%t at affine_map<(d0, d1, d2, d3) -> (d3, d2)> : tensor<384x8xf32, #shapejit.shape<[384, 8]>>)
      -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
  %s = shapejit.loop over [s0, s1, 8]
      ins(%g at #id3 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>)
      outs(add affine_map<(d0, d1, d2) -> (d0, d1)> : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %s1 = shapejit.view %s at affine_map<(d0, d1, d2) -> (d0, d1)> : tensor<?x?xf32, #shapejit.shape<[s0, s1]>> -> tensor<?x?x1xf32, #shapejit.shape<[s0, s1, 1]>>
  %m = shapejit.loop over [s0, s1, 1]
      ins(%s1 at #id3 : tensor<?x?x1xf32, #shapejit.shape<[s0, s1, 1]>>)
      outs(#id3 : tensor<?x?x1xf32, #shapejit.shape<[s0, s1, 1]>>) {
  ^bb0(%v: f32):
    %c = arith.constant 0.125 : f32
    %0 = arith.mulf %v, %c : f32
    shapejit.yield %0 : f32
  }
  %y = shapejit.loop over [s0, s1, 8]
      ins(%g at #id3 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %m at affine_map<(d0, d1, d2) -> (d0, d1, 0)> : tensor<?x?x1xf32, #shapejit.shape<[s0, s1, 1]>>)
      outs(#id3 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>) {
  ^bb0(%v: f32, %mean: f32):
    %0 = arith.subf %v, %mean : f32
    shapejit.yield %0 : f32
  }
  return %y : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
}

// One of two equal symbols is left, and the function keeps its type.
// CHECK-LABEL: func.func @equal_symbols
// CHECK-SAME: tensor<?x?xf32, #shapejit.shape<[s0, s2]>>) -> tensor<?x?xf32, #shapejit.shape<[s0, s2]>>
// CHECK: %[[Y:.*]] = shapejit.loop over [s0, s1]
// CHECK: outs({{.*}} : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>)
// CHECK: shapejit.size affine_map<()[s0, s1] -> (s1)>
// CHECK: %[[V:.*]] = shapejit.view %[[Y]] at affine_map<(d0, d1) -> (d0, d1)>
// CHECK-SAME: -> tensor<?x?xf32, #shapejit.shape<[s0, s2]>>
// CHECK-NEXT: return %[[V]]
func.func @equal_symbols(%x: tensor<?x?xf32, #shapejit.shape<[s0, s2]>>) -> tensor<?x?xf32, #shapejit.shape<[s0, s2]>> {
  %y = shapejit.loop over [s0, s2]
      ins(%x at #id2 : tensor<?x?xf32, #shapejit.shape<[s0, s2]>>)
      outs(#id2 : tensor<?x?xf32, #shapejit.shape<[s0, s2]>>) {
  ^bb0(%v: f32):
    %n = shapejit.size affine_map<()[s0, s1, s2] -> (s2)>
    %i = arith.index_cast %n : index to i32
    %f = arith.sitofp %i : i32 to f32
    %0 = arith.divf %v, %f : f32
    shapejit.yield %0 : f32
  }
  return %y : tensor<?x?xf32, #shapejit.shape<[s0, s2]>>
}

// Sizes and maps are simplified within the ranges: s0 is at most 64.
// CHECK-LABEL: func.func @ranges
// CHECK: %[[Y:.*]] = shapejit.loop over [s0]
// CHECK-NEXT: ins(%{{.*}} at affine_map<(d0) -> (d0)>
// CHECK-NEXT: outs({{.*}} : tensor<?xf32, #shapejit.shape<[s0]>>)
// CHECK: shapejit.view %[[Y]] {{.*}} -> tensor<?xf32, #shapejit.shape<[s0 + s0 floordiv 65]>>
func.func @ranges(%x: tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0 + s0 floordiv 65]>> {
  %y = shapejit.loop over [s0 + s0 floordiv 65]
      ins(%x at affine_map<(d0)[s0] -> (d0 mod s0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
      outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0 + s0 floordiv 65]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %y : tensor<?xf32, #shapejit.shape<[s0 + s0 floordiv 65]>>
}

// Dims of size one are dropped, from results and indices too; a reduction over nothing else is none.
// CHECK-LABEL: func.func @unit_dims
// CHECK: %[[Y:.*]]:2 = shapejit.loop over [s0, s1]
// CHECK-NEXT: ins(%{{.*}} at affine_map<(d0, d1) -> (d0, 0, d1)>
// CHECK-NEXT: outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>,
// CHECK-SAME: affine_map<(d0, d1) -> (d1, d0)> : tensor<?x?xf32, #shapejit.shape<[s1, s0]>>)
// CHECK: %[[ZERO:.*]] = arith.constant 0 : index
// CHECK: %[[I:.*]] = shapejit.index 1
// CHECK: arith.addi %[[ZERO]], %[[I]]
// CHECK: shapejit.view %[[Y]]#0 at affine_map<(d0, d1, d2) -> (d0, d2)>
func.func @unit_dims(%x: tensor<?x1x?xf32, #shapejit.shape<[s0, 1, s1]>>)
    -> (tensor<?x1x?xf32, #shapejit.shape<[s0, 1, s1]>>, tensor<?x?xf32, #shapejit.shape<[s1, s0]>>) {
  %y:2 = shapejit.loop over [s0, 1, s1]
      ins(%x at #id3 : tensor<?x1x?xf32, #shapejit.shape<[s0, 1, s1]>>)
      outs(#id3 : tensor<?x1x?xf32, #shapejit.shape<[s0, 1, s1]>>, add affine_map<(d0, d1, d2) -> (d2, d0)> : tensor<?x?xf32, #shapejit.shape<[s1, s0]>>) {
  ^bb0(%v: f32):
    %i = shapejit.index 1
    %j = shapejit.index 2
    %k = arith.addi %i, %j : index
    %c = arith.index_cast %k : index to i32
    %f = arith.sitofp %c : i32 to f32
    %0 = arith.mulf %v, %f : f32
    shapejit.yield %0, %v : f32, f32
  }
  return %y#0, %y#1 : tensor<?x1x?xf32, #shapejit.shape<[s0, 1, s1]>>, tensor<?x?xf32, #shapejit.shape<[s1, s0]>>
}
