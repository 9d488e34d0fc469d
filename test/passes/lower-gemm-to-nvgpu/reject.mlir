// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-gemm-to-nvgpu

#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
// An architecture without a family of kernels.
// expected-error@+1 {{this module has the target "cuda:sm_80", for which there are no gemm kernels; set shapejit.target to one of "cuda:sm_90a"}}
module attributes {shapejit.target = "cuda:sm_80"} {
  shapejit.kernel @k symbols 1 (%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, %w: tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) {
    %y = shapejit.gemm over [s0, 64, 64] lhs(%x at #x : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>) rhs(%w at #w : tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
    shapejit.yield %y : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  }
}

// -----

#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
// A variant that is no schedule.
// expected-error@+1 {{'fast' names no gemm schedule; one is persistent_128x256x64_s4_w2, the families are persistent, swapped, small_m, unaligned}}
module {
  shapejit.kernel @k symbols 1 (%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, %w: tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) {
    %y = shapejit.gemm over [s0, 64, 64] lhs(%x at #x : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>) rhs(%w at #w : tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
    shapejit.yield %y : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  }
  shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "fast", "hope">]
}

// -----

#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
// Types that wgmma lacks, or that are not mixed.
// expected-error@+1 {{as persistent_128x64x64_s4_w2, this kernel multiplies f64, f64; this lowering takes factors of one type: bf16, f16 or f32}}
shapejit.kernel @k symbols 1 (%x: tensor<?x64xf64, #shapejit.shape<[s0, 64]>>, %w: tensor<64x64xf64, #shapejit.shape<[64, 64]>>) {
  %y = shapejit.gemm over [s0, 64, 64] lhs(%x at #x : tensor<?x64xf64, #shapejit.shape<[s0, 64]>>) rhs(%w at #w : tensor<64x64xf64, #shapejit.shape<[64, 64]>>) -> tensor<?x64xf64, #shapejit.shape<[s0, 64]>>
  shapejit.yield %y : tensor<?x64xf64, #shapejit.shape<[s0, 64]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "persistent_128x64x64_s4_w2", "">]

// -----

#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
// Rows of 20 elements, 40 bytes.
// expected-error@+1 {{this kernel reads argument 0 with a stride of 20 elements; TMA needs multiples of 8. Use a schedule of the family unaligned}}
shapejit.kernel @k symbols 1 (%x: tensor<?x20xbf16, #shapejit.shape<[s0, 20]>>, %w: tensor<64x20xbf16, #shapejit.shape<[64, 20]>>) {
  %y = shapejit.gemm over [s0, 64, 20] lhs(%x at #x : tensor<?x20xbf16, #shapejit.shape<[s0, 20]>>) rhs(%w at #w : tensor<64x20xbf16, #shapejit.shape<[64, 20]>>) -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  shapejit.yield %y : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "persistent_128x64x64_s4_w2", "">]

// -----

#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
#id = affine_map<(d0, d1) -> (d0, d1)>
// A pointwise op that no pass put into the epilogue.
// expected-error@+1 {{this kernel holds 'shapejit.loop' beside a gemm; pointwise ops go into the gemm's epilogue}}
shapejit.kernel @k symbols 1 (%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, %w: tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) {
  %y = shapejit.gemm over [s0, 64, 64] lhs(%x at #x : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>) rhs(%w at #w : tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  %z = shapejit.loop over [s0, 64] ins(%y at #id : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>) outs(#id : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>) {
  ^bb0(%v: bf16):
    shapejit.yield %v : bf16
  }
  shapejit.yield %z : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "persistent_128x64x64_s4_w2", "">]

// -----

#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
// A function that PTX has not.
// expected-error@+1 {{this kernel computes 'math.sin' of f32 in its epilogue, for which there is no GPU code}}
shapejit.kernel @k symbols 1 (%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, %w: tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) {
  %y = shapejit.gemm over [s0, 64, 64] lhs(%x at #x : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>) rhs(%w at #w : tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) epilogue {
  ^bb0(%a: f32):
    %0 = math.sin %a : f32
    shapejit.yield %0 : f32
  } -> tensor<?x64xf32, #shapejit.shape<[s0, 64]>>
  shapejit.yield %y : tensor<?x64xf32, #shapejit.shape<[s0, 64]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "persistent_128x64x64_s4_w2", "">]
