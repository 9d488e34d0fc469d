// RUN: not shapejit-opt %s --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{parameters=nowhere})' 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not shapejit-opt %s --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{schedule=fast})' 2>&1 | FileCheck %s --check-prefix=SCHEDULE

// FORM: error: parameters must be one of by-value, block, got 'nowhere'
// SCHEDULE: error: 'fast' names no attention schedule; one is tiles_64x64_c4: 64, 128, 192 or 256 queries by 32, 64, 128 or 256 keys
#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 64, 64] q(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) k(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) v(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
  shapejit.yield %y : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
}
