// RUN: shapejit-opt %s --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{schedule=tiles_64x64_c4 parameters=block programmatic=true},gpu.module(convert-nvgpu-to-nvvm,canonicalize,cse,convert-scf-to-cf,convert-gpu-to-nvvm,expand-strided-metadata,convert-arith-to-llvm,convert-vector-to-llvm,convert-index-to-llvm,canonicalize,cse,convert-nvvm-to-llvm,reconcile-unrealized-casts),shapejit-finish-nvgpu,gpu-module-to-binary{format=isa})' | FileCheck %s

// Down to PTX, without a GPU: what each op of the kernel became.

// CHECK: gpu.binary @k__tiles_64x64_c4
// CHECK-SAME: .version 8.3
// CHECK-SAME: .target sm_90a
// CHECK-SAME: .extern .shared .align 1024 .b8 __dynamic_shmem__
// CHECK-SAME: .visible .entry k__tiles_64x64_c4(
// CHECK-SAME: .param .u64 .ptr .global .align 128
// CHECK-SAME: .reqntid 128
// CHECK-SAME: .minnctapersm 4
// CHECK-SAME: griddepcontrol.launch_dependents
// CHECK-SAME: ld.relaxed.gpu.global
// CHECK-SAME: griddepcontrol.wait
// CHECK-SAME: cp.async.cg.shared.global
// Weights in registers, and values whose columns are neighbours; LLVM puts this block first.
// CHECK-SAME: ex2.approx.ftz.f32
// CHECK-SAME: wgmma.fence.sync.aligned
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16
// CHECK-SAME: b, one, 1, 1, 1;
// CHECK-SAME: wgmma.commit_group.sync.aligned
// CHECK-SAME: wgmma.wait_group.sync.aligned 0
// A turn: the wait for a block, and copies of the next one.
// CHECK-SAME: cp.async.wait_group 0
// CHECK-SAME: fence.proxy.async.shared::cta
// CHECK-SAME: bar.sync
// CHECK-SAME: cp.async.commit_group
// CHECK-SAME: vote.sync.ballot.b32
// Queries and keys, both K-major: no transposition.
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// CHECK-SAME: a, b, zero, 1, 1, 0, 0;
// CHECK-SAME: wgmma.wait_group.sync.aligned 0
// CHECK-SAME: stmatrix.sync.aligned.m8n8.x4.shared.b16
// CHECK-SAME: st.global.v4.b32
#q = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d1 * 32 + d3)>
#mask = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d3)>
shapejit.kernel @k symbols 2 (%q: tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>, %mask: tensor<?xi1, #shapejit.shape<[s0 * s1]>>) {
  %y = shapejit.attention over [s0, 12, s1, s1, 32, 32]
    q(%q at #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>)
    k(%q at #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>)
    v(%q at #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>)
    mask(%mask at #mask : tensor<?xi1, #shapejit.shape<[s0 * s1]>>)
    {scale = 0.17 : f64} -> #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>
  shapejit.yield %y : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>
}
