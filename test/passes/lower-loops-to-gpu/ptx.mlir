// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --pass-pipeline='builtin.module(shapejit-lower-loops-to-gpu{schedule=loops_v8_w4_k1_t128_c8 parameters=block programmatic=true},gpu.module(convert-nvgpu-to-nvvm,canonicalize,cse,convert-scf-to-cf,convert-gpu-to-nvvm,expand-strided-metadata,convert-arith-to-llvm,convert-vector-to-llvm,convert-index-to-llvm,canonicalize,cse,convert-nvvm-to-llvm,reconcile-unrealized-casts),shapejit-finish-nvgpu,gpu-module-to-binary{format=isa})' | FileCheck %s

// Down to PTX, without a GPU. Several warps share a row.

// CHECK: gpu.binary @softmax__loops_v8_w4_k1_t128_c8
// CHECK-SAME: .target sm_90a
// CHECK-SAME: .extern .shared .align 1024 .b8 __dynamic_shmem__
// CHECK-SAME: .visible .entry softmax__loops_v8_w4_k1_t128_c8(
// CHECK-SAME: .reqntid 128
// CHECK-SAME: .minnctapersm 8
// CHECK-SAME: griddepcontrol.launch_dependents
// CHECK-SAME: ld.relaxed.gpu.global.u32
// CHECK-SAME: griddepcontrol.wait
// Of rows that are not aligned, one by one:
// CHECK-SAME: ld.global.b16
// CHECK-SAME: st.global.b16
// And in vectors, a row once:
// CHECK-SAME: ld.global.v4.b32
// CHECK-SAME: max.NaN.f32
// CHECK-SAME: shfl.sync.bfly.b32
// CHECK-SAME: st.shared.b32
// CHECK-SAME: bar.sync
// CHECK-SAME: ld.shared.b32
// CHECK-SAME: ex2.approx.ftz.f32
// CHECK-SAME: bar.sync
// CHECK-SAME: div.full.f32
// CHECK-SAME: cvt.rn.bf16x2.f32
// CHECK-SAME: st.global.v4.b32
#full = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
!x = tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>
!e = tensor<?x1024xf32, #shapejit.shape<[s0, 1024]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
shapejit.kernel @softmax symbols 1 (%x: !x) {
  %m = shapejit.loop over [s0, 1024] ins(%x at #full : !x) outs(max #row : !r) {
  ^bb0(%v: bf16):
    %1 = arith.extf %v : bf16 to f32
    shapejit.yield %1 : f32
  }
  %e = shapejit.loop over [s0, 1024] ins(%x at #full : !x, %m at #row : !r) outs(#full : !e) {
  ^bb0(%v: bf16, %t: f32):
    %1 = arith.extf %v : bf16 to f32
    %2 = arith.subf %1, %t : f32
    %3 = math.exp %2 : f32
    shapejit.yield %3 : f32
  }
  %s = shapejit.loop over [s0, 1024] ins(%e at #full : !e) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %y = shapejit.loop over [s0, 1024] ins(%e at #full : !e, %s at #row : !r) outs(#full : !x) {
  ^bb0(%v: f32, %t: f32):
    %1 = arith.divf %v, %t : f32
    %2 = arith.truncf %1 : f32 to bf16
    shapejit.yield %2 : bf16
  }
  shapejit.yield %y : !x
}
