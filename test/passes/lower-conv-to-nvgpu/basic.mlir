// RUN: shapejit-opt %s --shapejit-lower-conv-to-nvgpu=schedule=persistent_128x96x64_s4_w2 | FileCheck %s

// The kernel stays, its variant goes behind it. Rows of tiles are pixels of the result.
// CHECK: shapejit.kernel @conv0
// CHECK: gpu.module @conv0__persistent_128x96x64_s4_w2 [#nvvm.target<O = 3, chip = "sm_90a", features = "+ptx83">]
// The image: channels, width, height, images; 64 channels of 128 places, two rows of pixels apart.
// CHECK-SAME: {\22kind\22:\22im2col_map\22,\22operand\22:0,\22element\22:\22bf16\22,
// CHECK-SAME: \22channels\22:64,\22pixels\22:128,\22lower\22:[-1,-1],\22upper\22:[-1,-1],\22steps\22:[1,2],\22swizzle\22:128,
// The filters: channels, filters, taps along the width, taps along the height.
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:1,\22element\22:\22bf16\22,
// CHECK-SAME: \22box\22:[64,96,1,1],\22swizzle\22:128,
// CHECK: llvm.func @conv0__persistent_128x96x64_s4_w2
// CHECK: nvvm.setmaxregister decrease 40
// The place of a tile's first pixel is found once a tile, outside of the loop over stages.
// CHECK: scf.for
// CHECK: arith.divui
// CHECK: scf.for
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// CHECK: nvgpu.tma.async.load
// CHECK: nvvm.cp.async.bulk.tensor.shared.cluster.global {{.*}} im2col[{{.*}}] {{.*}}mode = #nvvm.tma_load_mode<im2col>
// CHECK: nvvm.setmaxregister increase 232
// CHECK: nvvm.wgmma.mma_async {{.*}} <m = 64, n = 96, k = 16>
shapejit.kernel @conv0 symbols 3 (%x: tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>, %w: tensor<96x3x3x64xbf16, #shapejit.shape<[96, 3, 3, 64]>>) {
  %y = shapejit.conv over [s0, 1, (s1 - 1) floordiv 2 + 1, s2, 96, 64, 3, 3] image [s1, s2] stride [2, 1] padding [(1, 1), (1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>)
    weight(%w at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3, d4, d2)> : tensor<96x3x3x64xbf16, #shapejit.shape<[96, 3, 3, 64]>>)
    -> affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x96xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, s2, 96]>>
  shapejit.yield %y : tensor<?x?x?x96xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, s2, 96]>>
}
