// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-canonicalize-shapes --canonicalize --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
shapejit.symbol @same {id = 2, min = 1, max = 64, equal_to = 1}

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!last = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!w = tensor<6x8x1xf32, #shapejit.shape<[6, 8, 1]>>
!y = tensor<?x?x6xf32, #shapejit.shape<[s0, s1, 6]>>
!first = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>

// One tap that sees every pixel: a product of matrices, whose rows collapse.

// CHECK-LABEL: func.func @one_tap
// CHECK-NOT: shapejit.conv
// CHECK: %[[X:.*]] = shapejit.view %{{.*}} : tensor<?x?x8xf32, {{.*}}> -> tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
// CHECK: shapejit.gemm over [s0 * s1, 6, 8]
// CHECK-NEXT: lhs(%[[X]] at affine_map<(d0, d1, d2) -> (d0, d2)> :
// CHECK-NEXT: rhs(%{{.*}} at affine_map<(d0, d1, d2) -> (d1, d2, 0)> : tensor<6x8x1xf32, {{.*}}>) accumulate f64 -> tensor<?x6xf32, #shapejit.shape<[s0 * s1, 6]>>
func.func @one_tap(%x: !last, %w: !w) -> !y {
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 1] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !last)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w) accumulate f64
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  return %0 : !y
}

// Written channels first, it is a product of which a transpose is returned.

// CHECK-LABEL: func.func @channels_first
// CHECK: %[[G:.*]] = shapejit.gemm over [s0, s1, 6, 8]
// CHECK-NEXT: lhs(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0, d3, d1)> :
// CHECK: shapejit.view %[[G]] at affine_map<(d0, d1, d2) -> (d0, d2, d1)> :
func.func @channels_first(%x: !x, %w: !w) -> !first {
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 1] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !first
  return %0 : !first
}

// With strides, padding, groups or an epilogue it stays a convolution. Merged symbols have one name.

!even = tensor<?x?x6xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, 6]>>
!padded = tensor<?x?x6xf32, #shapejit.shape<[s0, s1 + 1, 6]>>
!halves = tensor<6x4x1xf32, #shapejit.shape<[6, 4, 1]>>
// CHECK-LABEL: func.func @stays
// CHECK: shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, 6, 8, 1] image [s1] stride [2]
// CHECK: shapejit.conv over [s0, 1, s1 + 1, 6, 8, 1] image [s1] padding [(1, 0)]
// CHECK: shapejit.conv over [s0, 2, s1, 3, 4, 1] image [s1]
// CHECK: shapejit.conv over [s0, 1, s1, 6, 8, 1] image [s1]
// CHECK-NOT: shapejit.gemm
func.func @stays(%x: !last, %w: !w, %v: !halves) -> (!even, !padded, !y, !y) {
  %0 = shapejit.conv over [s0, 1, (s2 + 1) floordiv 2, 6, 8, 1] image [s2] stride [2]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !last)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !even
  %1 = shapejit.conv over [s0, 1, s1 + 1, 6, 8, 1] image [s1] padding [(1, 0)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !last)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !padded
  %2 = shapejit.conv over [s0, 2, s1, 3, 4, 1] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g * 4 + c)> : !last)
      weight(%v at affine_map<(g, f, c, t) -> (g * 3 + f, c, t)> : !halves)
      -> affine_map<(n, g, o, f) -> (n, o, g * 3 + f)> : !y
  %3 = shapejit.conv over [s0, 1, s1, 6, 8, 1] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !last)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w) epilogue {
  ^bb0(%acc: f32):
    %4 = arith.negf %acc : f32
    shapejit.yield %4 : f32
  } -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  return %0, %1, %2, %3 : !even, !padded, !y, !y
}

// A pointwise loop takes the layout of the convolution that it reads, its index with it; the next
// convolution reads that.

