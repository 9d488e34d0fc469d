// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-conv-to-nvgpu

// An architecture without a family of kernels.
// expected-error@+1 {{this module has the target "cuda:sm_80", for which there are no gemm kernels; set shapejit.target to one of "cuda:sm_90a"}}
module attributes {shapejit.target = "cuda:sm_80"} {
  shapejit.kernel @k symbols 2 (%x: tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>, %w: tensor<8x1x8xbf16, #shapejit.shape<[8, 1, 8]>>) {
    %y = shapejit.conv over [s0, 1, s1, 8, 8, 1] image [s1]
      input(%x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>)
      weight(%w at affine_map<(d0, d1, d2, d3) -> (d1, d3, d2)> : tensor<8x1x8xbf16, #shapejit.shape<[8, 1, 8]>>)
      -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
    shapejit.yield %y : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
  }
}

// -----

// Types that wgmma lacks.
// expected-error@+1 {{as persistent_128x64x64_s4_w2, this kernel multiplies f64, f64; convolutions on a GPU take bf16 by bf16, f16 by f16, or f32 by f32 rounded to tf32}}
shapejit.kernel @k symbols 2 (%x: tensor<?x?x8xf64, #shapejit.shape<[s0, s1, 8]>>, %w: tensor<8x3x8xf64, #shapejit.shape<[8, 3, 8]>>) {
  %y = shapejit.conv over [s0, 1, s1, 8, 8, 3] image [s1] padding [(1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xf64, #shapejit.shape<[s0, s1, 8]>>)
    weight(%w at affine_map<(d0, d1, d2, d3) -> (d1, d3, d2)> : tensor<8x3x8xf64, #shapejit.shape<[8, 3, 8]>>)
    -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xf64, #shapejit.shape<[s0, s1, 8]>>
  shapejit.yield %y : tensor<?x?x8xf64, #shapejit.shape<[s0, s1, 8]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "persistent_128x64x64_s4_w2", "">]

// -----

// Filters as PyTorch stores them.
// expected-error@+1 {{this kernel reads argument 1 with a stride of 3 between channels; pack it first. Use a schedule of the family unaligned}}
shapejit.kernel @k symbols 2 (%x: tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>, %w: tensor<8x8x3xbf16, #shapejit.shape<[8, 8, 3]>>) {
  %y = shapejit.conv over [s0, 1, s1, 8, 8, 3] image [s1] padding [(1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>)
    weight(%w at affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)> : tensor<8x8x3xbf16, #shapejit.shape<[8, 8, 3]>>)
    -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
  shapejit.yield %y : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "persistent_128x64x64_s4_w2", "">]

// -----

// A window that moves by two pixels, as tiles with a halo do not.
// expected-error@+1 {{as halo_64x16x64_s3_w1, this kernel moves its window by (2, 1) pixels; for tiles with a halo it moves by 1. Use a schedule of another family}}
shapejit.kernel @k symbols 3 (%x: tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>, %w: tensor<96x3x3x64xbf16, #shapejit.shape<[96, 3, 3, 64]>>) {
  %y = shapejit.conv over [s0, 1, (s1 - 1) floordiv 2 + 1, s2, 96, 64, 3, 3] image [s1, s2] stride [2, 1] padding [(1, 1), (1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>)
    weight(%w at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3, d4, d2)> : tensor<96x3x3x64xbf16, #shapejit.shape<[96, 3, 3, 64]>>)
    -> affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x96xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, s2, 96]>>
  shapejit.yield %y : tensor<?x?x?x96xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, s2, 96]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "halo_64x16x64_s3_w1", "">]

// -----

// More channels than a unit of 16 bytes has.
// expected-error@+1 {{as patch_64x128x16_s2_w1, this kernel has 12 channels; pixels of patches have 1 to 8. Use a schedule of the family unaligned}}
shapejit.kernel @k symbols 3 (%x: tensor<?x?x?x12xbf16, #shapejit.shape<[s0, s1, s2, 12]>>, %w: tensor<64x3x3x12xbf16, #shapejit.shape<[64, 3, 3, 12]>>) {
  %y = shapejit.conv over [s0, 1, s1, s2, 64, 12, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x12xbf16, #shapejit.shape<[s0, s1, s2, 12]>>)
    weight(%w at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3, d4, d2)> : tensor<64x3x3x12xbf16, #shapejit.shape<[64, 3, 3, 12]>>)
    -> affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>
  shapejit.yield %y : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "patch_64x128x16_s2_w1", "">]

// -----

// More taps than a thread keeps, for a tile of two rows.
// expected-error@+1 {{as depthwise_v8_2x2, this kernel has 7 x 7 taps of 8 channels, which a thread does not keep; tiles have one row there}}
shapejit.kernel @k symbols 3 (%x: tensor<?x?x?x16xbf16, #shapejit.shape<[s0, s1, s2, 16]>>, %w: tensor<7x7x16xbf16, #shapejit.shape<[7, 7, 16]>>) {
  %y = shapejit.conv over [s0, 16, s1, s2, 1, 1, 7, 7] image [s1, s2] padding [(3, 3), (3, 3)]
    input(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d1)> : tensor<?x?x?x16xbf16, #shapejit.shape<[s0, s1, s2, 16]>>)
    weight(%w at affine_map<(d0, d1, d2, d3, d4) -> (d3, d4, d0)> : tensor<7x7x16xbf16, #shapejit.shape<[7, 7, 16]>>)
    -> affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d1)> : tensor<?x?x?x16xbf16, #shapejit.shape<[s0, s1, s2, 16]>>
  shapejit.yield %y : tensor<?x?x?x16xbf16, #shapejit.shape<[s0, s1, s2, 16]>>
}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "depthwise_v8_2x2", "">]
