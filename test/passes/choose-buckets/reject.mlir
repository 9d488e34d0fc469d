// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-choose-buckets

// expected-error @below {{no device is described for the target "cpu"; described are "cuda:sm_90a:h200"}}
module attributes {shapejit.target = "cpu"} {}

// -----

// expected-error @below {{no device is described for the target "cuda:sm_90a:b300"}}
module attributes {shapejit.target = "cuda:sm_90a:b300"} {}

// -----

#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
!x = tensor<?x64xf64, #shapejit.shape<[s0, 64]>>
!w = tensor<64x64xf64, #shapejit.shape<[64, 64]>>
// expected-error @below {{this kernel multiplies f64, f64; this lowering takes factors of one type: bf16, f16 or f32}}
shapejit.kernel @single symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 64, 64] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  shapejit.yield %0 : !x
}

// -----

!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
// expected-error @below {{this kernel }}
shapejit.kernel @single symbols 2 (%q: !x) {
  %0 = shapejit.attention over [1, 1, s0, s0, s1, s1]
      q(%q at affine_map<(b, h, m, d) -> (m, d)> : !x)
      k(%q at affine_map<(b, h, n, d) -> (n, d)> : !x)
      v(%q at affine_map<(b, h, n, d) -> (n, d)> : !x)
      {scale = 1.0 : f64} -> affine_map<(b, h, m, d) -> (m, d)> : !x
  shapejit.yield %0 : !x
}
