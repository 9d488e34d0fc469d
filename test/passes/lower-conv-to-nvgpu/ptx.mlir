// RUN: shapejit-opt %s --pass-pipeline='builtin.module(shapejit-lower-conv-to-nvgpu{schedule=persistent_128x96x64_s4_w2 parameters=block programmatic=true},gpu.module(convert-nvgpu-to-nvvm,canonicalize,cse,convert-scf-to-cf,convert-gpu-to-nvvm,expand-strided-metadata,convert-arith-to-llvm,convert-vector-to-llvm,convert-index-to-llvm,canonicalize,cse,convert-nvvm-to-llvm,reconcile-unrealized-casts),shapejit-finish-nvgpu,gpu-module-to-binary{format=isa})' | FileCheck %s

// Down to PTX, without a GPU.

// CHECK: gpu.binary @conv0__persistent_128x96x64_s4_w2
// CHECK-SAME: .target sm_90a
// CHECK-SAME: .visible .entry conv0__persistent_128x96x64_s4_w2(
// CHECK-SAME: griddepcontrol.launch_dependents
// Maps in memory are acquired by the thread that loads, before it waits for the kernel ahead.
// CHECK-SAME: fence.proxy.tensormap::generic.acquire.sys
// CHECK-SAME: griddepcontrol.wait
// CHECK-SAME: mbarrier.arrive.expect_tx.shared.b64
// CHECK-SAME: cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
// CHECK-SAME: cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16
shapejit.kernel @conv0 symbols 3 (%x: tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>, %w: tensor<96x3x3x64xbf16, #shapejit.shape<[96, 3, 3, 64]>>) {
  %y = shapejit.conv over [s0, 1, (s1 - 1) floordiv 2 + 1, s2, 96, 64, 3, 3] image [s1, s2] stride [2, 1] padding [(1, 1), (1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x64xbf16, #shapejit.shape<[s0, s1, s2, 64]>>)
    weight(%w at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3, d4, d2)> : tensor<96x3x3x64xbf16, #shapejit.shape<[96, 3, 3, 64]>>)
    -> affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x96xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, s2, 96]>>
  shapejit.yield %y : tensor<?x?x?x96xbf16, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, s2, 96]>>
}
