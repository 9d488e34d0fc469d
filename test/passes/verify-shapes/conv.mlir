// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

// Strides divide, padding and dilation cancel, an image may be smaller than the kernel: then a
// derived symbol says that there are no pixels.

shapejit.symbol @n {id = 0, min = 0, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
shapejit.symbol @w {id = 2, min = 1}
shapejit.symbol @out {id = 3, min = 0} = max(s1 - 4, 0)

!x = tensor<?x8x?x?xf32, #shapejit.shape<[s0, 8, s1, s2]>>
!w = tensor<6x4x3x3xf32, #shapejit.shape<[6, 4, 3, 3]>>
!y = tensor<?x?x?x6xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, s2, 6]>>
// CHECK-LABEL: func.func @groups
// CHECK: shapejit.conv over [s0, 2, (s1 + 1) floordiv 2, s2, 3, 4, 3, 3] image [s1, s2] stride [2, 1] dilation [1, 2] padding [(1, 1), (2, 2)]
func.func @groups(%x: !x, %w: !w) -> !y {
  %0 = shapejit.conv over [s0, 2, (s1 + 1) floordiv 2, s2, 3, 4, 3, 3] image [s1, s2]
      stride [2, 1] dilation [1, 2] padding [(1, 1), (2, 2)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, g * 4 + c, p, q)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (g * 3 + f, c, t, u)> : !w)
      -> affine_map<(n, g, o, p, f) -> (n, o, p, g * 3 + f)> : !y
  return %0 : !y
}

!line = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!taps = tensor<8x8x5xf32, #shapejit.shape<[8, 8, 5]>>
!short = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s3]>>
!long = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1 * 2 + 3]>>
// CHECK-LABEL: func.func @clamped
// CHECK: shapejit.conv over [s0, 1, s3, 8, 8, 5] image [s1]
// CHECK: shapejit.conv over [s0, 1, s1 * 2 + 3, 8, 8, 5] image [s1] lhs_dilation [2] padding [(4, 4)]
func.func @clamped(%x: !line, %w: !taps) -> (!short, !long) {
  %0 = shapejit.conv over [s0, 1, s3, 8, 8, 5] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !line)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !taps)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !short
  %1 = shapejit.conv over [s0, 1, s1 * 2 + 3, 8, 8, 5] image [s1] lhs_dilation [2] padding [(4, 4)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !line)
      weight(%w at affine_map<(g, f, c, t) -> (c, f, 4 - t)> : !taps)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !long
  return %0, %1 : !short, !long
}
