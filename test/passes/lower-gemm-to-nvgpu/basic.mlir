// RUN: shapejit-opt %s --split-input-file --shapejit-lower-gemm-to-nvgpu | FileCheck %s

// One module a distinct variant of the dispatch; the kernel and its dispatch stay.

// CHECK-LABEL: module attributes {shapejit.target = "cuda:sm_90a:h200"}
// CHECK: shapejit.kernel @gemm0
// CHECK: gpu.module @gemm0__swapped_128x128x64_s6_w2 [#nvvm.target<O = 3, chip = "sm_90a", features = "+ptx83">]
// CHECK-SAME: shapejit.interface = "{\22entry\22:\22gemm0__swapped_128x128x64_s6_w2\22,\22threads\22:384,\22shared_bytes\22:212992,\22cluster\22:1,
// Tiles are 128 columns by 128 rows of the result.
// CHECK-SAME: \22grid\22:{\22tiles\22:{{\[\[}}1,128],[2,128]],\22ctas_per_sm\22:1},\22values\22:[\224096\22,\221024\22,\22s0\22]
// The weight is on the rows' side, and comes first.
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:1,\22element\22:\22bf16\22,\22dims\22:[0,1],\22strides\22:[0],\22box\22:[64,128],
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:0,\22element\22:\22bf16\22,\22dims\22:[0,2],\22strides\22:[0],\22box\22:[64,128],
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:2,\22element\22:\22bf16\22,\22dims\22:[1,2],\22strides\22:[1],\22box\22:[64,8],
// CHECK-SAME: {\22kind\22:\22size\22,\22value\22:2,\22bytes\22:4,
// CHECK-SAME: \22block\22:false,\22block_bytes\22:0,\22programmatic\22:false}"
// CHECK: llvm.func @gemm0__swapped_128x128x64_s6_w2(%{{.*}}: !llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<16 x i64>, nvvm.grid_constant}, %{{.*}}: !llvm.ptr {{{.*}}nvvm.grid_constant}, %{{.*}}: !llvm.ptr {{{.*}}nvvm.grid_constant}, %{{.*}}: i32)
// CHECK-SAME: nvvm.kernel, nvvm.minctasm = 1 : i32, nvvm.reqntid = array<i32: 384, 1, 1>
// The ring: one arrival fills a stage, one of each of 8 warps empties it.
// CHECK: nvgpu.mbarrier.create -> <memorySpace = #gpu.address_space<workgroup>, num_barriers = 6>
// CHECK: nvgpu.mbarrier.init
// CHECK: nvvm.fence.mbarrier.init
// CHECK: nvgpu.tma.prefetch.descriptor
// CHECK: gpu.barrier
// The producer.
// CHECK: nvvm.setmaxregister decrease 40
// CHECK: nvvm.elect.sync
// CHECK: scf.for
// CHECK: scf.for
// CHECK: nvgpu.mbarrier.try_wait.parity
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// CHECK-COUNT-2: nvgpu.tma.async.load
// The consumers: the first stage is peeled and overwrites the sums.
// CHECK: nvvm.setmaxregister increase 232
// CHECK: scf.for
// CHECK: nvvm.wgmma.mma_async {{.*}} <m = 64, n = 128, k = 16>, D[{{.*}}, <zero>], A[<bf16>, <one>, <row>], B[<bf16>, <one>, <col>]
// CHECK-COUNT-3: nvvm.wgmma.mma_async {{.*}} D[{{.*}}, <one>]
// CHECK: scf.for
// CHECK-COUNT-4: nvvm.wgmma.mma_async {{.*}} D[{{.*}}, <one>]
// CHECK: nvvm.wgmma.wait.group.sync.aligned 1
// CHECK: nvgpu.mbarrier.arrive
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// The result, transposed in shared memory.
// CHECK: nvvm.stmatrix {{.*}}layout = #nvvm.mma_layout<col>
// CHECK: nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>
// CHECK: nvgpu.tma.async.store
// CHECK: gpu.module @gemm0__persistent_128x256x64_s4_w2_stream
// CHECK: shapejit.dispatch @gemm0
#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
module attributes {shapejit.target = "cuda:sm_90a:h200"} {
  shapejit.kernel @gemm0 symbols 1 (%x: tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>, %w: tensor<1024x4096xbf16, #shapejit.shape<[1024, 4096]>>) {
    %y = shapejit.gemm over [s0, 1024, 4096]
      lhs(%x at #x : tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>)
      rhs(%w at #w : tensor<1024x4096xbf16, #shapejit.shape<[1024, 4096]>>)
      -> tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>
    shapejit.yield %y : tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>
  }
  shapejit.dispatch @gemm0 by affine_map<()[s0] -> (s0)> [
    #shapejit.bucket<[1], [100], "swapped_128x128x64_s6_w2", "12 us">,
    #shapejit.bucket<[101], [500], "persistent_128x256x64_s4_w2_stream", "a comma, ] and \22quotes\22">,
    #shapejit.bucket<[501], [?], "swapped_128x128x64_s6_w2", "least waves">
  ]
}

// -----

// Kernels without a gemm, and gemms without a dispatch, are left alone, whatever the target.

// CHECK-LABEL: module attributes {shapejit.target = "cpu"}
// CHECK-NOT: gpu.module
module attributes {shapejit.target = "cpu"} {
  shapejit.kernel @copy symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
    %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%v: f32):
      shapejit.yield %v : f32
    }
    shapejit.yield %0 : tensor<?xf32, #shapejit.shape<[s0]>>
  }
}
