// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-canonicalize-shapes --canonicalize --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

shapejit.symbol @n {id = 0, min = 0, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
shapejit.symbol @w {id = 2, min = 1, max = 64}

// As many taps as the stride has pixels: columns are (tap of the last dim, filter), the taps of the
// other dim are a batch dim. Each pixel takes its tap backwards from the flipped kernel.

!x = tensor<?x?x?x8xf32, #shapejit.shape<[s0, s1, s2, 8]>>
!w = tensor<8x4x2x3xf32, #shapejit.shape<[8, 4, 2, 3]>>
!y = tensor<?x?x?x4xf32, #shapejit.shape<[s0, s1 * 2, s2 * 3, 4]>>

// CHECK-LABEL: func.func @plane
// CHECK-SAME: %[[X:[a-z0-9]*]]: {{[^%]*}}%[[W:[a-z0-9]*]]:
// CHECK-NOT: shapejit.conv
// CHECK: %[[F:.*]] = shapejit.view %[[W]] at affine_map<(d0, d1, d2) -> (d2, d1 mod 4, d0, d1 floordiv 4)> : {{.*}} -> tensor<2x12x8xf32,
// CHECK: %[[G:.*]] = shapejit.gemm over [s0, s1, 2, s2, 12, 8]
// CHECK-NEXT: lhs(%[[X]] at affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d3, d5)> :
// CHECK-NEXT: rhs(%[[F]] at affine_map<(d0, d1, d2, d3, d4, d5) -> (d2, d4, d5)> : {{.*}}) accumulate f64 -> tensor<?x?x2x?x12xf32,
// CHECK: %[[Y:.*]] = shapejit.view %[[G]] at affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 2, d1 mod 2, d2 floordiv 3, d3 + (d2 mod 3) * 4)>
// CHECK: return %[[Y]]
func.func @plane(%x: !x, %w: !w) -> !y {
  %0 = shapejit.conv over [s0, 1, s1 * 2, s2 * 3, 4, 8, 2, 3] image [s1, s2]
      lhs_dilation [2, 3] padding [(1, 1), (2, 2)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (c, f, 1 - t, 2 - u)> : !w) accumulate f64
      -> affine_map<(n, g, o, r, f) -> (n, o, r, f)> : !y
  return %0 : !y
}

// One dim: the rows collapse as those of a linear layer.

!line = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!lw = tensor<8x4x2xf32, #shapejit.shape<[8, 4, 2]>>
!ly = tensor<?x?x4xf32, #shapejit.shape<[s0, s1 * 2, 4]>>
// CHECK-LABEL: func.func @line
// CHECK: shapejit.gemm over [s0 * s1, 8, 8]
func.func @line(%x: !line, %w: !lw) -> !ly {
  %0 = shapejit.conv over [s0, 1, s1 * 2, 4, 8, 2] image [s1] lhs_dilation [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !line)
      weight(%w at affine_map<(g, f, c, t) -> (c, f, 1 - t)> : !lw)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !ly
  return %0 : !ly
}

// Channels first are read, and written, where they are.

!first = tensor<?x8x?x?xf32, #shapejit.shape<[s0, 8, s1, s2]>>
!wide = tensor<8x4x1x2xf32, #shapejit.shape<[8, 4, 1, 2]>>
!out = tensor<?x4x?x?xf32, #shapejit.shape<[s0, 4, s1, s2 * 2]>>
// CHECK-LABEL: func.func @columns
// CHECK: %[[G:.*]] = shapejit.gemm over [s0, s1, s2, 8, 8]
// CHECK-NEXT: lhs(%{{.*}} at affine_map<(d0, d1, d2, d3, d4) -> (d0, d4, d1, d2)> :
// CHECK: shapejit.view %[[G]] at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3 floordiv 2, d1 + (d3 mod 2) * 4)>
func.func @columns(%x: !first, %w: !wide) -> !out {
  %0 = shapejit.conv over [s0, 1, s1, s2 * 2, 4, 8, 1, 2] image [s1, s2]
      lhs_dilation [1, 2] padding [(0, 0), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, c, p, q)> : !first)
      weight(%w at affine_map<(g, f, c, t, u) -> (c, f, 0, 1 - u)> : !wide)
      -> affine_map<(n, g, o, r, f) -> (n, f, o, r)> : !out
  return %0 : !out
}

