// RUN: shapejit-opt %s --split-input-file --shapejit-choose-buckets | FileCheck %s

// The first layer of an image network: patches that windows share, whatever the size.
// CHECK: shapejit.kernel @stem
// CHECK: shapejit.dispatch @stem by #{{.*}} [
// CHECK-NEXT: #shapejit.bucket<[1], [50176], "patch_64x128x16_s2_w1", "few channels: pixels of 3, which windows share in shared memory">
// CHECK-NEXT: ]
#x = affine_map<(n, g, p, q, c) -> (n, p, q, c)>
#w = affine_map<(g, f, c, r, s) -> (f, r, s, c)>
!x = tensor<?x?x?x3xbf16, #shapejit.shape<[s0, s1, s2, 3]>>
!y = tensor<?x?x?x64xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, (s2 - 1) floordiv 2 + 1, 64]>>
!w = tensor<64x7x7x3xbf16, #shapejit.shape<[64, 7, 7, 3]>>
shapejit.symbol @n {id = 0, min = 1, max = 4}
shapejit.symbol @h {id = 1, min = 1, max = 224}
shapejit.symbol @w {id = 2, min = 1, max = 224}
shapejit.kernel @stem symbols 3 (%x: !x, %w: !w) {
  %0 = shapejit.conv over [s0, 1, (s1 - 1) floordiv 2 + 1, (s2 - 1) floordiv 2 + 1, 64, 3, 7, 7] image [s1, s2] stride [2, 2] padding [(3, 3), (3, 3)]
    input(%x at #x : !x) weight(%w at #w : !w) -> #x : !y
  shapejit.yield %0 : !y
}
func.func @main(%x: !x, %w: !w) -> !y {
  %0 = shapejit.launch @stem affine_map<()[s0, s1, s2] -> (s0, s1, s2)> (%x, %w) : (!x, !w) -> !y
  return %0 : !y
}

// -----

// So many filters that they find no room in shared memory are gathered.
// CHECK: shapejit.kernel @patches
// CHECK: shapejit.dispatch @patches by
// CHECK-NEXT: "unaligned_64x64x64_s3_w1", "no tensor maps: {{.*}}">
#x = affine_map<(n, g, p, q, c) -> (n, p, q, c)>
#w = affine_map<(g, f, c, r, s) -> (f, r, s, c)>
!x = tensor<?x224x224x3xbf16, #shapejit.shape<[s0, 224, 224, 3]>>
!y = tensor<?x14x14x768xbf16, #shapejit.shape<[s0, 14, 14, 768]>>
!w = tensor<768x16x16x3xbf16, #shapejit.shape<[768, 16, 16, 3]>>
shapejit.symbol @n {id = 0, min = 1, max = 4}
shapejit.kernel @patches symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.conv over [s0, 1, 14, 14, 768, 3, 16, 16] image [224, 224] stride [16, 16]
    input(%x at #x : !x) weight(%w at #w : !w) -> #x : !y
  shapejit.yield %0 : !y
}
func.func @main(%x: !x, %w: !w) -> !y {
  %0 = shapejit.launch @patches affine_map<()[s0] -> (s0)> (%x, %w) : (!x, !w) -> !y
  return %0 : !y
}
