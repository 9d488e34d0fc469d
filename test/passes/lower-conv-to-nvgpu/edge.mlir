// RUN: shapejit-opt %s --split-input-file --shapejit-lower-conv-to-nvgpu | FileCheck %s

// Without a dispatch a kernel is left alone, and so is what is no convolution.
// CHECK-LABEL: shapejit.kernel @left
// CHECK-NOT: gpu.module
shapejit.kernel @left symbols 2 (%x: tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>, %w: tensor<8x3x8xbf16, #shapejit.shape<[8, 3, 8]>>) {
  %y = shapejit.conv over [s0, 1, s1, 8, 8, 3] image [s1] padding [(1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>)
    weight(%w at affine_map<(d0, d1, d2, d3) -> (d1, d3, d2)> : tensor<8x3x8xbf16, #shapejit.shape<[8, 3, 8]>>)
    -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
  shapejit.yield %y : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
}

// -----

// One dim, a module a distinct variant; three channels are gathered by threads, without a map.
// CHECK-LABEL: shapejit.kernel @few
// CHECK: gpu.module @few__unaligned_64x8x64_s3_w1
// CHECK-NOT: im2col_map
// CHECK: llvm.func @few__unaligned_64x8x64_s3_w1
// CHECK-NOT: cp.async.bulk.tensor
// CHECK: ld.global.b16
// CHECK: nvvm.wgmma.mma_async
// CHECK-NOT: gpu.module
// CHECK: shapejit.dispatch @few
shapejit.kernel @few symbols 2 (%x: tensor<?x?x3xbf16, #shapejit.shape<[s0, s1, 3]>>, %w: tensor<8x5x3xbf16, #shapejit.shape<[8, 5, 3]>>) {
  %y = shapejit.conv over [s0, 1, s1, 8, 3, 5] image [s1] padding [(2, 2)]
    input(%x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x3xbf16, #shapejit.shape<[s0, s1, 3]>>)
    weight(%w at affine_map<(d0, d1, d2, d3) -> (d1, d3, d2)> : tensor<8x5x3xbf16, #shapejit.shape<[8, 5, 3]>>)
    -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
  shapejit.yield %y : tensor<?x?x8xbf16, #shapejit.shape<[s0, s1, 8]>>
}
shapejit.dispatch @few by affine_map<()[s0, s1] -> (s0 * s1)> [#shapejit.bucket<[0], [7], "unaligned_64x8x64_s3_w1", "few">, #shapejit.bucket<[8], [?], "unaligned_64x8x64_s3_w1", "many">]

// -----

// Groups of one channel are no product: eight channels a thread, loaded at once, of four pixels.
// CHECK-LABEL: shapejit.kernel @depthwise
// CHECK: gpu.module @depthwise__depthwise_v8_1x4
// CHECK: llvm.func @depthwise__depthwise_v8_1x4
// CHECK-NOT: nvvm.wgmma
// CHECK: ld.global.v4.b32
// CHECK: math.fma
// CHECK: st.global.v4.b32
shapejit.kernel @depthwise symbols 2 (%x: tensor<?x?x16xbf16, #shapejit.shape<[s0, s1, 16]>>, %w: tensor<3x16xbf16, #shapejit.shape<[3, 16]>>) {
  %y = shapejit.conv over [s0, 16, s1, 1, 1, 3] image [s1] padding [(1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1)> : tensor<?x?x16xbf16, #shapejit.shape<[s0, s1, 16]>>)
    weight(%w at affine_map<(d0, d1, d2, d3) -> (d3, d0)> : tensor<3x16xbf16, #shapejit.shape<[3, 16]>>)
    -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d1)> : tensor<?x?x16xbf16, #shapejit.shape<[s0, s1, 16]>>
  shapejit.yield %y : tensor<?x?x16xbf16, #shapejit.shape<[s0, s1, 16]>>
}
shapejit.dispatch @depthwise by affine_map<() -> ()> [#shapejit.bucket<[], [], "depthwise_v8_1x4", "">]

// -----

// A tile of 8 x 5 pixels comes once for all taps, with its halo; an odd number of rows of the result
// goes out in boxes of single ones.
// CHECK-LABEL: shapejit.kernel @halo
// CHECK: gpu.module @halo__halo_64x40x64_s4_w1
// CHECK-NOT: im2col
// CHECK-SAME: \22box\22:[64,64,1,1],\22swizzle\22:128,
// CHECK-SAME: \22box\22:[64,10,7,1],\22swizzle\22:128,
// CHECK-SAME: \22box\22:[64,8,1,1],\22swizzle\22:128,
// The pixels are loaded outside of the loop over taps, from above and left of the tile.
// CHECK: nvvm.setmaxregister decrease 40
// CHECK: scf.for
// CHECK: scf.for
// CHECK: nvgpu.tma.async.load {{.*}} : {{.*}} -> memref<1x7x10x64xbf16
// CHECK: scf.for
// CHECK: nvgpu.tma.async.load {{.*}} : {{.*}} -> memref<1x1x64x64xbf16
// CHECK: nvvm.setmaxregister increase 232
// CHECK: nvvm.wgmma.mma_async {{.*}} <m = 64, n = 40, k = 16>
shapejit.kernel @halo symbols 3 (%x: tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>, %w: tensor<64x3x3x64xbf16, #shapejit.shape<[64, 3, 3, 64]>>) {
  %y = shapejit.conv over [s0, 1, s1, s2, 64, 64, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>)
    weight(%w at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3, d4, d2)> : tensor<64x3x3x64xbf16, #shapejit.shape<[64, 3, 3, 64]>>)
    -> affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>
  shapejit.yield %y : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>
}
shapejit.dispatch @halo by affine_map<() -> ()> [#shapejit.bucket<[], [], "halo_64x40x64_s4_w1", "">]

// -----

// Three channels: threads load a patch of the image, two pixels a unit of 16 bytes. Neither image nor
// filters have a map. Four units a row of taps, of 7 rows: 28 chunks of K, 14 products.
// CHECK-LABEL: shapejit.kernel @stem
// CHECK: gpu.module @stem__patch_64x32x16_s2_w1
// CHECK-NOT: im2col_map
// CHECK-COUNT-1: tensor_map\22,\22operand\22:2
// CHECK: llvm.func @stem__patch_64x32x16_s2_w1
// CHECK-NOT: tma.async.load
// CHECK: ld.global.b16
// CHECK: llvm.store {{.*}} {alignment = 16 : i64} : vector<4xi32>
// CHECK: nvvm.fence.proxy
// CHECK-COUNT-14: nvvm.wgmma.mma_async {{.*}} <m = 64, n = 32, k = 16>
// CHECK-NOT: wgmma.mma_async
// CHECK: ld.global.b16
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// CHECK: nvgpu.tma.async.store
shapejit.kernel @stem symbols 3 (%x: tensor<?x?x?x3xbf16, #shapejit.shape<[s0, s1, s2, 3]>>, %w: tensor<64x7x7x3xbf16, #shapejit.shape<[64, 7, 7, 3]>>) {
  %y = shapejit.conv over [s0, 1, (s1 - 1) floordiv 2 + 1, (s2 - 1) floordiv 2 + 1, 64, 3, 7, 7] image [s1, s2] stride [2, 2] padding [(3, 3), (3, 3)]
    input(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x3xbf16, #shapejit.shape<[s0, s1, s2, 3]>>)
    weight(%w at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3, d4, d2)> : tensor<64x7x7x3xbf16, #shapejit.shape<[64, 7, 7, 3]>>)
    -> affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, (s2 - 1) floordiv 2 + 1, 64]>>
  shapejit.yield %y : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, (s2 - 1) floordiv 2 + 1, 64]>>
}
shapejit.dispatch @stem by affine_map<() -> ()> [#shapejit.bucket<[], [], "patch_64x32x16_s2_w1", "">]
