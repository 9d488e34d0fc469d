// RUN: shapejit-opt %s --split-input-file --shapejit-lower-gemm-to-nvgpu="schedule=persistent_128x64x64_s4_w2_stream parameters=block programmatic=true" | FileCheck %s
// RUN: shapejit-opt %s --split-input-file --shapejit-lower-gemm-to-nvgpu="schedule=swapped_128x64x64_s4_w2_c2" | FileCheck %s --check-prefix=CLUSTER
// RUN: shapejit-opt %s --split-input-file --shapejit-lower-gemm-to-nvgpu="schedule=persistent_128x88x64_s4_w2" | FileCheck %s --check-prefix=RAGGED

// All sizes free, in a parameter block, with shared tiles: the function has one parameter, sizes
// and addresses are read from the block, and maps are acquired before their first use.

// CHECK-LABEL: gpu.module @free__persistent
// A grid of all stages, one more than K has; K = 0 has one too.
// CHECK-SAME: \22tiles\22:{{\[\[}}1,128],[2,64],[3,64]],\22ctas_per_sm\22:1},\22values\22:[\22s2\22,\22s0\22,\22s1\22,\22s2 + 1\22]
// Each operand has a map of whole tiles and one of boxes of a quarter, for tiles at the edge.
// CHECK-SAME: \22box\22:[64,128],\22swizzle\22:128,\22promotion\22:256,\22offset\22:0}
// CHECK-SAME: \22box\22:[64,32],\22swizzle\22:128,\22promotion\22:256,\22offset\22:128}
// CHECK-SAME: \22box\22:[64,64],\22swizzle\22:128,\22promotion\22:256,\22offset\22:256}
// CHECK-SAME: \22box\22:[64,16],\22swizzle\22:128,\22promotion\22:256,\22offset\22:384}
// CHECK-SAME: \22box\22:[64,64],\22swizzle\22:128,\22promotion\22:256,\22offset\22:512}
// CHECK-SAME: {\22kind\22:\22size\22,\22value\22:0,\22bytes\22:4,\22offset\22:640}
// CHECK-SAME: {\22kind\22:\22workspace\22,\22bytes_per_cta\22:32768,\22zeroed\22:4096,\22offset\22:
// CHECK-SAME: \22block\22:true,\22block_bytes\22:768,\22programmatic\22:true}"
// CHECK: llvm.func @free__persistent_128x64x64_s4_w2_stream(%[[BLOCK:.*]]: !llvm.ptr<1> {llvm.align = 128 : i64})
// CHECK: nvvm.griddepcontrol {{.*}}launch_dependents
// CHECK: ld.relaxed.gpu.global.u32
// CHECK: gpu.barrier
// K = 0: the epilogue of nothing, element by element.
// CHECK: scf.if
// CHECK: nvvm.griddepcontrol {{.*}}wait
// CHECK: scf.for
// CHECK: llvm.store {{.*}} : i16, !llvm.ptr<1>
// CHECK: nvvm.setmaxregister decrease
// CHECK-COUNT-4: nvvm.fence.proxy.acquire <sys>
// CHECK: nvvm.griddepcontrol {{.*}}wait
// CHECK: scf.while
// A tile at the edge: as many boxes as it takes; the bytes of the others are counted off.
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// CHECK: scf.if
// CHECK: nvgpu.tma.async.load {{.*}} -> memref<128x64xbf16
// CHECK: } else {
// CHECK: scf.for
// CHECK: nvgpu.tma.async.load {{.*}} -> memref<32x64xbf16
// CHECK: mbarrier.complete_tx
// CHECK: nvvm.setmaxregister increase
// CHECK: nvvm.griddepcontrol {{.*}}wait
// CHECK: nvvm.fence.proxy.acquire <sys>
// CHECK: scf.while
// A later part of a tile is given away, or all parts are gathered and stored.
// CHECK: scf.if
// CHECK: st.global.cg.v4.f32
// CHECK: st.release.gpu.global.u32
// CHECK: } else {
// CHECK: ld.acquire.gpu.global.u32
// CHECK: ld.global.cg.v4.f32
// CHECK: nvgpu.tma.async.store

// A cluster's CTAs load half of the columns each, for both; a stage is empty when the warps of both
// have released it; none leaves before the other.

