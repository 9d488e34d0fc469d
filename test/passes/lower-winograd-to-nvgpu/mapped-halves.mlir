// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="max-rel-error=8e-3" | FileCheck %s

// A stage has 64 channels of 16 bits, so that maps read groups of 64, and none of 32: those have no
// direct kernels by maps.

// CHECK-LABEL: func.func @wide
// CHECK: shapejit.conv
// CHECK-LABEL: func.func @narrow
// CHECK: shapejit.gemm
!x = tensor<?x?x?x128xbf16, #shapejit.shape<[s0, s1, s2, 128]>>
!w = tensor<128x64x3x3xbf16, #shapejit.shape<[128, 64, 3, 3]>>
!v = tensor<128x32x3x3xbf16, #shapejit.shape<[128, 32, 3, 3]>>
func.func @wide(%x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !x {
  %0 = shapejit.conv over [s0, 2, s1, s2, 64, 64, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, g * 64 + c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (g * 64 + f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, g * 64 + f)> : !x
  return %0 : !x
}
func.func @narrow(%x: !x {shapejit.kind = "input"}, %v: !v {shapejit.kind = "weight"}) -> !x {
  %0 = shapejit.conv over [s0, 4, s1, s2, 32, 32, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, g * 32 + c)> : !x)
      weight(%v at affine_map<(g, f, c, t, u) -> (g * 32 + f, c, t, u)> : !v)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, g * 32 + f)> : !x
  return %0 : !x
}
