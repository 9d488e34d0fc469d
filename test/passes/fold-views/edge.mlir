// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-fold-views --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

#id2 = affine_map<(d0, d1) -> (d0, d1)>
#rows = affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)>
shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @tokens {id = 1, min = 1, max = 512}

// Regrouping costs nothing where it is: no reader divides for it.
// CHECK-LABEL: func.func @regrouped
// CHECK: %[[R:.*]] = shapejit.view
// CHECK: ins(%[[R]] at affine_map<(d0, d1) -> (d0, d1)>
func.func @regrouped(%x: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) -> tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>> {
  %r = shapejit.view %x at #rows : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>> -> tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>
  %y = shapejit.loop over [s0 * s1, 384]
      ins(%r at #id2 : tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>)
      outs(#id2 : tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>) {
  ^bb0(%v: f32):
    %n = arith.negf %v : f32
    shapejit.yield %n : f32
  }
  return %y : tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>
}

// Unless two pointwise loops can then become one.
// CHECK-LABEL: func.func @between_loops
// CHECK: %[[A:.*]] = shapejit.loop over [s0, s1, 384]
// CHECK: shapejit.loop over [s0 * s1, 384]
// CHECK-NEXT: ins(%[[A]] at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)>
func.func @between_loops(%x: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) -> tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>> {
  %a = shapejit.loop over [s0, s1, 384]
      ins(%x at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) {
  ^bb0(%v: f32):
    %n = arith.negf %v : f32
    shapejit.yield %n : f32
  }
  %r = shapejit.view %a at #rows : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>> -> tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>
  %y = shapejit.loop over [s0 * s1, 384]
      ins(%r at #id2 : tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>)
      outs(#id2 : tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>) {
  ^bb0(%v: f32):
    %n = math.exp %v : f32
    shapejit.yield %n : f32
  }
  return %y : tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>
}

// The lhs of a gemm is not read by divided columns, nor a weight by divided rows.
// CHECK-LABEL: func.func @gemm_columns
// CHECK: %[[M:.*]] = shapejit.view
// CHECK: %[[W:.*]] = shapejit.view
// CHECK: lhs(%[[M]] at affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK: rhs(%[[W]] at affine_map<(d0, d1, d2) -> (d1, d2)>
func.func @gemm_columns(%x: tensor<12x?x32xf32, #shapejit.shape<[12, s0, 32]>>, %w: tensor<2x384x4xf32, #shapejit.shape<[2, 384, 4]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {
  %m = shapejit.view %x at affine_map<(d0, d1) -> (d1 floordiv 32, d0, d1 mod 32)> : tensor<12x?x32xf32, #shapejit.shape<[12, s0, 32]>> -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
  %v = shapejit.view %w at affine_map<(d0, d1) -> (d0 floordiv 4, d1, d0 mod 4)> : tensor<2x384x4xf32, #shapejit.shape<[2, 384, 4]>> -> tensor<8x384xf32, #shapejit.shape<[8, 384]>>
  %y = shapejit.gemm over [s0, 8, 384]
      lhs(%m at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x384xf32, #shapejit.shape<[s0, 384]>>)
      rhs(%v at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x384xf32, #shapejit.shape<[8, 384]>>)
      -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  return %y : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// But batch dims may be divided: heads of k shared by several of q.
// CHECK-LABEL: func.func @gemm_batch
// CHECK-NOT: shapejit.view
// CHECK: rhs(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0 floordiv 4, d2, d3)>
func.func @gemm_batch(%q: tensor<8x?x32xf32, #shapejit.shape<[8, s0, 32]>>, %k: tensor<2x?x32xf32, #shapejit.shape<[2, s0, 32]>>) -> tensor<8x?x?xf32, #shapejit.shape<[8, s0, s0]>> {
  %e = shapejit.view %k at affine_map<(d0, d1, d2) -> (d0 floordiv 4, d1, d2)> : tensor<2x?x32xf32, #shapejit.shape<[2, s0, 32]>> -> tensor<8x?x32xf32, #shapejit.shape<[8, s0, 32]>>
  %y = shapejit.gemm over [8, s0, s0, 32]
      lhs(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)> : tensor<8x?x32xf32, #shapejit.shape<[8, s0, 32]>>)
      rhs(%e at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<8x?x32xf32, #shapejit.shape<[8, s0, 32]>>)
      -> tensor<8x?x?xf32, #shapejit.shape<[8, s0, s0]>>
  return %y : tensor<8x?x?xf32, #shapejit.shape<[8, s0, s0]>>
}

// A division that was there before does not keep a plain view out.
// CHECK-LABEL: func.func @divided_before
// CHECK-NOT: shapejit.view
// CHECK: ins(%{{.*}} at affine_map<(d0, d1)[s0, s1] -> ((d0 mod s0) * s1 + d1)>
func.func @divided_before(%x: tensor<?xf32, #shapejit.shape<[s0 * s1]>>) -> tensor<?x?xf32, #shapejit.shape<[s0 * 2, s1]>> {
  %v = shapejit.view %x at affine_map<(d0, d1)[s0, s1] -> (d0 * s1 + d1)> : tensor<?xf32, #shapejit.shape<[s0 * s1]>> -> tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
  %y = shapejit.loop over [s0 * 2, s1]
      ins(%v at affine_map<(d0, d1)[s0] -> (d0 mod s0, d1)> : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>)
      outs(#id2 : tensor<?x?xf32, #shapejit.shape<[s0 * 2, s1]>>) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  return %y : tensor<?x?xf32, #shapejit.shape<[s0 * 2, s1]>>
}

// An attention result with two readers, or one that is not rearranged whole, stays.
// CHECK-LABEL: func.func @stays
// CHECK: %[[A:.*]] = shapejit.attention
// CHECK: -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// CHECK: shapejit.view %[[A]]
// CHECK: %[[B:.*]] = shapejit.attention
// CHECK: -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// CHECK: shapejit.view %[[B]]
func.func @stays(%q: tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
    -> (tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>, tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>, tensor<?x12x32xf32, #shapejit.shape<[s0, 12, 32]>>) {
  %a = shapejit.attention over [s0, 12, s1, s1, 32, 32]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      {scale = 0.25 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>
  %o = shapejit.view %a at affine_map<(d0, d1, d2) -> (d0, d2 floordiv 32, d1, d2 mod 32)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>> -> tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
  %b = shapejit.attention over [s0, 12, s1, s1, 32, 32]
      q(%a at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      {scale = 0.25 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>
  %first = shapejit.view %b at affine_map<(d0, d1, d2) -> (d0, d1, 0, d2)> : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>> -> tensor<?x12x32xf32, #shapejit.shape<[s0, 12, 32]>>
  return %a, %o, %first : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>, tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>, tensor<?x12x32xf32, #shapejit.shape<[s0, 12, 32]>>
}
