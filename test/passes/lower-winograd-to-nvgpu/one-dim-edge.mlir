// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="winograd=force" --split-input-file | FileCheck %s

// Rows of an image with groups. There are zeros around the dim that is passed through, too.

// CHECK-LABEL: func.func @rows
// CHECK: shapejit.loop over [4, 3, s0, s1 + 3, s2 floordiv 2 - 1, 2]
// CHECK: shapejit.gemm over [4, 3, {{.*}}, 5, 2]
// CHECK: shapejit.loop over [s0, 3, s1 + 3, s2 - 3, 5]
// CHECK-NOT: shapejit.conv
!x = tensor<?x6x?x?xf32, #shapejit.shape<[s0, 6, s1, s2]>>
!w = tensor<15x2x1x3xf32, #shapejit.shape<[15, 2, 1, 3]>>
!y = tensor<?x15x?x?xf32, #shapejit.shape<[s0, 15, s1 + 3, s2 - 3]>>
module {
  shapejit.symbol @n {id = 0, min = 0}
  shapejit.symbol @h {id = 1, min = 1}
  shapejit.symbol @w {id = 2, min = 3}
  func.func @rows(%x: !x, %w: !w) -> !y {
    %0 = shapejit.conv over [s0, 3, s1 + 3, s2 - 3, 5, 2, 1, 3] image [s1, s2] padding [(1, 2), (-1, 0)]
        input(%x at affine_map<(n, g, p, q, c) -> (n, g * 2 + c, p, q)> : !x)
        weight(%w at affine_map<(g, f, c, t, u) -> (g * 5 + f, c, t, u)> : !w)
        -> affine_map<(n, g, p, q, f) -> (n, g * 5 + f, p, q)> : !y
    return %0 : !y
  }
}

// -----

// One pixel, one channel, one filter.

// CHECK-LABEL: func.func @one
// CHECK: shapejit.loop over [4]
// CHECK: shapejit.gemm over [4, 1, 1, 1]
// CHECK-NOT: shapejit.conv
!x = tensor<1x1x1xf32, #shapejit.shape<[1, 1, 1]>>
!w = tensor<1x1x3xf32, #shapejit.shape<[1, 1, 3]>>
func.func @one(%x: !x, %w: !w) -> !x {
  %0 = shapejit.conv over [1, 1, 1, 1, 1, 3] image [1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, p, f) -> (n, f, p)> : !x
  return %0 : !x
}

// -----

// Neither strides nor dilations, along no dim; nor two taps or five.

// CHECK-LABEL: func.func @strided
// CHECK-COUNT-5: shapejit.conv
// CHECK-NOT: shapejit.gemm
!x = tensor<?x?x64xf32, #shapejit.shape<[s0, s1, 64]>>
!i = tensor<?x?x?x64xf32, #shapejit.shape<[s0, s1, s2, 64]>>
!w2 = tensor<64x64x2xf32, #shapejit.shape<[64, 64, 2]>>
!w3 = tensor<64x64x3xf32, #shapejit.shape<[64, 64, 3]>>
!w31 = tensor<64x64x3x1xf32, #shapejit.shape<[64, 64, 3, 1]>>
!w35 = tensor<64x64x3x5xf32, #shapejit.shape<[64, 64, 3, 5]>>
!y = tensor<?x?x64xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, 64]>>
!z = tensor<?x?x64xf32, #shapejit.shape<[s0, s1 - 1, 64]>>
!j = tensor<?x?x?x64xf32, #shapejit.shape<[s0, s1, (s2 + 1) floordiv 2, 64]>>
func.func @strided(%x: !x, %i: !i, %w2: !w2, %w3: !w3, %w31: !w31, %w35: !w35) -> (!y, !x, !z, !j, !i) {
  %0 = shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, 64, 64, 3] image [s1] stride [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w3 at affine_map<(g, f, c, t) -> (f, c, t)> : !w3)
      -> affine_map<(n, g, p, f) -> (n, p, f)> : !y
  %1 = shapejit.conv over [s0, 1, s1, 64, 64, 3] image [s1] dilation [2] padding [(2, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w3 at affine_map<(g, f, c, t) -> (f, c, t)> : !w3)
      -> affine_map<(n, g, p, f) -> (n, p, f)> : !x
  %2 = shapejit.conv over [s0, 1, s1 - 1, 64, 64, 2] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w2 at affine_map<(g, f, c, t) -> (f, c, t)> : !w2)
      -> affine_map<(n, g, p, f) -> (n, p, f)> : !z
  %3 = shapejit.conv over [s0, 1, s1, (s2 + 1) floordiv 2, 64, 64, 3, 1] image [s1, s2] stride [1, 2] padding [(1, 1), (0, 0)]
      input(%i at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !i)
      weight(%w31 at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w31)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !j
  %4 = shapejit.conv over [s0, 1, s1, s2, 64, 64, 3, 5] image [s1, s2] padding [(1, 1), (2, 2)]
      input(%i at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !i)
      weight(%w35 at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w35)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !i
  return %0, %1, %2, %3, %4 : !y, !x, !z, !j, !i
}

