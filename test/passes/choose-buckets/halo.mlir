// RUN: shapejit-opt %s --split-input-file --shapejit-choose-buckets | FileCheck %s

// A window that moves from pixel to pixel: tiles with a halo, whose filters stay where they are few.
// With few pixels there are other tiles.
// CHECK: shapejit.kernel @conv0
// CHECK: shapejit.dispatch @conv0 by #{{.*}} [
// CHECK: #shapejit.bucket<[{{.*}}], [16777216], "halo_64x{{[0-9]+}}x64_s9_w2_resident", "at {{.*}} us, {{.*}}; next {{.*}}">
#x = affine_map<(n, g, p, q, c) -> (n, p, q, c)>
#w = affine_map<(g, f, c, r, s) -> (f, r, s, c)>
!x = tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>
!w = tensor<64x3x3x64xbf16, #shapejit.shape<[64, 3, 3, 64]>>
shapejit.symbol @n {id = 0, min = 1, max = 16}
shapejit.symbol @h {id = 1, min = 1, max = 1024}
shapejit.symbol @w {id = 2, min = 1, max = 1024}
shapejit.kernel @conv0 symbols 3 (%x: !x, %w: !w) {
  %0 = shapejit.conv over [s0, 1, s1, s2, 64, 64, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
    input(%x at #x : !x) weight(%w at #w : !w) -> #x : !x
  shapejit.yield %0 : !x
}
func.func @main(%x: !x, %w: !w) -> !x {
  %0 = shapejit.launch @conv0 affine_map<()[s0, s1, s2] -> (s0, s1, s2)> (%x, %w) : (!x, !w) -> !x
  return %0 : !x
}

// -----

// One that moves by two pixels has none.
// CHECK: shapejit.kernel @strided
// CHECK: shapejit.dispatch @strided
// CHECK-NOT: halo
// CHECK: func.func @main
#x = affine_map<(n, g, p, q, c) -> (n, p, q, c)>
#w = affine_map<(g, f, c, r, s) -> (f, r, s, c)>
!x = tensor<?x64x64x64xbf16, #shapejit.shape<[s0, 64, 64, 64]>>
!y = tensor<?x32x32x64xbf16, #shapejit.shape<[s0, 32, 32, 64]>>
!w = tensor<64x3x3x64xbf16, #shapejit.shape<[64, 3, 3, 64]>>
shapejit.symbol @n {id = 0, min = 1}
shapejit.kernel @strided symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.conv over [s0, 1, 32, 32, 64, 64, 3, 3] image [64, 64] stride [2, 2] padding [(1, 1), (1, 1)]
    input(%x at #x : !x) weight(%w at #w : !w) -> #x : !y
  shapejit.yield %0 : !y
}
func.func @main(%x: !x, %w: !w) -> !y {
  %0 = shapejit.launch @strided affine_map<()[s0] -> (s0)> (%x, %w) : (!x, !w) -> !y
  return %0 : !y
}
