// RUN: shapejit-opt %s --shapejit-unfold-convolutions --split-input-file | FileCheck %s

// Each output pixel is a row of what its taps see; the filters are read as torch keeps them.

// CHECK-LABEL: func.func @strided
// CHECK: %[[R:.*]] = shapejit.loop over [s0, (s1 + 1) floordiv 2, s2, 32, 3, 3]
// CHECK: tensor.extract %arg0
// CHECK: shapejit.gemm over [{{.*}}, 64, 288]
// CHECK: rhs(%arg1 at
// CHECK-NOT: shapejit.conv
!x = tensor<?x?x?x32xf32, #shapejit.shape<[s0, s1, s2, 32]>>
!w = tensor<64x32x3x3xf32, #shapejit.shape<[64, 32, 3, 3]>>
!y = tensor<?x?x?x64xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, s2, 64]>>
func.func @strided(%x: !x, %w: !w) -> !y {
  %0 = shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, s2, 64, 32, 3, 3] image [s1, s2] stride [2, 1] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !y
  return %0 : !y
}

// -----

// Zeros that a window sees without an image, as those around a transposed convolution.

// CHECK-LABEL: func.func @padded_over_taps
// CHECK: shapejit.loop over [s0, s1 + 4, 8]
// CHECK: shapejit.gemm over [{{.*}}, 8, 8]
// CHECK-NOT: shapejit.conv
!x = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!w = tensor<8x8x1xf32, #shapejit.shape<[8, 8, 1]>>
!y = tensor<?x?x8xf32, #shapejit.shape<[s0, s1 + 4, 8]>>
func.func @padded_over_taps(%x: !x, %w: !w) -> !y {
  %0 = shapejit.conv over [s0, 1, s1 + 4, 8, 8, 1] image [s1] padding [(2, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, p, f) -> (n, p, f)> : !y
  return %0 : !y
}

// -----

// Depthwise layers have kernels of their own, unless there are zeros between pixels.

// CHECK-LABEL: func.func @depthwise
// CHECK: shapejit.conv
// CHECK-NOT: lhs_dilation
// CHECK: shapejit.gemm
// CHECK-NOT: shapejit.conv
!x = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!w = tensor<8x1x3xf32, #shapejit.shape<[8, 1, 3]>>
!y = tensor<?x?x8xf32, #shapejit.shape<[s0, s1 * 2 - 1, 8]>>
func.func @depthwise(%x: !x, %w: !w) -> (!x, !y) {
  %0 = shapejit.conv over [s0, 8, s1, 1, 1, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g + c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (g + f, c, t)> : !w)
      -> affine_map<(n, g, p, f) -> (n, p, g + f)> : !x
  %1 = shapejit.conv over [s0, 8, s1 * 2 - 1, 1, 1, 3] image [s1] lhs_dilation [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g + c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (g + f, c, t)> : !w)
      -> affine_map<(n, g, p, f) -> (n, p, g + f)> : !y
  return %0, %1 : !x, !y
}
