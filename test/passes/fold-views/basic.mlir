// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-fold-views --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

#id4 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#heads = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)>
#merge = affine_map<(d0, d1, d2) -> (d0, d2 floordiv 32, d1, d2 mod 32)>
shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @tokens {id = 1, min = 1, max = 512}

// Heads are split by the operands' maps and merged by the result's.
// CHECK-LABEL: func.func @attention
// CHECK-NOT: shapejit.view
// CHECK: %[[A:.*]] = shapejit.attention
// CHECK: q(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)> : tensor<?x?x384xf32
// CHECK: -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)> : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
// CHECK-NEXT: return %[[A]]
func.func @attention(%q: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) -> tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>> {
  %h = shapejit.view %q at #heads : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>> -> tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>
  %a = shapejit.attention over [s0, 12, s1, s1, 32, 32]
      q(%h at #id4 : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      k(%h at #id4 : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      v(%h at #id4 : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>)
      {scale = 0.25 : f64} -> #id4 : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>
  %o = shapejit.view %a at #merge : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>> -> tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
  return %o : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
}

// Views of views are one map, and the way there and back is none.
// CHECK-LABEL: func.func @inverse
// CHECK-SAME: %[[X:.*]]: tensor
// CHECK-NEXT: return %[[X]]
func.func @inverse(%x: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) -> tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>> {
  %0 = shapejit.view %x at #heads : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>> -> tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>
  %1 = shapejit.view %0 at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d1 floordiv 32, d0 mod s1, d1 mod 32)>
      : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>> -> tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>
  %2 = shapejit.view %1 at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)>
      : tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>> -> tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
  return %2 : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
}

// A transposed weight is a map of the gemm, a broadcast bias one of its extras.
// CHECK-LABEL: func.func @gemm
// CHECK-NOT: shapejit.view
// CHECK: lhs(%{{.*}} at affine_map<(d0, d1, d2)[s0, s1] -> (d0 + s1, d2)>
// CHECK: rhs(%{{.*}} at affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK: extras(%{{.*}} at affine_map<(d0, d1) -> (d1)>
func.func @gemm(%x: tensor<?x384xf32, #shapejit.shape<[s0 + s1, 384]>>, %w: tensor<8x384xf32, #shapejit.shape<[8, 384]>>, %b: tensor<8xf32, #shapejit.shape<[8]>>)
    -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {
  %xs = shapejit.view %x at affine_map<(d0, d1)[s0, s1] -> (d0 + s1, d1)> : tensor<?x384xf32, #shapejit.shape<[s0 + s1, 384]>> -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
  %wt = shapejit.view %w at affine_map<(d0, d1) -> (d1, d0)> : tensor<8x384xf32, #shapejit.shape<[8, 384]>> -> tensor<384x8xf32, #shapejit.shape<[384, 8]>>
  %be = shapejit.view %b at affine_map<(d0, d1) -> (d1)> : tensor<8xf32, #shapejit.shape<[8]>> -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  %y = shapejit.gemm over [s0, 8, 384]
      lhs(%xs at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x384xf32, #shapejit.shape<[s0, 384]>>)
      rhs(%wt at affine_map<(d0, d1, d2) -> (d2, d1)> : tensor<384x8xf32, #shapejit.shape<[384, 8]>>)
      extras(%be at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) epilogue {
    ^bb0(%acc: f32, %bias: f32):
      %0 = arith.addf %acc, %bias : f32
      shapejit.yield %0 : f32
  } -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  return %y : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// A loop takes a map with a division if the elements move, and a gather one without.
// CHECK-LABEL: func.func @loop
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<?x12x?x32xf32, {{.*}}>, %[[T:[a-z0-9]+]]: tensor
// CHECK-NOT: shapejit.view
// CHECK: ins(%[[X]] at affine_map<(d0, d1, d2) -> (d0, d2 floordiv 32, d1, d2 mod 32)>
// CHECK: %[[I:.*]] = shapejit.index 2
// CHECK: %[[J:.*]] = shapejit.index 1
// CHECK: tensor.extract %[[T]][%[[J]], %[[I]]]
func.func @loop(%x: tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>, %table: tensor<512x384xf32, #shapejit.shape<[512, 384]>>)
    -> tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>> {
  %m = shapejit.view %x at #merge : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>> -> tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
  %t = shapejit.view %table at affine_map<(d0, d1) -> (d1, d0)> : tensor<512x384xf32, #shapejit.shape<[512, 384]>> -> tensor<384x512xf32, #shapejit.shape<[384, 512]>>
  %y = shapejit.loop over [s0, s1, 384]
      ins(%m at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) {
  ^bb0(%v: f32):
    %i = shapejit.index 2
    %j = shapejit.index 1
    %e = tensor.extract %t[%i, %j] : tensor<384x512xf32, #shapejit.shape<[384, 512]>>
    %s = arith.addf %v, %e : f32
    shapejit.yield %s : f32
  }
  return %y : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
}
