// RUN: shapejit-opt %s --shapejit-round-factors=convolutions=true --shapejit-unfold-convolutions --split-input-file | FileCheck %s --check-prefixes=CHECK,ROUNDED
// RUN: shapejit-opt %s --shapejit-unfold-convolutions --split-input-file | FileCheck %s --check-prefixes=CHECK,EXACT

// What TMA reads in im2col mode stays, whether its factors are rounded to tf32 or not. Filters will
// be packed.

// CHECK-LABEL: func.func @stays
// CHECK: shapejit.conv
// CHECK-NOT: shapejit.gemm
#x = affine_map<(n, g, p, q, c) -> (n, p, q, c)>
!x = tensor<?x?x?x32xf32, #shapejit.shape<[s0, s1, s2, 32]>>
!w = tensor<64x32x3x3xf32, #shapejit.shape<[64, 32, 3, 3]>>
!y = tensor<?x?x?x64xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, s2, 64]>>
func.func @stays(%x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !y {
  %0 = shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, s2, 64, 32, 3, 3] image [s1, s2] stride [2, 1] padding [(1, 1), (1, 1)]
      input(%x at #x : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
      -> #x : !y
  return %0 : !y
}

// -----

// Filters that are no weight keep the layout that they have; here channels are not neighbours.

// CHECK-LABEL: func.func @computed
// CHECK: shapejit.gemm
// ROUNDED: rhs({{.*}}) {shapejit.factors = tf32}
// EXACT-NOT: shapejit.factors
// CHECK-NOT: shapejit.conv
#x = affine_map<(n, g, p, c) -> (n, p, c)>
!x = tensor<?x?x32xf32, #shapejit.shape<[s0, s1, 32]>>
!w = tensor<32x32x3xf32, #shapejit.shape<[32, 32, 3]>>
func.func @computed(%x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "input"}) -> !x {
  %0 = shapejit.conv over [s0, 1, s1, 32, 32, 3] image [s1] padding [(1, 1)]
      input(%x at #x : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> #x : !x
  return %0 : !x
}

// -----

// Three channels are no multiple of 16 bytes.

// CHECK-LABEL: func.func @few
// CHECK: shapejit.gemm
// CHECK-NOT: shapejit.conv
#x = affine_map<(n, g, p, c) -> (n, p, c)>
!x = tensor<?x?x3xf32, #shapejit.shape<[s0, s1, 3]>>
!w = tensor<32x3x3xf32, #shapejit.shape<[32, 3, 3]>>
!y = tensor<?x?x32xf32, #shapejit.shape<[s0, s1, 32]>>
func.func @few(%x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !y {
  %0 = shapejit.conv over [s0, 1, s1, 32, 3, 3] image [s1] padding [(1, 1)]
      input(%x at #x : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> #x : !y
  return %0 : !y
}

// -----

// An image with its channels first, through a view of one that has them last, which is what is in
// memory; and one that is so itself.

// CHECK-LABEL: func.func @viewed
// CHECK: shapejit.conv
// CHECK: shapejit.gemm
// CHECK-NOT: shapejit.conv
#x = affine_map<(n, g, p, c) -> (n, c, p)>
#y = affine_map<(n, g, p, c) -> (n, p, c)>
!x = tensor<?x?x32xf32, #shapejit.shape<[s0, s1, 32]>>
!v = tensor<?x32x?xf32, #shapejit.shape<[s0, 32, s1]>>
!w = tensor<32x32x3xf32, #shapejit.shape<[32, 32, 3]>>
func.func @viewed(%x: !x {shapejit.kind = "input"}, %z: !v {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> (!x, !x) {
  %v = shapejit.view %x at affine_map<(n, c, p) -> (n, p, c)> : !x -> !v
  %0 = shapejit.conv over [s0, 1, s1, 32, 32, 3] image [s1] padding [(1, 1)]
      input(%v at #x : !v) weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w) -> #y : !x
  %1 = shapejit.conv over [s0, 1, s1, 32, 32, 3] image [s1] padding [(1, 1)]
      input(%z at #x : !v) weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w) -> #y : !x
  return %0, %1 : !x, !x
}
