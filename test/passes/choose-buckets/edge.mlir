// RUN: shapejit-opt %s --split-input-file --shapejit-choose-buckets="schedules=small_m_64x16x64_s9_w1_k2,swapped_256x128x64_s4_w2_stream" | FileCheck %s

// No free size: no axes, one bucket.

// CHECK-LABEL: shapejit.kernel @constant
// CHECK: shapejit.dispatch @constant by #[[NONE:.*]] [
// CHECK-NEXT: #shapejit.bucket<[], [], "small_m_64x16x64_s9_w1_k2", "{{[0-9.]+}} us, {{.*}}">
// CHECK-NEXT: ]
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<1x4096xbf16, #shapejit.shape<[1, 4096]>>
!w = tensor<4096x4096xbf16, #shapejit.shape<[4096, 4096]>>
shapejit.kernel @constant symbols 0 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [1, 4096, 4096] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  shapejit.yield %0 : !x
}

// -----

// Nothing is known of the sizes of a kernel that is not launched: from 0 to any. A decision made
// before is made anew.

// CHECK-LABEL: shapejit.kernel @unbounded
// CHECK: shapejit.dispatch @unbounded by
// CHECK-NEXT: #shapejit.bucket<[0], [{{[0-9]+}}], "small_m_64x16x64_s9_w1_k2"
// CHECK-NEXT: #shapejit.bucket<[{{[0-9]+}}], [?], "swapped_256x128x64_s4_w2_stream"
// CHECK-NEXT: ]
// CHECK-NOT: shapejit.dispatch
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>
!w = tensor<4096x4096xbf16, #shapejit.shape<[4096, 4096]>>
shapejit.kernel @unbounded symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 4096, 4096] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  shapejit.yield %0 : !x
}
shapejit.dispatch @unbounded by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[0], [?], "old", "">]

// -----

// Rows of 100 elements are no multiple of 16 bytes: no tensor maps.

// CHECK-LABEL: shapejit.dispatch @odd by
// CHECK-NEXT: #shapejit.bucket<[0], [?], "unaligned_{{[0-9a-z_]+}}", "no tensor maps: reads argument 0 with a stride of 100 elements; TMA needs multiples of 8">
// CHECK-NEXT: ]
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x100xbf16, #shapejit.shape<[s0, 100]>>
!w = tensor<64x100xbf16, #shapejit.shape<[64, 100]>>
!y = tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
shapejit.kernel @odd symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 64, 100] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !y
  shapejit.yield %0 : !y
}

// -----

// A free size as a stride: its divisor decides. The same kernel text, launched by two modules, is
// for any sizes in one and for multiples of 8 in the other.

// CHECK-LABEL: shapejit.symbol @any
// CHECK: shapejit.dispatch @scores by
// CHECK-NEXT: #shapejit.bucket<[1, 1], [64, ?], "unaligned_{{[0-9a-z_]+}}", "no tensor maps: reads argument 0 with a stride of s1 elements, not known to be a multiple of 8">
// CHECK-NEXT: ]
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
!w = tensor<64x?xbf16, #shapejit.shape<[64, s1]>>
!y = tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
shapejit.symbol @any {id = 0, min = 1, max = 64}
shapejit.symbol @depth {id = 1, min = 1}
shapejit.kernel @scores symbols 2 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 64, s1] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !y
  shapejit.yield %0 : !y
}
func.func @main(%x: !x, %w: !w) -> !y {
  %0 = shapejit.launch @scores affine_map<()[s0, s1] -> (s0, s1)> (%x, %w) : (!x, !w) -> !y
  return %0 : !y
}

// -----

// CHECK-LABEL: shapejit.symbol @eighths
// CHECK: shapejit.dispatch @scores by #[[BOTH:.*]] [
// CHECK-NEXT: #shapejit.bucket<[1, 8], [{{[0-9]+}}, {{[0-9?]+}}], "{{(small_m|swapped).*}}", "at {{[0-9]+}}, {{[0-9]+}}: {{.*}}">
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
!w = tensor<64x?xbf16, #shapejit.shape<[64, s1]>>
!y = tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
shapejit.symbol @rows {id = 0, min = 1, max = 64}
shapejit.symbol @eighths {id = 1, min = 8, divisor = 8}
shapejit.kernel @scores symbols 2 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 64, s1] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !y
  shapejit.yield %0 : !y
}
func.func @main(%x: !x, %w: !w) -> !y {
  %0 = shapejit.launch @scores affine_map<()[s0, s1] -> (s0, s1)> (%x, %w) : (!x, !w) -> !y
  return %0 : !y
}
