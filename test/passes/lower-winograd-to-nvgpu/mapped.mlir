// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu --split-input-file | FileCheck %s --check-prefixes=CHECK,AUTO
// RUN: shapejit-opt %s --shapejit-lower-winograd-to-nvgpu="winograd=force" --split-input-file | FileCheck %s --check-prefixes=CHECK,FORCE

// What tensor maps can read has direct kernels on tensor cores: it is rewritten by force only.

// CHECK-LABEL: func.func @mapped
// AUTO-COUNT-2: shapejit.conv
// AUTO-NOT: shapejit.gemm
// FORCE-COUNT-2: shapejit.gemm
// FORCE-NOT: shapejit.conv
!x = tensor<?x?x?x256xf32, #shapejit.shape<[s0, s1, s2, 256]>>
!w = tensor<256x256x3x3xf32, #shapejit.shape<[256, 256, 3, 3]>>
!y = tensor<?x?x?x256xf32, #shapejit.shape<[s0, s1, s2, 256]>>
!s = tensor<?x?x256xf32, #shapejit.shape<[s0, s1, 256]>>
!w3 = tensor<256x256x3xf32, #shapejit.shape<[256, 256, 3]>>
!t = tensor<?x?x256xf32, #shapejit.shape<[s0, s1, 256]>>
func.func @mapped(
    %x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"},
    %s: !s {shapejit.kind = "input"}, %w3: !w3 {shapejit.kind = "weight"}) -> (!y, !t) {
  %0 = shapejit.conv over [s0, 1, s1, s2, 256, 256, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !y
  %1 = shapejit.conv over [s0, 1, s1, 256, 256, 3] image [s1] padding [(1, 1)]
      input(%s at affine_map<(n, g, p, c) -> (n, p, c)> : !s)
      weight(%w3 at affine_map<(g, f, c, t) -> (f, c, t)> : !w3)
      -> affine_map<(n, g, p, f) -> (n, p, f)> : !t
  return %0, %1 : !y, !t
}

// -----

// No maps read an image with its channels first.

// CHECK-LABEL: func.func @channels_first
// CHECK-COUNT-2: shapejit.gemm
// CHECK-NOT: shapejit.conv
!x = tensor<?x256x?x?xf32, #shapejit.shape<[s0, 256, s1, s2]>>
!w = tensor<256x256x3x3xf32, #shapejit.shape<[256, 256, 3, 3]>>
!y = tensor<?x256x?x?xf32, #shapejit.shape<[s0, 256, s1, s2]>>
!s = tensor<?x256x?xf32, #shapejit.shape<[s0, 256, s1]>>
!w3 = tensor<256x256x3xf32, #shapejit.shape<[256, 256, 3]>>
!t = tensor<?x256x?xf32, #shapejit.shape<[s0, 256, s1]>>
func.func @channels_first(
    %x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"},
    %s: !s {shapejit.kind = "input"}, %w3: !w3 {shapejit.kind = "weight"}) -> (!y, !t) {
  %0 = shapejit.conv over [s0, 1, s1, s2, 256, 256, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, c, p, q)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, f, p, q)> : !y
  %1 = shapejit.conv over [s0, 1, s1, 256, 256, 3] image [s1] padding [(1, 1)]
      input(%s at affine_map<(n, g, p, c) -> (n, c, p)> : !s)
      weight(%w3 at affine_map<(g, f, c, t) -> (f, c, t)> : !w3)
      -> affine_map<(n, g, p, f) -> (n, f, p)> : !t
  return %0, %1 : !y, !t
}

// -----

// Nor one whose pixels are not a multiple of 16 bytes apart; and filters that come with a call are not packed.

// CHECK-LABEL: func.func @unmapped
// CHECK-COUNT-2: shapejit.gemm
// CHECK-NOT: shapejit.conv
!x = tensor<?x?x?x130xf32, #shapejit.shape<[s0, s1, s2, 130]>>
!w = tensor<256x130x3x3xf32, #shapejit.shape<[256, 130, 3, 3]>>
!i = tensor<?x?x?x128xf32, #shapejit.shape<[s0, s1, s2, 128]>>
!v = tensor<256x128x3x3xf32, #shapejit.shape<[256, 128, 3, 3]>>
!y = tensor<?x?x?x256xf32, #shapejit.shape<[s0, s1, s2, 256]>>
func.func @unmapped(
    %x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"},
    %i: !i {shapejit.kind = "input"}, %v: !v {shapejit.kind = "input"}) -> (!y, !y) {
  %0 = shapejit.conv over [s0, 1, s1, s2, 256, 130, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !y
  %1 = shapejit.conv over [s0, 1, s1, s2, 256, 128, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
      input(%i at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !i)
      weight(%v at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !v)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, f)> : !y
  return %0, %1 : !y, !y
}

// -----

// A stage has 32 channels of float32, and 64 of 16 bits: maps read no smaller groups.

// CHECK-LABEL: func.func @groups
// AUTO: shapejit.conv
// AUTO-NOT: shapejit.gemm
// FORCE: shapejit.gemm
!x = tensor<?x?x?x128xf32, #shapejit.shape<[s0, s1, s2, 128]>>
!w = tensor<128x32x3x3xf32, #shapejit.shape<[128, 32, 3, 3]>>
func.func @groups(%x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !x {
  %0 = shapejit.conv over [s0, 4, s1, s2, 32, 32, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, g * 32 + c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (g * 32 + f, c, t, u)> : !w)
      -> affine_map<(n, g, p, q, f) -> (n, p, q, g * 32 + f)> : !x
  return %0 : !x
}
