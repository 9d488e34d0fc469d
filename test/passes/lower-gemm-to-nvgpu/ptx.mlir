// RUN: shapejit-opt %s --pass-pipeline='builtin.module(shapejit-lower-gemm-to-nvgpu{schedule=persistent_128x64x64_s4_w2 parameters=block programmatic=true},gpu.module(convert-nvgpu-to-nvvm,canonicalize,cse,convert-scf-to-cf,convert-gpu-to-nvvm,expand-strided-metadata,convert-arith-to-llvm,convert-vector-to-llvm,convert-index-to-llvm,canonicalize,cse,convert-nvvm-to-llvm,reconcile-unrealized-casts),shapejit-finish-nvgpu,gpu-module-to-binary{format=isa})' | FileCheck %s

// Down to PTX, without a GPU: what each op of the kernel became.

// CHECK: gpu.binary @k__persistent_128x64x64_s4_w2
// CHECK-SAME: .version 8.3
// CHECK-SAME: .target sm_90a
// Dynamic shared memory is what the launch gives, aligned for tiles; the barriers are static.
// CHECK-SAME: .extern .shared .align 1024 .b8 __dynamic_shmem__
// CHECK-SAME: .visible .entry k__persistent_128x64x64_s4_w2(
// CHECK-SAME: .param .u64 .ptr .global .align 128
// CHECK-SAME: .reqntid 384
// CHECK-SAME: .minnctapersm 1
// CHECK-SAME: .shared .align 8 .b8 __mbarrier
// CHECK-SAME: griddepcontrol.launch_dependents
// CHECK-SAME: ld.relaxed.gpu.global.u32
// CHECK-SAME: mbarrier.init.shared.b64
// CHECK-SAME: fence.mbarrier_init.release.cluster
// CHECK-SAME: setmaxnreg.dec.sync.aligned.u32
// CHECK-SAME: fence.proxy.tensormap::generic.acquire.sys
// CHECK-SAME: griddepcontrol.wait
// CHECK-SAME: mbarrier.try_wait.parity.shared.b64
// CHECK-SAME: mbarrier.arrive.expect_tx.shared.b64
// CHECK-SAME: cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
// CHECK-SAME: setmaxnreg.inc.sync.aligned.u32
// CHECK-SAME: wgmma.fence.sync.aligned
// A K-major, B N-major: no transposition, and one.
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// CHECK-SAME: p, 1, 1, 0, 1;
// CHECK-SAME: wgmma.commit_group.sync.aligned
// CHECK-SAME: wgmma.wait_group.sync.aligned
// CHECK-SAME: cvt.rn.bf16x2.f32
// CHECK-SAME: stmatrix.sync.aligned.m8n8.x4.shared.b16
// CHECK-SAME: fence.proxy.async.shared::cta
// CHECK-SAME: cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group
// CHECK-SAME: cp.async.bulk.wait_group
shapejit.kernel @k symbols 1 (%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, %w: tensor<64x128xbf16, #shapejit.shape<[64, 128]>>) {
  %y = shapejit.gemm over [s0, 128, 64]
    lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>)
    rhs(%w at affine_map<(d0, d1, d2) -> (d2, d1)> : tensor<64x128xbf16, #shapejit.shape<[64, 128]>>)
    -> tensor<?x128xbf16, #shapejit.shape<[s0, 128]>>
  shapejit.yield %y : tensor<?x128xbf16, #shapejit.shape<[s0, 128]>>
}
