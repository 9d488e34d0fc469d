// RUN: shapejit-opt %s --split-input-file --shapejit-choose-buckets="schedules=small_m_64x16x64_s9_w1_k2,swapped_256x128x64_s4_w2_stream" | FileCheck %s
// RUN: shapejit-opt %s --split-input-file --shapejit-choose-buckets | FileCheck %s --check-prefix=ALL

// Few rows are bound by memory and want a small tile, many rows a large one. Each size that the
// launch can bind is in one bucket.

// CHECK-LABEL: shapejit.kernel @linear
// CHECK: shapejit.dispatch @linear by #{{.*}} [
// CHECK-NEXT: #shapejit.bucket<[1], [[[#SMALL:]]], "small_m_64x16x64_s9_w1_k2", "at {{[0-9]+}}: {{[0-9.]+}} us, {{[a-z ]+}}; {{next|faster alone}} swapped_256x128x64_s4_w2_stream {{[0-9.]+}} us">,
// CHECK-NEXT: #shapejit.bucket<[[[#SMALL+1]]], [512], "swapped_256x128x64_s4_w2_stream", "at {{[0-9]+}}: {{[0-9.]+}} us, tensor cores; next small_m_64x16x64_s9_w1_k2 {{[0-9.]+}} us">
// CHECK-NEXT: ]
// CHECK-NEXT: func.func @main

// With all candidates there are more buckets; they still begin and end with the range.
// ALL-LABEL: shapejit.dispatch @linear
// ALL-NEXT: #shapejit.bucket<[1], [[[#FIRST:]]], "small_m_
// ALL-NEXT: #shapejit.bucket<[[[#FIRST+1]]],
// ALL: , [512], "{{.*}}">
// ALL-NEXT: ]
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>
!w = tensor<4096x4096xbf16, #shapejit.shape<[4096, 4096]>>
module attributes {shapejit.target = "cuda:sm_90a:h200"} {
  shapejit.symbol @tokens {id = 0, min = 1, max = 512}
  shapejit.kernel @linear symbols 1 (%x: !x, %w: !w) {
    %0 = shapejit.gemm over [s0, 4096, 4096] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
    shapejit.yield %0 : !x
  }
  func.func @main(%x: !x, %w: !w) -> !x {
    %0 = shapejit.launch @linear affine_map<()[s0] -> (s0)> (%x, %w) : (!x, !w) -> !x
    return %0 : !x
  }
}

// -----

// A module without a target is for the device that was measured. Sizes are the launch's: a kernel
// of one symbol that a product of two is bound to has one axis, up to the product of their ranges.

// CHECK-LABEL: shapejit.symbol @batch
// CHECK: shapejit.dispatch @linear by #{{.*}} [
// CHECK-NEXT: #shapejit.bucket<[2], [{{[0-9]+}}], "small_m_64x16x64_s9_w1_k2"
// CHECK-NEXT: #shapejit.bucket<[{{[0-9]+}}], [2048], "swapped_256x128x64_s4_w2_stream"
// CHECK-NEXT: ]
// ALL-LABEL: shapejit.symbol @batch
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x4096xf16, #shapejit.shape<[s0, 4096]>>
!x3 = tensor<?x?x4096xf16, #shapejit.shape<[s0, s1, 4096]>>
!w = tensor<4096x4096xf16, #shapejit.shape<[4096, 4096]>>
shapejit.symbol @batch {id = 0, min = 1, max = 4}
shapejit.symbol @seq {id = 1, min = 2, max = 512}
shapejit.kernel @linear symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 4096, 4096] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  shapejit.yield %0 : !x
}
func.func @main(%x: !x3, %w: !w) -> !x3 {
  %0 = shapejit.launch @linear affine_map<()[s0, s1] -> (s0 * s1)> (%x, %w) : (!x3, !w) -> !x3
  return %0 : !x3
}
