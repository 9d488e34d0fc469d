// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-inline-pointwise --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}

!x = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x?x6xf32, #shapejit.shape<[s0, s1, 6]>>
!first = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>
!flat = tensor<?x6xf32, #shapejit.shape<[s0 * s1, 6]>>
!b = tensor<6xf32, #shapejit.shape<[6]>>

// Bias, then a residual in another layout and a relu. The convolution keeps the layout it writes;
// what is returned in another one is written as that.

// CHECK-LABEL: func.func @chain
// CHECK-SAME: %[[X:[a-z0-9]*]]: tensor<?x?x8xf32{{[^%]*}}%[[W:[a-z0-9]*]]:{{[^%]*}}%[[B:[a-z0-9]*]]:{{[^%]*}}%[[R:[a-z0-9]*]]:
// CHECK-NEXT: %[[C:.*]] = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
// CHECK-NEXT: input(%[[X]]
// CHECK-NEXT: weight(%[[W]]
// CHECK-NEXT: extras(%[[B]] at affine_map<(d0, d1, d2, d3) -> (d3)> : {{.*}}, %[[R]] at affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)> : {{.*}}) epilogue {
// CHECK-NEXT: ^bb0(%[[ACC:.*]]: f32, %[[BIAS:.*]]: f32, %[[RES:.*]]: f32):
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[ACC]], %[[BIAS]]
// CHECK: %[[T:.*]] = arith.addf %[[S]], %[[RES]]
// CHECK: shapejit.yield
// CHECK-NEXT: } -> affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)> : tensor<?x6x?xf32
// CHECK-NEXT: return %[[C]]
func.func @chain(%x: !x, %w: !w, %b: !b, %r: !first) -> !first {
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %1 = shapejit.loop over [s0, s1, 6]
      ins(%0 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y, %b at affine_map<(d0, d1, d2) -> (d2)> : !b)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y) {
  ^bb0(%v: f32, %s: f32):
    %t = arith.addf %v, %s : f32
    shapejit.yield %t : f32
  }
  %2 = shapejit.view %1 at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : !y -> !first
  %3 = shapejit.loop over [s0, 6, s1]
      ins(%2 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first, %r at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first) {
  ^bb0(%v: f32, %s: f32):
    %zero = arith.constant 0.0 : f32
    %t = arith.addf %v, %s : f32
    %u = arith.maximumf %t, %zero : f32
    shapejit.yield %u : f32
  }
  return %3 : !first
}

// Groups: an extra is read at the channel that the group's channel is. A type change goes in, too.

!gw = tensor<6x4x3xbf16, #shapejit.shape<[6, 4, 3]>>
!gx = tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
!gy = tensor<?x?x6xbf16, #shapejit.shape<[s0, s1, 6]>>
// CHECK-LABEL: func.func @groups
// CHECK: shapejit.conv over [s0, 2, s1, 3, 4, 3]
// CHECK: extras(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d1 * 3 + d3)> :
// CHECK-NEXT: ^bb0(%[[ACC:.*]]: f32, %{{.*}}: f32):
// CHECK-NEXT: arith.truncf %[[ACC]] : f32 to bf16
// CHECK: } -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 3 + d3)> : tensor<?x?x6xf32
// CHECK-NOT: shapejit.loop
func.func @groups(%x: !gx, %w: !gw, %b: !b) -> !y {
  %0 = shapejit.conv over [s0, 2, s1, 3, 4, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g * 4 + c)> : !gx)
      weight(%w at affine_map<(g, f, c, t) -> (g * 3 + f, c, t)> : !gw)
      -> affine_map<(n, g, o, f) -> (n, o, g * 3 + f)> : !gy
  %1 = shapejit.loop over [s0, s1, 6]
      ins(%0 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !gy, %b at affine_map<(d0, d1, d2) -> (d2)> : !b)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y) {
  ^bb0(%v: bf16, %s: f32):
    %e = arith.extf %v : bf16 to f32
    %t = arith.mulf %e, %s : f32
    shapejit.yield %t : f32
  }
  return %1 : !y
}

// No epilogue: a loop that knows its index, one that reads an element twice, a result that is read
// by others, an extra that would divide the channel.

!pairs = tensor<3xf32, #shapejit.shape<[3]>>
// CHECK-LABEL: func.func @stays
// CHECK-COUNT-4: shapejit.loop
func.func @stays(%x: !x, %w: !w, %p: !pairs) -> (!y, !y, !y, !y, !y) {
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %1 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] dilation [2] padding [(2, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %2 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] dilation [3] padding [(3, 3)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %3 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] dilation [4] padding [(4, 4)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %4 = shapejit.loop over [s0, s1, 6] ins(%0 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y) {
  ^bb0(%v: f32):
    %i = shapejit.index 1
    %j = arith.index_cast %i : index to i32
    %f = arith.sitofp %j : i32 to f32
    %t = arith.addf %v, %f : f32
    shapejit.yield %t : f32
  }
  %5 = shapejit.loop over [s0, s1, 6] ins(%1 at affine_map<(d0, d1, d2) -> (d0, d1, 0)> : !y)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y) {
  ^bb0(%v: f32):
    %t = arith.negf %v : f32
    shapejit.yield %t : f32
  }
  %6 = shapejit.loop over [s0, s1, 6] ins(%2 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y) {
  ^bb0(%v: f32):
    %t = arith.negf %v : f32
    shapejit.yield %t : f32
  }
  %7 = shapejit.loop over [s0, s1, 6]
      ins(%3 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y, %p at affine_map<(d0, d1, d2) -> (d2 floordiv 2)> : !pairs)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !y) {
  ^bb0(%v: f32, %s: f32):
    %t = arith.addf %v, %s : f32
    shapejit.yield %t : f32
  }
  return %2, %4, %5, %6, %7 : !y, !y, !y, !y, !y
}
