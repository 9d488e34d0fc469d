// RUN: shapejit-opt %s --split-input-file --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{schedule=split_64x32_g2_s4_c1 parameters=block programmatic=true})' | FileCheck %s

// One query of four heads that share keys: four rows of a tile. CTAs share the keys; scratch memory
// holds two parts a CTA, of 64 rows of 64 columns with their maxima and totals.

// CHECK-LABEL: gpu.module @decode__split_64x32_g2_s4_c1
// Tiles of a batch, four heads, and 64 rows; of each as many parts as there may be blocks of keys.
// CHECK-SAME: \22grid\22:{\22tiles\22:{{\[\[}}[[B:[0-9]+]],1],[{{[0-9]+}},4],[{{[0-9]+}},64],[{{[0-9]+}},64]],\22ctas_per_sm\22:1}
// CHECK-SAME: {\22kind\22:\22workspace\22,\22bytes_per_cta\22:33792,\22zeroed\22:4096
// CHECK: llvm.func @decode__split_64x32_g2_s4_c1(
// CHECK-SAME: nvvm.reqntid = array<i32: 256, 1, 1>
// CHECK: nvvm.griddepcontrol launch_dependents
// CHECK-NOT: cp.async
// CHECK: nvvm.griddepcontrol wait
// Tiles that the CTA has a part of; blocks of the part.
// CHECK: scf.for
// CHECK: cp.async.cg.shared.global
// CHECK: scf.for
// CHECK: wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16
// CHECK: ex2.approx.ftz.f32
// CHECK: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// A whole tile is stored; of another one the sums are left and counted.
// CHECK: scf.if
// CHECK: st.global.b32
// CHECK: st.global.cg.v2.f32
// CHECK: atom.add.acq_rel.gpu.global.u32
// The last one adds all parts, stores the results and sets the counter back.
// CHECK: scf.if
// CHECK: ld.global.cg.v2.f32
// CHECK: ld.global.cg.v4.f32
// CHECK: rcp.approx.ftz.f32
// CHECK: st.global.v2.b32
// CHECK: st.relaxed.gpu.global.u32
#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#kv = affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 4, d2, d3)>
shapejit.kernel @decode symbols 2 (%q: tensor<?x8x1x64xbf16, #shapejit.shape<[s0, 8, 1, 64]>>, %k: tensor<?x2x?x64xbf16, #shapejit.shape<[s0, 2, s1, 64]>>, %v: tensor<?x2x?x64xbf16, #shapejit.shape<[s0, 2, s1, 64]>>) {
  %y = shapejit.attention over [s0, 8, 1, s1, 64, 64]
    q(%q at #q : tensor<?x8x1x64xbf16, #shapejit.shape<[s0, 8, 1, 64]>>)
    k(%k at #kv : tensor<?x2x?x64xbf16, #shapejit.shape<[s0, 2, s1, 64]>>)
    v(%v at #kv : tensor<?x2x?x64xbf16, #shapejit.shape<[s0, 2, s1, 64]>>)
    {scale = 0.125 : f64} -> #q : tensor<?x8x1x64xbf16, #shapejit.shape<[s0, 8, 1, 64]>>
  shapejit.yield %y : tensor<?x8x1x64xbf16, #shapejit.shape<[s0, 8, 1, 64]>>
}

// -----

// Heads with keys of their own, f16, a mask of bools for each query and head: no heads are packed.

// CHECK-LABEL: gpu.module @masked__split_64x32_g2_s4_c1
// CHECK-SAME: \22grid\22:{\22tiles\22:{{\[\[}}{{[0-9]+}},1],[{{[0-9]+}},1],[{{[0-9]+}},64],[{{[0-9]+}},64]]
// CHECK: wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16
// CHECK: ld.global.u8
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
shapejit.kernel @masked symbols 2 (%q: tensor<2x3x?x32xf16, #shapejit.shape<[2, 3, s0, 32]>>, %k: tensor<2x3x?x32xf16, #shapejit.shape<[2, 3, s1, 32]>>, %mask: tensor<2x3x?x?xi1, #shapejit.shape<[2, 3, s0, s1]>>) {
  %y = shapejit.attention over [2, 3, s0, s1, 32, 32]
    q(%q at #id : tensor<2x3x?x32xf16, #shapejit.shape<[2, 3, s0, 32]>>)
    k(%k at #id : tensor<2x3x?x32xf16, #shapejit.shape<[2, 3, s1, 32]>>)
    v(%k at #id : tensor<2x3x?x32xf16, #shapejit.shape<[2, 3, s1, 32]>>)
    mask(%mask at #id : tensor<2x3x?x?xi1, #shapejit.shape<[2, 3, s0, s1]>>)
    {scale = 0.17 : f64} -> #id : tensor<2x3x?x32xf16, #shapejit.shape<[2, 3, s0, 32]>>
  shapejit.yield %y : tensor<2x3x?x32xf16, #shapejit.shape<[2, 3, s0, 32]>>
}
