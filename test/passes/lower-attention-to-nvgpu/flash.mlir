// RUN: shapejit-opt %s --split-input-file --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{schedule=flash_128x64_s4_c1})' | FileCheck %s
// RUN: shapejit-opt %s --split-input-file --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{schedule=flash_128x64_s4_c1 parameters=block programmatic=true})' | FileCheck %s --check-prefix=BLOCK

// Two consumers and a producer. Operands are tensor maps: queries in boxes of a tile, keys and
// values in blocks, results in the rows of a consumer.

// CHECK-LABEL: gpu.module @long__flash_128x64_s4_c1
// CHECK-SAME: \22threads\22:384,
// CHECK-SAME: \22tiles\22:{{\[\[}}3,1],[2,1],[1,128]],\22ctas_per_sm\22:1}
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:0,\22element\22:\22bf16\22,
// CHECK-SAME: \22box\22:[64,128,1,1],\22swizzle\22:128,
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:1,
// CHECK-SAME: \22box\22:[64,64,1,1],
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:2,
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:3,
// CHECK-SAME: \22box\22:[64,64,1,1],
// CHECK: llvm.func @long__flash_128x64_s4_c1(
// CHECK-SAME: nvvm.minctasm = 1 : i32, nvvm.reqntid = array<i32: 384, 1, 1>
// Barriers: of the ring, full and empty; of two tiles of queries; of their results.
// CHECK: num_barriers = 4
// CHECK: num_barriers = 4
// CHECK: num_barriers = 2
// CHECK: num_barriers = 2
// CHECK: num_barriers = 2
// Without keys there is nothing to load: results of 0.
// CHECK: llvm.store %{{.*}} : i16, !llvm.ptr<1>
// The producer: keys and values, queries, results; each by a warp of its own.
// CHECK: nvvm.setmaxregister decrease 24
// CHECK-COUNT-2: nvgpu.tma.async.load
// CHECK: nvgpu.tma.async.store
// CHECK: nvvm.cp.async.bulk.wait_group 0 {read}
// Consumers: scores of the first block; of later ones beside the sums of the block before.
// CHECK: nvvm.setmaxregister increase 240
// CHECK: nvvm.barrier
// CHECK: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// CHECK: nvvm.barrier.arrive
// CHECK: wgmma.wait_group.sync.aligned 0
// CHECK: ex2.approx.ftz.f32
// CHECK: scf.for
// CHECK: nvgpu.mbarrier.try_wait.parity
// CHECK: nvvm.barrier
// CHECK: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// CHECK: nvgpu.mbarrier.try_wait.parity
// CHECK: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// CHECK: nvvm.barrier.arrive
// CHECK: wgmma.wait_group.sync.aligned 1
// CHECK: ex2.approx.ftz.f32
// CHECK: wgmma.wait_group.sync.aligned 0
// CHECK: nvvm.stmatrix
// CHECK: nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>
// CHECK-NEXT: bar.warp.sync
// CHECK: nvgpu.mbarrier.arrive

// In block form each thread of the producer acquires the maps that it uses; dependents are let
// start first of all, and no operand is touched before the wait.
// BLOCK-LABEL: gpu.module @long__flash_128x64_s4_c1
// BLOCK: nvvm.griddepcontrol launch_dependents
// BLOCK-NOT: tma.prefetch
// BLOCK: nvvm.setmaxregister decrease 24
// BLOCK-COUNT-2: nvvm.fence.proxy.acquire
// BLOCK: nvvm.griddepcontrol wait
// BLOCK: nvgpu.tma.async.load
// BLOCK: nvvm.fence.proxy.acquire
// BLOCK: nvvm.griddepcontrol wait
// BLOCK: nvgpu.tma.async.load
// BLOCK: nvvm.fence.proxy.acquire
// BLOCK: nvvm.griddepcontrol wait
// BLOCK: nvgpu.tma.async.store
// BLOCK: nvvm.setmaxregister increase 240
// BLOCK-NEXT: nvvm.griddepcontrol wait
#q = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>
shapejit.kernel @long symbols 3 (%q: tensor<?x?x16x64xbf16, #shapejit.shape<[s0, s1, 16, 64]>>, %k: tensor<?x?x16x64xbf16, #shapejit.shape<[s0, s2, 16, 64]>>, %v: tensor<?x?x16x64xbf16, #shapejit.shape<[s0, s2, 16, 64]>>) {
  %y = shapejit.attention over [s0, 16, s1, s2, 64, 64]
    q(%q at #q : tensor<?x?x16x64xbf16, #shapejit.shape<[s0, s1, 16, 64]>>)
    k(%k at #q : tensor<?x?x16x64xbf16, #shapejit.shape<[s0, s2, 16, 64]>>)
    v(%v at #q : tensor<?x?x16x64xbf16, #shapejit.shape<[s0, s2, 16, 64]>>)
    {scale = 0.125 : f64} -> #q : tensor<?x?x16x64xbf16, #shapejit.shape<[s0, s1, 16, 64]>>
  shapejit.yield %y : tensor<?x?x16x64xbf16, #shapejit.shape<[s0, s1, 16, 64]>>
}

// -----

// Heads that four queries share are heads of the map; causal blocks are hidden in a loop of their
// own; keys that are slices of another tensor start in the first dim of their map.

// CHECK-LABEL: gpu.module @shared__flash_128x64_s4_c1
// CHECK-SAME: \22values\22:[{{.*}}\22160\22
// CHECK: llvm.func @shared__flash_128x64_s4_c1(
// CHECK-NOT: llvm.store %{{.*}} : i16
// CHECK: nvvm.setmaxregister increase
// CHECK: wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16
// CHECK: scf.for
// CHECK: scf.for
// CHECK: arith.select
// CHECK: scf.yield
// CHECK: scf.for
// BLOCK-LABEL: gpu.module @shared__flash_128x64_s4_c1
#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#k = affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 4, d2, d3 + 96)>
#v = affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 4, d2, d3)>
shapejit.kernel @shared symbols 1 (%q: tensor<?x8x128x64xf16, #shapejit.shape<[s0, 8, 128, 64]>>, %k: tensor<?x2x256x192xf16, #shapejit.shape<[s0, 2, 256, 192]>>) {
  %y = shapejit.attention over [s0, 8, 128, 256, 64, 64]
    q(%q at #q : tensor<?x8x128x64xf16, #shapejit.shape<[s0, 8, 128, 64]>>)
    k(%k at #k : tensor<?x2x256x192xf16, #shapejit.shape<[s0, 2, 256, 192]>>)
    v(%k at #v : tensor<?x2x256x192xf16, #shapejit.shape<[s0, 2, 256, 192]>>)
    {scale = 0.125 : f64, causal = affine_map<()[s0] -> (128)>} -> #q : tensor<?x8x128x64xf16, #shapejit.shape<[s0, 8, 128, 64]>>
  shapejit.yield %y : tensor<?x8x128x64xf16, #shapejit.shape<[s0, 8, 128, 64]>>
}
