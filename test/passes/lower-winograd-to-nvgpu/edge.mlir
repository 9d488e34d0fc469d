// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="winograd=force" --split-input-file | FileCheck %s

// What the algorithm does not compute stays: strides.

// CHECK-LABEL: func.func @strided
// CHECK: shapejit.conv
!x = tensor<?x?x?x64xf32, #shapejit.shape<[s0, s1, s2, 64]>>
!w = tensor<64x64x3x3xf32, #shapejit.shape<[64, 64, 3, 3]>>
!y = tensor<?x?x?x64xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, s2, 64]>>
func.func @strided(%x: !x, %w: !w) -> !y {
  %0 = shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, s2, 64, 64, 3, 3] image [s1, s2] stride [2, 1] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !y
  return %0 : !y
}

// -----

// float16 without a bound that allows its error, even by force.

// CHECK-LABEL: func.func @half
// CHECK: shapejit.conv
!x = tensor<?x?x?x64xf16, #shapejit.shape<[s0, s1, s2, 64]>>
!w = tensor<64x64x3x3xf16, #shapejit.shape<[64, 64, 3, 3]>>
func.func @half(%x: !x, %w: !w) -> !x {
  %0 = shapejit.conv over [s0, 1, s1, s2, 64, 64, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !x
  return %0 : !x
}

// -----

// Groups are a batch dim of the products; few channels only by force.

// CHECK-LABEL: func.func @groups
// CHECK: shapejit.loop over [4, 4, 3, s0, {{.*}}, 2]
// CHECK: shapejit.gemm over [16, 3, {{.*}}, 5, 2]
// CHECK: shapejit.loop over [s0, 3, s1 - 2, s2 - 2, 5]
!x = tensor<?x6x?x?xf32, #shapejit.shape<[s0, 6, s1, s2]>>
!w = tensor<15x2x3x3xf32, #shapejit.shape<[15, 2, 3, 3]>>
!y = tensor<?x15x?x?xf32, #shapejit.shape<[s0, 15, s1 - 2, s2 - 2]>>
func.func @groups(%x: !x, %w: !w) -> !y {
  %0 = shapejit.conv over [s0, 3, s1 - 2, s2 - 2, 5, 2, 3, 3] image [s1, s2]
      input(%x at affine_map<(n, g, p, q, c) -> (n, g * 2 + c, p, q)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (g * 5 + f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, g * 5 + f, p, q)> : !y
  return %0 : !y
}
