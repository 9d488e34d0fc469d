// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu --shapejit-verify-shapes --split-input-file | FileCheck %s --check-prefixes=CHECK,F2
// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="max-rel-error=1e-5" --split-input-file | FileCheck %s --check-prefixes=CHECK,F4
// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="winograd=off" --split-input-file | FileCheck %s --check-prefixes=OFF

// Three taps along one dim: F(2,3) by default, F(4,3) for a larger bound.

// CHECK-LABEL: func.func @signal
// F2: %[[V:.*]] = shapejit.loop over [4, s0, (s1 + 1) floordiv 2, 256]
// F4: %[[V:.*]] = shapejit.loop over [6, s0, (s1 + 3) floordiv 4, 256]
// CHECK: tensor.extract %arg0
// F2: %[[U:.*]] = shapejit.loop over [4, 256, 256]
// F4: %[[U:.*]] = shapejit.loop over [6, 256, 256]
// CHECK-NEXT: ins(%arg1 at
// F2: shapejit.gemm over [4, s0 * ((s1 + 1) floordiv 2), 256, 256]
// F4: shapejit.gemm over [6, s0 * ((s1 + 3) floordiv 4), 256, 256]
// CHECK: accumulate f32
// CHECK: shapejit.loop over [s0, s1, 256]
// CHECK: tensor.extract
// CHECK-NOT: shapejit.conv
// CHECK: return

// OFF-LABEL: func.func @signal
// OFF: shapejit.conv

!x = tensor<?x?x256xf32, #shapejit.shape<[s0, s1, 256]>>
!w = tensor<256x256x3xf32, #shapejit.shape<[256, 256, 3]>>
!y = tensor<?x?x256xf32, #shapejit.shape<[s0, s1, 256]>>
module {
  shapejit.symbol @n {id = 0, min = 1}
  shapejit.symbol @l {id = 1, min = 1}
  func.func @signal(%x: !x, %w: !w) -> !y {
    %0 = shapejit.conv over [s0, 1, s1, 256, 256, 3] image [s1] padding [(1, 1)]
        input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
        weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
        -> affine_map<(n, g, p, f) -> (n, p, f)> : !y
    return %0 : !y
  }
}

// -----

// Columns of an image: rows are transformed, columns are passed through.

// CHECK-LABEL: func.func @columns
// F2: shapejit.loop over [4, s0, (s1 + 1) floordiv 2, s2, 256]
// F4: shapejit.loop over [6, s0, (s1 + 3) floordiv 4, s2, 256]
// F2: shapejit.loop over [4, 256, 256]
// F4: shapejit.loop over [6, 256, 256]
// F2: shapejit.gemm over [4, (s0 * s2) * ((s1 + 1) floordiv 2), 256, 256]
// F4: shapejit.gemm over [6, (s0 * s2) * ((s1 + 3) floordiv 4), 256, 256]
// CHECK: shapejit.loop over [s0, s1, s2, 256]
// CHECK-NOT: shapejit.conv
// CHECK: return

// OFF-LABEL: func.func @columns
// OFF: shapejit.conv

!x = tensor<?x?x?x256xf32, #shapejit.shape<[s0, s1, s2, 256]>>
!w = tensor<256x256x3x1xf32, #shapejit.shape<[256, 256, 3, 1]>>
!y = tensor<?x?x?x256xf32, #shapejit.shape<[s0, s1, s2, 256]>>
module {
  shapejit.symbol @n {id = 0, min = 1}
  shapejit.symbol @h {id = 1, min = 1}
  shapejit.symbol @w {id = 2, min = 1}
  func.func @columns(%x: !x, %w: !w) -> !y {
    %0 = shapejit.conv over [s0, 1, s1, s2, 256, 256, 3, 1] image [s1, s2] padding [(1, 1), (0, 0)]
        input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
        weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
        -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !y
    return %0 : !y
  }
}
