// RUN: shapejit-opt %s --shapejit-choose-buckets | FileCheck %s

// Products of float32 are computed on the CUDA cores, whatever strides they have.

// CHECK-LABEL: shapejit.kernel @square
// CHECK: shapejit.dispatch @square by #{{.*}} [
// CHECK-NEXT: #shapejit.bucket<[1], [{{[0-9]+}}], "simt_{{[^"]*}}", "{{.*}}; next simt_{{.*}}">
// CHECK: #shapejit.bucket<[{{[0-9]+}}], [?], "simt_128x64x32_s3_w1{{[^"]*}}", "at {{.*}} us, multiply-adds
// CHECK-NOT: shapejit.bucket
// CHECK-LABEL: shapejit.kernel @odd
// CHECK: shapejit.dispatch @odd by
// CHECK-NEXT: #shapejit.bucket<[0], {{.*}}, "simt_
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x4096xf32, #shapejit.shape<[s0, 4096]>>
!w = tensor<4096x4096xf32, #shapejit.shape<[4096, 4096]>>
!u = tensor<?x99xf32, #shapejit.shape<[s0, 99]>>
!v = tensor<64x99xf32, #shapejit.shape<[64, 99]>>
!y = tensor<?x64xf32, #shapejit.shape<[s0, 64]>>
module attributes {shapejit.target = "cuda:sm_90a:h200"} {
  shapejit.symbol @rows {id = 0, min = 1}
  shapejit.kernel @square symbols 1 (%x: !x, %w: !w) {
    %0 = shapejit.gemm over [s0, 4096, 4096] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
    shapejit.yield %0 : !x
  }
  shapejit.kernel @odd symbols 1 (%x: !u, %w: !v) {
    %0 = shapejit.gemm over [s0, 64, 99] lhs(%x at #lhs : !u) rhs(%w at #rhs : !v) -> !y
    shapejit.yield %0 : !y
  }
  func.func @main(%x: !x, %w: !w) -> !x {
    %0 = shapejit.launch @square affine_map<()[s0] -> (s0)> (%x, %w) : (!x, !w) -> !x
    return %0 : !x
  }
}
