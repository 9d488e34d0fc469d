// RUN: not shapejit-opt %s --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{schedule=split_128x64_c1})' 2>&1 | FileCheck %s --check-prefix=ROWS
// RUN: not shapejit-opt %s --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{schedule=split_64x128_g2_s8_c1})' 2>&1 | FileCheck %s --check-prefix=MEMORY

// ROWS: error: 'split_128x64_c1' names no schedule that divides keys; one is split_64x32_g2_s6_c1: 64 rows by 32, 64, 128 or 256 keys; 1, 2 or 4 groups; up to 8 stages; 1 to 4 CTAs
// MEMORY: error: as split_64x128_g2_s8_c1, this kernel needs {{[0-9]+}} bytes of shared memory with this schedule
#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 64, 64] q(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) k(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) v(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
  shapejit.yield %y : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
}
