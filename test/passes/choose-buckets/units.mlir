// Layers of a network have 64 or 16 times as many pixels as its last one, by the same symbol: they
// share an axis, which counts what they have in common, and with it their breakpoints.

// RUN: shapejit-opt %s --shapejit-choose-buckets="max-regions=2" | FileCheck %s
// CHECK-DAG: #[[FIRST:.*]] = affine_map<()[s0] -> (s0 floordiv 64)>
// CHECK-DAG: #[[LATER:.*]] = affine_map<()[s0] -> (s0 floordiv 16)>
// CHECK: shapejit.dispatch @first by #[[FIRST]] [
// CHECK-NEXT: #shapejit.bucket<[1], [[[END:[0-9]+]]], "{{[a-z0-9_]+}}", "{{.*}}">
// CHECK-NEXT: #shapejit.bucket<[{{[0-9]+}}], [4096], "{{[a-z0-9_]+}}", "{{.*}}">
// CHECK-NEXT: ]
// CHECK: shapejit.dispatch @later by #[[LATER]] [
// CHECK-NEXT: #shapejit.bucket<[1], [[[END]]], "{{[a-z0-9_]+}}", "{{.*}}">
// CHECK-NEXT: #shapejit.bucket<[{{[0-9]+}}], [4096], "{{[a-z0-9_]+}}", "{{.*}}">
// CHECK-NEXT: ]
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x256xbf16, #shapejit.shape<[s0, 256]>>
!w = tensor<256x256xbf16, #shapejit.shape<[256, 256]>>
!y = tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>
!v = tensor<1024x1024xbf16, #shapejit.shape<[1024, 1024]>>
!many = tensor<?x256xbf16, #shapejit.shape<[s0 * 64, 256]>>
!few = tensor<?x1024xbf16, #shapejit.shape<[s0 * 16, 1024]>>
shapejit.symbol @pixels {id = 0, min = 1, max = 4096}
shapejit.kernel @first symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 256, 256] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  shapejit.yield %0 : !x
}
shapejit.kernel @later symbols 1 (%x: !y, %w: !v) {
  %0 = shapejit.gemm over [s0, 1024, 1024] lhs(%x at #lhs : !y) rhs(%w at #rhs : !v) -> !y
  shapejit.yield %0 : !y
}
func.func @main(%x: !many, %w: !w, %y: !few, %v: !v) -> (!many, !few) {
  %0 = shapejit.launch @first affine_map<()[s0] -> (s0 * 64)> (%x, %w) : (!many, !w) -> !many
  %1 = shapejit.launch @later affine_map<()[s0] -> (s0 * 16)> (%y, %v) : (!few, !v) -> !few
  return %0, %1 : !many, !few
}
