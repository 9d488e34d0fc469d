// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=small_m_64x16x64_s4_w1" | FileCheck %s --check-prefixes=ALONE
// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=small_m_64x16x64_s4_w1_k2" | FileCheck %s --check-prefixes=SPLIT
// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=small_m_64x16x64_s4_w1_r2" | FileCheck %s --check-prefixes=SHARED
// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=small_m_64x16x64_s4_w1_k4 parameters=block" | FileCheck %s --check-prefixes=BLOCK
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=small_m_128x16x64_s4_w1" 2>&1 | FileCheck %s --check-prefixes=ROWS
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=small_m_64x64x64_s20_w1" 2>&1 | FileCheck %s --check-prefixes=MEMORY

// The weights are on wgmma's m side. One producer warp, one warpgroup of consumers; the grid counts
// tiles of 16 rows and 64 columns, two CTAs on a multiprocessor.

// ALONE-LABEL: shapejit.kernel @gemm0
// ALONE: gpu.module @gemm0__small_m_64x16x64_s4_w1 [#nvvm.target<O = 3, chip = "sm_90a"
// ALONE-SAME: \22threads\22:160,{{.*}}\22cluster\22:1,\22grid\22:{\22tiles\22:{{\[}}[{{[0-9]+}},16],[{{[0-9]+}},64]],\22ctas_per_sm\22:2}
// ALONE: llvm.func
// ALONE-NOT: nvvm.cluster
// The producer walks tiles and stages, waits for an empty stage and fills it.
// ALONE: nvvm.elect.sync
// ALONE: %{{.*}}:2 = scf.for
// ALONE: %{{.*}}:2 = scf.for
// ALONE: nvgpu.mbarrier.try_wait.parity %[[EMPTY:[0-9]+]]
// ALONE: nvgpu.mbarrier.arrive.expect_tx %[[FULL:[0-9]+]][%{{.*}}], %c10240
// ALONE: nvgpu.tma.async.load %{{.*}}, %[[FULL]]{{.*}} : <tensor = memref<64x64xbf16, 3>
// ALONE: nvgpu.tma.async.load %{{.*}}, %[[FULL]]{{.*}} : <tensor = memref<16x64xbf16, 3>
// ALONE: } else {
// The first stage of a tile overwrites the sums, the others add to them.
// ALONE: nvgpu.mbarrier.try_wait.parity %[[FULL]]
// ALONE: nvvm.wgmma.mma_async {{.*}} <m = 64, n = 16, k = 16>, D[<f32>, <zero>]
// ALONE-COUNT-3: nvvm.wgmma.mma_async {{.*}} D[<f32>, <one>]
// ALONE: scf.for
// ALONE: nvgpu.mbarrier.try_wait.parity %[[FULL]]
// ALONE-COUNT-4: nvvm.wgmma.mma_async {{.*}} D[<f32>, <one>]
// ALONE: nvvm.wgmma.wait.group.sync.aligned 1
// ALONE: nvgpu.mbarrier.arrive %[[EMPTY]]
// ALONE: nvvm.wgmma.wait.group.sync.aligned 0
// ALONE: nvvm.stmatrix {{.*}}layout = #nvvm.mma_layout<col>
// ALONE: nvgpu.tma.async.store {{.*}} <tensor = memref<8x64xbf16, 3>

// Two CTAs share K: each sends the other its sums of eight columns, and has the epilogue of the
// other eight. Nobody waits for the cluster before the first loads.

