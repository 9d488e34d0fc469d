// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu=parameters=by-name 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu=schedule=persistent_128 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu=schedule=persistent_128x256x64_s5_w2 2>&1 | FileCheck %s --check-prefix=MEMORY
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu=schedule=persistent_256x256x64_s2_w2 2>&1 | FileCheck %s --check-prefix=REGISTERS

// FORM: error: parameters must be one of by-value, block, got 'by-name'
// SCHEDULE: error: 'persistent_128' names no gemm schedule
// MEMORY: error: as persistent_128x256x64_s5_w2, this kernel needs {{.*}} bytes of shared memory with this schedule, a CTA has 231424; use fewer stages or smaller tiles
// REGISTERS: error: as persistent_256x256x64_s2_w2, this kernel needs 256 registers for the sums of a thread with this schedule; there are 184. Use smaller tiles or more consumers
#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
shapejit.kernel @k symbols 1 (%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, %w: tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) {
  %y = shapejit.gemm over [s0, 64, 64] lhs(%x at #x : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>) rhs(%w at #w : tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  shapejit.yield %y : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
}