// It stays a convolution with fewer or more taps, with padding, with an output padding, with a
// dilation, with a stride of the window, with groups, and with an epilogue.

!w1 = tensor<8x4x1xf32, #shapejit.shape<[8, 4, 1]>>
!w3 = tensor<8x4x3xf32, #shapejit.shape<[8, 4, 3]>>
!wg = tensor<8x2x2xf32, #shapejit.shape<[8, 2, 2]>>
!less = tensor<?x?x4xf32, #shapejit.shape<[s0, s1 * 2 - 1, 4]>>
!more = tensor<?x?x4xf32, #shapejit.shape<[s0, s1 * 2 + 1, 4]>>
!cut = tensor<?x?x4xf32, #shapejit.shape<[s0, s1 * 2 - 2, 4]>>
!same = tensor<?x?x4xf32, #shapejit.shape<[s0, s1, 4]>>
// CHECK-LABEL: func.func @stays
// CHECK-COUNT-8: shapejit.conv over
// CHECK-NOT: shapejit.gemm
func.func @stays(%x: !line, %w: !lw, %w1: !w1, %w3: !w3, %wg: !wg)
    -> (!less, !more, !cut, !more, !more, !same, !ly, !ly) {
  %0 = shapejit.conv over [s0, 1, s1 * 2 - 1, 4, 8, 1] image [s1] lhs_dilation [2]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !line)
      weight(%w1 at affine_map<(g, f, c, t) -> (c, f, t)> : !w1)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !less
  %1 = shapejit.conv over [s0, 1, s1 * 2 + 1, 4, 8, 3] image [s1] lhs_dilation [2] padding [(2, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !line)
      weight(%w3 at affine_map<(g, f, c, t) -> (c, f, 2 - t)> : !w3)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !more
  %2 = shapejit.conv over [s0, 1, s1 * 2 - 2, 4, 8, 2] image [s1] lhs_dilation [2]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !line)
      weight(%w at affine_map<(g, f, c, t) -> (c, f, 1 - t)> : !lw)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !cut
  %3 = shapejit.conv over [s0, 1, s1 * 2 + 1, 4, 8, 2] image [s1] lhs_dilation [2] padding [(1, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !line)
      weight(%w at affine_map<(g, f, c, t) -> (c, f, 1 - t)> : !lw)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !more
  %4 = shapejit.conv over [s0, 1, s1 * 2 + 1, 4, 8, 2] image [s1] dilation [2] lhs_dilation [2] padding [(2, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !line)
      weight(%w at affine_map<(g, f, c, t) -> (c, f, 1 - t)> : !lw)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !more
  %5 = shapejit.conv over [s0, 1, s1, 4, 8, 2] image [s1] stride [2] lhs_dilation [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !line)
      weight(%w at affine_map<(g, f, c, t) -> (c, f, 1 - t)> : !lw)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !same
  %6 = shapejit.conv over [s0, 2, s1 * 2, 2, 4, 2] image [s1] lhs_dilation [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g * 4 + c)> : !line)
      weight(%wg at affine_map<(g, f, c, t) -> (g * 4 + c, f, 1 - t)> : !wg)
      -> affine_map<(n, g, o, f) -> (n, o, g * 2 + f)> : !ly
  %7 = shapejit.conv over [s0, 1, s1 * 2, 4, 8, 2] image [s1] lhs_dilation [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !line)
      weight(%w at affine_map<(g, f, c, t) -> (c, f, 1 - t)> : !lw) epilogue {
  ^bb0(%acc: f32):
    %8 = arith.negf %acc : f32
    shapejit.yield %8 : f32
  } -> affine_map<(n, g, o, f) -> (n, o, f)> : !ly
  return %0, %1, %2, %3, %4, %5, %6, %7 : !less, !more, !cut, !more, !more, !same, !ly, !ly
}
