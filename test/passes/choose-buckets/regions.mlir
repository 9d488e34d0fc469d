// One region: one variant serves all sizes of both kernels.

// RUN: shapejit-opt %s --shapejit-choose-buckets="max-regions=1" | FileCheck %s --check-prefix=ONE
// ONE-LABEL: shapejit.symbol @tokens
// ONE: shapejit.dispatch @up by
// ONE-NEXT: #shapejit.bucket<[1], [4096], "{{[a-z0-9_]+}}", "{{.*}}">
// ONE-NEXT: ]
// ONE: shapejit.dispatch @down by
// ONE-NEXT: #shapejit.bucket<[1], [4096], "{{[a-z0-9_]+}}", "{{.*}}">
// ONE-NEXT: ]

// Expected sizes count for most: with one variant, that of thousands of rows serves all.

// RUN: shapejit-opt %s --shapejit-choose-buckets="max-variants=1 histogram=tokens:4096=2,4000=1 schedules=small_m_64x16x64_s9_w1_k2,swapped_256x128x64_s4_w2_stream" | FileCheck %s --check-prefix=MANY
// MANY-LABEL: shapejit.symbol @tokens
// MANY: shapejit.dispatch @up
// MANY-NEXT: #shapejit.bucket<[1], [4096], "swapped_256x128x64_s4_w2_stream"
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>
!h = tensor<?x14336xbf16, #shapejit.shape<[s0, 14336]>>
!u = tensor<14336x4096xbf16, #shapejit.shape<[14336, 4096]>>
!d = tensor<4096x14336xbf16, #shapejit.shape<[4096, 14336]>>
shapejit.symbol @tokens {id = 0, min = 1, max = 4096}
shapejit.kernel @up symbols 1 (%x: !x, %w: !u) {
  %0 = shapejit.gemm over [s0, 14336, 4096] lhs(%x at #lhs : !x) rhs(%w at #rhs : !u) -> !h
  shapejit.yield %0 : !h
}
shapejit.kernel @down symbols 1 (%x: !h, %w: !d) {
  %0 = shapejit.gemm over [s0, 4096, 14336] lhs(%x at #lhs : !h) rhs(%w at #rhs : !d) -> !x
  shapejit.yield %0 : !x
}
func.func @main(%x: !x, %u: !u, %d: !d) -> !x {
  %0 = shapejit.launch @up affine_map<()[s0] -> (s0)> (%x, %u) : (!x, !u) -> !h
  %1 = shapejit.launch @down affine_map<()[s0] -> (s0)> (%0, %d) : (!h, !d) -> !x
  return %1 : !x
}