// CLUSTER-LABEL: gpu.module @free__swapped_128x64x64_s4_w2_c2
// CLUSTER-SAME: \22cluster\22:2,\22grid\22:{\22tiles\22:{{\[\[}}1,256],[2,64]],
// CLUSTER-SAME: \22box\22:[64,128]
// CLUSTER-SAME: \22box\22:[64,32]
// CLUSTER: nvvm.cluster_dim = array<i32: 2, 1, 1>
// CLUSTER: %[[ARRIVALS:.*]] = arith.constant 16 : index
// CLUSTER: nvgpu.mbarrier.init %{{.*}}, %[[ARRIVALS]]
// CLUSTER: nvvm.cluster.arrive
// CLUSTER: nvvm.cluster.wait
// CLUSTER: nvgpu.tma.async.load {{.*}} : <tensor = memref<128x64xbf16
// CLUSTER: nvgpu.tma.async.load {{.*}} multicast_mask
// CLUSTER: nvvm.mapa
// CLUSTER: nvvm.mbarrier.arrive
// CLUSTER: nvvm.cluster.arrive
// CLUSTER: nvvm.cluster.wait
// CLUSTER: llvm.return

// Columns that fill no panels of 64 are stored from registers: a box would reach into the next tile.

// RAGGED-LABEL: gpu.module @free__persistent_128x88x64_s4_w2
// RAGGED-SAME: \22grid\22:{\22tiles\22:{{\[\[}}1,128],[2,88]],
// RAGGED-SAME: \22box\22:[64,128]
// RAGGED-SAME: \22box\22:[64,88]
// RAGGED-NOT: nvgpu.tma.async.store
// RAGGED: llvm.store {{.*}} : i32, !llvm.ptr<1>
// RAGGED-NOT: nvgpu.tma.async.store
// RAGGED-LABEL: shapejit.kernel
#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
shapejit.kernel @free symbols 3 (%x: tensor<?x?xbf16, #shapejit.shape<[s0, s2]>>, %w: tensor<?x?xbf16, #shapejit.shape<[s1, s2]>>) {
  %y = shapejit.gemm over [s0, s1, s2]
    lhs(%x at #x : tensor<?x?xbf16, #shapejit.shape<[s0, s2]>>)
    rhs(%w at #w : tensor<?x?xbf16, #shapejit.shape<[s1, s2]>>)
    -> tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
  shapejit.yield %y : tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
}

// -----

// A transposed lhs, a batch of which the weight is not part, a slice, and a result that TMA cannot
// store. The slice's start becomes part of a coordinate, so that the map's base stays the operand.

// CHECK-LABEL: gpu.module @views__
// The lhs [k, m] has m first; of 3 matrices in a row the second one is read, from 512 on.
// CHECK-SAME: \22values\22:[\22520\22,\2264\22,\22s0\22,\228\22,\221536\22,\229\22
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:0,\22element\22:\22f16\22,\22dims\22:[0,1,2],\22strides\22:[3,4],\22box\22:[64,64,1]
// The weight has no batch.
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:1,\22element\22:\22f16\22,\22dims\22:[1,5],\22strides\22:[1],\22box\22:[64,64]
// The result's rows of 9 elements are stored directly.
// CHECK-SAME: {\22kind\22:\22pointer\22,\22operand\22:2,
// CHECK: nvvm.wgmma.mma_async {{.*}}A[<f16>, <one>, <col>], B[<f16>, <one>, <col>]
// CHECK-NOT: nvgpu.tma.async.store
// CHECK: llvm.return
shapejit.kernel @views symbols 1 (%x: tensor<?x3x64x8xf16, #shapejit.shape<[s0, 3, 64, 8]>>, %w: tensor<9x64xf16, #shapejit.shape<[9, 64]>>) {
  %v = shapejit.view %x at affine_map<(d0, d1, d2) -> (d0, 1, d2, d1)> : tensor<?x3x64x8xf16, #shapejit.shape<[s0, 3, 64, 8]>> -> tensor<?x8x64xf16, #shapejit.shape<[s0, 8, 64]>>
  %y = shapejit.gemm over [s0, 8, 9, 64]
    lhs(%v at affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)> : tensor<?x8x64xf16, #shapejit.shape<[s0, 8, 64]>>)
    rhs(%w at affine_map<(d0, d1, d2, d3) -> (d2, d3)> : tensor<9x64xf16, #shapejit.shape<[9, 64]>>)
    -> tensor<?x8x9xf16, #shapejit.shape<[s0, 8, 9]>>
  shapejit.yield %y : tensor<?x8x9xf16, #shapejit.shape<[s0, 8, 9]>>
}
