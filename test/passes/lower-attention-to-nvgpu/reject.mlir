// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-attention-to-nvgpu

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// An architecture without a family of kernels.
// expected-error@+1 {{this module has the target "cuda:sm_80", for which there are no gemm kernels; set shapejit.target to one of "cuda:sm_90a"}}
module attributes {shapejit.target = "cuda:sm_80"} {
  shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {
    %y = shapejit.attention over [2, 3, s0, s0, 64, 64] q(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) k(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) v(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
    shapejit.yield %y : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
  }
}

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// A variant that is no schedule.
// expected-error@+1 {{'tiles_64x48_c2' names no attention schedule; one is tiles_64x64_c4: 64, 128, 192 or 256 queries by 32, 64, 128 or 256 keys; 1, 2 or 4 groups, with up to 4 times 64 queries together; 1 to 16 CTAs}}
module {
  shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {
    %y = shapejit.attention over [2, 3, s0, s0, 64, 64] q(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) k(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) v(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
    shapejit.yield %y : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
  }
  shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "tiles_64x48_c2", "odd">]
}

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// Types that the tensor cores do not take here.
// expected-error@+1 {{as tiles_64x64_c2, this kernel has queries, keys, values and result of f32, f32, f32, f32; attention on a GPU takes bf16 or f16, the same for all}}
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x64xf32, #shapejit.shape<[2, 3, s0, 64]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 64, 64] q(%q at #q : tensor<2x3x?x64xf32, #shapejit.shape<[2, 3, s0, 64]>>) k(%q at #q : tensor<2x3x?x64xf32, #shapejit.shape<[2, 3, s0, 64]>>) v(%q at #q : tensor<2x3x?x64xf32, #shapejit.shape<[2, 3, s0, 64]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xf32, #shapejit.shape<[2, 3, s0, 64]>>
  shapejit.yield %y : tensor<2x3x?x64xf32, #shapejit.shape<[2, 3, s0, 64]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "tiles_64x64_c2", "">]

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// Heads that are too long.
// expected-error@+1 {{this kernel has a head size of 320; attention on a GPU takes constants from 1 to 256}}
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x320xbf16, #shapejit.shape<[2, 3, s0, 320]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 320, 320] q(%q at #q : tensor<2x3x?x320xbf16, #shapejit.shape<[2, 3, s0, 320]>>) k(%q at #q : tensor<2x3x?x320xbf16, #shapejit.shape<[2, 3, s0, 320]>>) v(%q at #q : tensor<2x3x?x320xbf16, #shapejit.shape<[2, 3, s0, 320]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x320xbf16, #shapejit.shape<[2, 3, s0, 320]>>
  shapejit.yield %y : tensor<2x3x?x320xbf16, #shapejit.shape<[2, 3, s0, 320]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "tiles_64x64_c2", "">]

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// More shared memory than a CTA has.
// expected-error@+1 {{this kernel needs 540672 bytes of shared memory with this schedule, a CTA has 231424; use fewer stages or smaller tiles}}
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 128, 128] q(%q at #q : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>) k(%q at #q : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>) v(%q at #q : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>
  shapejit.yield %y : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "tiles_64x256_g4_c1", "">]

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0, d1, d2, d3) -> (d3)>
// A mask of another type.
// expected-error@+1 {{this kernel has a mask of f64; masks are of i1, f32, f16 or bf16}}
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>, %m: tensor<?xf64, #shapejit.shape<[s0]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 64, 64] q(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) k(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) v(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) mask(%m at #m : tensor<?xf64, #shapejit.shape<[s0]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
  shapejit.yield %y : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "tiles_64x64_c2", "">]

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// Rows that TMA cannot read.
// expected-error@+1 {{as flash_128x64_s4_c1, this kernel has queries 20 elements apart, not multiples of 8. Use a schedule of the kind tiles}}
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x20xbf16, #shapejit.shape<[2, 3, s0, 20]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 20, 20] q(%q at #q : tensor<2x3x?x20xbf16, #shapejit.shape<[2, 3, s0, 20]>>) k(%q at #q : tensor<2x3x?x20xbf16, #shapejit.shape<[2, 3, s0, 20]>>) v(%q at #q : tensor<2x3x?x20xbf16, #shapejit.shape<[2, 3, s0, 20]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x20xbf16, #shapejit.shape<[2, 3, s0, 20]>>
  shapejit.yield %y : tensor<2x3x?x20xbf16, #shapejit.shape<[2, 3, s0, 20]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "flash_128x64_s4_c1", "">]

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#k = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3, d2)>
// Keys whose elements are no neighbours.
// expected-error@+1 {{as flash_128x64_s4_c1, this kernel has keys whose elements are s0 apart; TMA needs neighbours. Use a schedule of the kind tiles}}
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>, %k: tensor<2x3x64x?xbf16, #shapejit.shape<[2, 3, 64, s0]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 64, 64] q(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) k(%k at #k : tensor<2x3x64x?xbf16, #shapejit.shape<[2, 3, 64, s0]>>) v(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
  shapejit.yield %y : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "flash_128x64_s4_c1", "">]

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// A ring that does not fit.
// expected-error@+1 {{needs 294912 bytes of shared memory with this schedule, a CTA has 231424; use fewer stages or smaller tiles}}
shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 128, 128] q(%q at #q : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>) k(%q at #q : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>) v(%q at #q : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>
  shapejit.yield %y : tensor<2x3x?x128xbf16, #shapejit.shape<[2, 3, s0, 128]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "flash_128x128_s7_c1", "">]

// -----

#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// A flash variant that is no schedule: two CTAs of two consumers would want more registers than there are.
// expected-error@+1 {{'flash_128x64_s4_c2' names no flash schedule; one is flash_128x128_s5_c1: 128 or 192 queries with one CTA a multiprocessor, or 64 with two; 16 to 256 keys, a multiple of 16; 3 to 12 stages}}
module {
  shapejit.kernel @k symbols 1 (%q: tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {
    %y = shapejit.attention over [2, 3, s0, s0, 64, 64] q(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) k(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) v(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>) {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
    shapejit.yield %y : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
  }
  shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "flash_128x64_s4_c2", "odd">]
}
