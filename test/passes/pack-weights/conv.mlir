// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-pack-weights=panel=4 --cse --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}

!x = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x?x6xf32, #shapejit.shape<[s0, s1, 6]>>

// Taps and channels in the order in which a row of the image is gathered, output channels in panels.
// Equal packs are one.

// CHECK-LABEL: func.func @plain
// CHECK: %[[P:.*]] = shapejit.pack %{{.*}} over [1, 6, 3, 8] at affine_map<(d0, d1, d2, d3) -> (d1, d3, d2)> {dim = 1 : i64, panel = 4 : i64} : tensor<6x8x3xf32, {{.*}}> -> tensor<1x2x3x8x4xf32, {{.*}}>
// CHECK-NOT: shapejit.pack
// CHECK: weight(%[[P]] at affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 4, d3, d2, d1 mod 4)> :
// CHECK: weight(%[[P]] at affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 4, d3, d2, d1 mod 4)> :
func.func @plain(%x: !x, %w: !w {shapejit.kind = "weight"}) -> (!y, !y) {
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %1 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] dilation [2] padding [(2, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  return %0, %1 : !y, !y
}

// A flipped kernel of groups of two channels, in panels of half the width.

!t = tensor<8x2x3xf32, #shapejit.shape<[8, 2, 3]>>
!four = tensor<?x?x4xf32, #shapejit.shape<[s0, s1, 4]>>
// CHECK-LABEL: func.func @transposed
// CHECK: shapejit.pack %{{.*}} over [2, 2, 3, 4] at affine_map<(d0, d1, d2, d3) -> (d0 * 4 + d3, d1, -d2 + 2)> {dim = 1 : i64, panel = 2 : i64} : {{.*}} -> tensor<2x1x3x4x2xf32, {{.*}}>
// CHECK: weight(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 2, d3, d2, d1 mod 2)> :
func.func @transposed(%x: !x, %w: !t {shapejit.kind = "weight"}) -> !four {
  %0 = shapejit.conv over [s0, 2, s1, 2, 4, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g * 4 + c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (g * 4 + c, f, 2 - t)> : !t)
      -> affine_map<(n, g, o, f) -> (n, o, g * 2 + f)> : !four
  return %0 : !four
}

// A depthwise kernel has channels of neighbouring groups side by side.

!d = tensor<8x1x3xf32, #shapejit.shape<[8, 1, 3]>>
// CHECK-LABEL: func.func @depthwise
// CHECK: shapejit.pack %{{.*}} over [8, 3] at affine_map<(d0, d1) -> (d0, 0, d1)> {dim = 0 : i64, panel = 2 : i64} : {{.*}} -> tensor<4x3x2xf32, {{.*}}>
// CHECK: weight(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0 floordiv 2, d3, d0 mod 2)> :
func.func @depthwise(%x: !x, %w: !d {shapejit.kind = "weight"}) -> !x {
  %0 = shapejit.conv over [s0, 8, s1, 1, 1, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (g, c, t)> : !d)
      -> affine_map<(n, g, o, f) -> (n, o, g)> : !x
  return %0 : !x
}

// The kernel of one tap, read by a gemm.

!one = tensor<6x8x1xf32, #shapejit.shape<[6, 8, 1]>>
!rows = tensor<?x8xf32, #shapejit.shape<[s1, 8]>>
// CHECK-LABEL: func.func @one_tap
// CHECK: shapejit.pack %{{.*}} over [6, 8] at affine_map<(d0, d1) -> (d0, d1, 0)> {dim = 0 : i64, panel = 4 : i64} : {{.*}} -> tensor<2x8x4xf32, {{.*}}>
// CHECK: rhs(%{{.*}} at affine_map<(d0, d1, d2) -> (d1 floordiv 4, d2, d1 mod 4)> :
func.func @one_tap(%x: !rows, %w: !one {shapejit.kind = "weight"}) -> tensor<?x6xf32, #shapejit.shape<[s1, 6]>> {
  %0 = shapejit.gemm over [s1, 6, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !rows)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2, 0)> : !one) -> tensor<?x6xf32, #shapejit.shape<[s1, 6]>>
  return %0 : tensor<?x6xf32, #shapejit.shape<[s1, 6]>>
}

// Not packed: inputs, a slice of the taps, a kernel that repeats an element.

// CHECK-LABEL: func.func @stays
// CHECK-NOT: shapejit.pack
func.func @stays(%x: !x, %u: !w, %w: !w {shapejit.kind = "weight"}) -> (!y, !y, !y) {
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%u at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %1 = shapejit.conv over [s0, 1, s1, 6, 8, 2] image [s1] padding [(1, 0)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t + 1)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %2 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, 1)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  return %0, %1, %2 : !y, !y, !y
}
