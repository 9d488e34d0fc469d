// RUN: shapejit-opt %s --shapejit-choose-buckets | FileCheck %s

// Few rows of float32 are multiplied on the CUDA cores, more of them in two parts on the tensor
// cores; what tensor maps do not read on the CUDA cores, whatever strides it has.

// CHECK-LABEL: shapejit.kernel @square
// CHECK: shapejit.dispatch @square by #{{.*}} [
// CHECK-NEXT: #shapejit.bucket<[1], [{{[0-9]+}}], "simt_{{[^"]*}}", "{{.*}} us, memory; next small_m_{{.*}}_tf32x3 {{.*}}">
// CHECK-NOT: "simt_
// CHECK: #shapejit.bucket<[{{[0-9]+}}], [?], "persistent_128x128x32_s5_w2_tf32x3", "at {{.*}} us, tensor cores
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