// SPLIT-LABEL: gpu.module @gemm0__small_m_64x16x64_s4_w1_k2
// SPLIT-SAME: \22cluster\22:2
// SPLIT: nvvm.cluster_dim = array<i32: 2, 1, 1>
// SPLIT: %[[RECEIVED:[0-9]+]] = nvgpu.mbarrier.create -> <memorySpace = #gpu.address_space<workgroup>>
// SPLIT: %[[FREE:[0-9]+]] = nvgpu.mbarrier.create -> <memorySpace = #gpu.address_space<workgroup>>
// SPLIT: nvgpu.mbarrier.init %[[FREE]][%{{.*}}], %c2
// SPLIT: nvvm.fence.mbarrier.init
// SPLIT: nvvm.cluster.arrive.relaxed
// SPLIT-NEXT: gpu.barrier
// SPLIT: nvgpu.tma.async.load
// SPLIT: nvvm.cluster.wait
// SPLIT: } else {
// SPLIT: nvvm.cluster.wait
// SPLIT: nvvm.wgmma.wait.group.sync.aligned 0
// SPLIT: nvgpu.mbarrier.try_wait.parity %[[FREE]]
// SPLIT: nvgpu.mbarrier.arrive.expect_tx %[[RECEIVED]][%{{.*}}], %c2048
// SPLIT: mapa.shared::cluster.u32
// SPLIT: st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32
// SPLIT: builtin.unrealized_conversion_cast %[[RECEIVED]]
// SPLIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64
// SPLIT: arith.addf
// SPLIT: nvvm.mbarrier.arrive
// SPLIT: nvgpu.tma.async.store
// A CTA leaves when its peers have read all that it sent.
// SPLIT: nvgpu.mbarrier.try_wait.parity %[[FREE]]
// SPLIT: llvm.return

// Two CTAs share the weights' tile, each loads half of its rows for both. A stage is empty when the
// consumers of both have released it; the producer leaves when all of its stages are.

// SHARED-LABEL: gpu.module @gemm0__small_m_64x16x64_s4_w1_r2
// SHARED-SAME: \22tiles\22:{{\[}}[{{[0-9]+}},32],[{{[0-9]+}},64]]
// SHARED: nvgpu.mbarrier.init %[[EMPTY:[0-9]+]][%{{.*}}], %c8
// SHARED: nvvm.cluster.arrive.relaxed
// SHARED-NEXT: nvvm.cluster.wait
// SHARED: nvgpu.tma.async.load {{.*}} multicast_mask = {{.*}} <tensor = memref<32x64xbf16, 3>
// SHARED: nvgpu.tma.async.load {{.*}} <tensor = memref<16x64xbf16, 3>
// SHARED-COUNT-4: nvgpu.mbarrier.try_wait.parity %[[EMPTY]]
// SHARED: } else {

// In block form all comes from the kernel's entry in the parameter block, tensor maps are acquired
// by each thread that issues a TMA. Of four CTAs that share K two own columns.

// BLOCK-LABEL: gpu.module @gemm0__small_m_64x16x64_s4_w1_k4
// BLOCK-SAME: \22block\22:true
// BLOCK: llvm.func @{{.*}}(%{{.*}}: !llvm.ptr<1> {llvm.align = 128 : i64})
// BLOCK: nvvm.elect.sync
// BLOCK-COUNT-2: nvvm.fence.proxy.acquire
// BLOCK: nvgpu.tma.async.load
// BLOCK: } else {
// BLOCK: nvvm.fence.proxy.acquire
// BLOCK: nvgpu.mbarrier.arrive.expect_tx %{{.*}}, %c6144

// ROWS: error: {{.*}}small_m_128x16x64_s4_w1{{.*}} a small_m tile has 64 rows a warpgroup
// MEMORY: error: {{.*}} bytes of shared memory with this schedule{{.*}}; use fewer stages or smaller tiles

#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>
shapejit.kernel @gemm0 symbols 1 (%x: tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>, %w: tensor<1024x4096xbf16, #shapejit.shape<[1024, 4096]>>) {
  %y = shapejit.gemm over [s0, 1024, 4096]
      lhs(%x at #lhs : tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>)
      rhs(%w at #rhs : tensor<1024x4096xbf16, #shapejit.shape<[1024, 4096]>>)
      -> tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>
  shapejit.yield %y : tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>
}