// -----

// Nor three dims, of whichever taps, nor filters of one tap.

// CHECK-LABEL: func.func @three_dims
// CHECK-COUNT-3: shapejit.conv
// CHECK-NOT: shapejit.gemm
!x = tensor<?x?x?x?x64xf32, #shapejit.shape<[s0, s1, s2, s3, 64]>>
!w = tensor<64x64x3x1x1xf32, #shapejit.shape<[64, 64, 3, 1, 1]>>
!w3 = tensor<64x64x3x3x3xf32, #shapejit.shape<[64, 64, 3, 3, 3]>>
!i = tensor<?x?x64xf32, #shapejit.shape<[s0, s1, 64]>>
!w1 = tensor<64x64x1xf32, #shapejit.shape<[64, 64, 1]>>
func.func @three_dims(%x: !x, %w: !w, %w3: !w3, %i: !i, %w1: !w1) -> (!x, !x, !i) {
  %0 = shapejit.conv over [s0, 1, s1, s2, s3, 64, 64, 3, 1, 1] image [s1, s2, s3] padding [(1, 1), (0, 0), (0, 0)]
      input(%x at affine_map<(n, g, p, q, r, c) -> (n, p, q, r, c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u, v) -> (f, c, t, u, v)> : !w)
      -> affine_map<(n, g, p, q, r, f) -> (n, p, q, r, f)> : !x
  %1 = shapejit.conv over [s0, 1, s1, s2, s3, 64, 64, 3, 3, 3] image [s1, s2, s3] padding [(1, 1), (1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, r, c) -> (n, p, q, r, c)> : !x)
      weight(%w3 at affine_map<(g, f, c, t, u, v) -> (f, c, t, u, v)> : !w3)
      -> affine_map<(n, g, p, q, r, f) -> (n, p, q, r, f)> : !x
  %2 = shapejit.conv over [s0, 1, s1, 64, 64, 1] image [s1]
      input(%i at affine_map<(n, g, p, c) -> (n, p, c)> : !i)
      weight(%w1 at affine_map<(g, f, c, t) -> (f, c, t)> : !w1)
      -> affine_map<(n, g, p, f) -> (n, p, f)> : !i
  return %0, %1, %2 : !x, !x, !i
}

// -----

// float16 needs a bound that allows its error.

// CHECK-LABEL: func.func @half
// CHECK: shapejit.conv
!x = tensor<?x?x64xf16, #shapejit.shape<[s0, s1, 64]>>
!w = tensor<64x64x3xf16, #shapejit.shape<[64, 64, 3]>>
func.func @half(%x: !x, %w: !w) -> !x {
  %0 = shapejit.conv over [s0, 1, s1, 64, 64, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, p, f) -> (n, p, f)> : !x
  return %0 : !x
}