!k = tensor<6x6x3xf32, #shapejit.shape<[6, 6, 3]>>
!c = tensor<6xf32, #shapejit.shape<[6]>>
// CHECK-LABEL: func.func @layout
// CHECK-SAME: %{{[a-z0-9]*}}: tensor<?x8x?xf32{{[^%]*}}%{{[a-z0-9]*}}:{{[^%]*}}%{{[a-z0-9]*}}:{{[^%]*}}%[[B:[a-z0-9]*]]:
// CHECK: %[[C:.*]] = shapejit.conv
// CHECK: %[[L:.*]] = shapejit.loop over [s0, s1, 6]
// CHECK-NEXT: ins(%[[C]] at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : {{.*}}, %[[B]] at affine_map<(d0, d1, d2) -> (d2)> :
// CHECK-NEXT: outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : tensor<?x?x6xf32, #shapejit.shape<[s0, s1, 6]>>)
// CHECK: shapejit.index 2
// CHECK: shapejit.conv
// CHECK-NEXT: input(%[[L]] at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> :
func.func @layout(%x: !x, %w: tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>, %k: !k, %b: !c) -> !y {
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %1 = shapejit.view %0 at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : !y -> !first
  %2 = shapejit.loop over [s0, 6, s1]
      ins(%1 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first, %b at affine_map<(d0, d1, d2) -> (d1)> : !c)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first) {
  ^bb0(%v: f32, %s: f32):
    %i = shapejit.index 1
    %j = arith.index_cast %i : index to i32
    %f = arith.sitofp %j : i32 to f32
    %t = arith.addf %v, %s : f32
    %u = arith.mulf %t, %f : f32
    shapejit.yield %u : f32
  }
  %3 = shapejit.conv over [s0, 1, s1, 6, 6, 3] image [s1] padding [(1, 1)]
      input(%2 at affine_map<(n, g, p, c) -> (n, c, p)> : !first)
      weight(%k at affine_map<(g, f, c, t) -> (f, c, t)> : !k)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  return %3 : !y
}

// Images whose channels are not last are copied, once, by a view that stays; for groups, too. A loop
// that only makes such an image makes it in that order.

!gx = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>
!gw = tensor<6x2x3xf32, #shapejit.shape<[6, 2, 3]>>
// CHECK-LABEL: func.func @channels_last
// CHECK-SAME: (%[[X:[a-z0-9]*]]:
// CHECK: %[[V:.*]] = shapejit.view %[[X]] at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : {{.*}} -> tensor<?x?x6xf32, #shapejit.shape<[s0, s1, 6]>>
// CHECK: shapejit.conv over [s0, 3, s1, 2, 2, 3]
// CHECK-NEXT: input(%[[V]] at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 2 + d3)> :
// CHECK: %[[L:.*]] = shapejit.loop over [s0, s1, 6]
// CHECK-NEXT: ins(%[[X]] at affine_map<(d0, d1, d2) -> (d0, d2, d1)> :
// CHECK: shapejit.conv
// CHECK-NEXT: input(%[[L]] at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> :
func.func @channels_last(%x: !gx, %w: !gw, %k: !k) -> (!y, !y) {
  %0 = shapejit.conv over [s0, 3, s1, 2, 2, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, g * 2 + c, p)> : !gx)
      weight(%w at affine_map<(g, f, c, t) -> (g * 2 + f, c, t)> : !gw)
      -> affine_map<(n, g, o, f) -> (n, o, g * 2 + f)> : !y
  %1 = shapejit.loop over [s0, 6, s1] ins(%x at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !gx)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !gx) {
  ^bb0(%v: f32):
    %t = arith.negf %v : f32
    shapejit.yield %t : f32
  }
  %2 = shapejit.conv over [s0, 1, s1, 6, 6, 3] image [s1] padding [(1, 1)]
      input(%1 at affine_map<(n, g, p, c) -> (n, c, p)> : !gx)
      weight(%k at affine_map<(g, f, c, t) -> (f, c, t)> : !k)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  return %0, %2 : !y, !y
}
