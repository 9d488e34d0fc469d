// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu --shapejit-verify-shapes | FileCheck %s --check-prefixes=CHECK,F2
// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="max-rel-error=1e-5" | FileCheck %s --check-prefixes=CHECK,F4
// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="winograd=off" | FileCheck %s --check-prefixes=OFF

// Two transforms and a batch of products. The default bound allows F(2x2,3x3), a larger one F(4x4,3x3).

// CHECK-LABEL: func.func @layer
// F2: %[[V:.*]] = shapejit.loop over [4, 4, s0, (s1 + 1) floordiv 2, (s2 + 1) floordiv 2, 128]
// F4: %[[V:.*]] = shapejit.loop over [6, 6, s0, (s1 + 3) floordiv 4, (s2 + 3) floordiv 4, 128]
// CHECK: tensor.extract %arg0
// F2: %[[U:.*]] = shapejit.loop over [4, 4, 256, 128]
// F4: %[[U:.*]] = shapejit.loop over [6, 6, 256, 128]
// CHECK-NEXT: ins(%arg1 at
// F2: %[[M:.*]] = shapejit.gemm over [16, {{.*}}, 256, 128]
// F4: %[[M:.*]] = shapejit.gemm over [36, {{.*}}, 256, 128]
// CHECK: accumulate f32
// CHECK: shapejit.loop over [s0, s1, s2, 256]
// CHECK: tensor.extract
// CHECK-NOT: shapejit.conv
// CHECK: return

// OFF-LABEL: func.func @layer
// OFF: shapejit.conv

!x = tensor<?x?x?x128xf32, #shapejit.shape<[s0, s1, s2, 128]>>
!w = tensor<256x128x3x3xf32, #shapejit.shape<[256, 128, 3, 3]>>
!y = tensor<?x?x?x256xf32, #shapejit.shape<[s0, s1, s2, 256]>>
module {
  shapejit.symbol @n {id = 0, min = 1}
  shapejit.symbol @h {id = 1, min = 1}
  shapejit.symbol @w {id = 2, min = 1}
  func.func @layer(%x: !x, %w: !w) -> !y {
    %0 = shapejit.conv over [s0, 1, s1, s2, 256, 128, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
        input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
        weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
        -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !y
    return %0 : !y
  }
}
