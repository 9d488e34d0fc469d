// RUN: shapejit-opt %s --split-input-file --pass-pipeline='builtin.module(shapejit-lower-attention-to-nvgpu{schedule=tiles_64x64_c2 parameters=block programmatic=true constant-weights=true})' | FileCheck %s

// Block form, programmatic: the entry is read at once, operands only after the wait. Queries, keys
// and values are parts of one tensor.

// CHECK-LABEL: gpu.module @packed__tiles_64x64_c2
// CHECK-SAME: {\22kind\22:\22pointer\22,\22operand\22:0,
// CHECK-SAME: {\22kind\22:\22pointer\22,\22operand\22:1,
// CHECK-SAME: \22block\22:true,\22block_bytes\22:128,\22programmatic\22:true}"
// CHECK: llvm.func @packed__tiles_64x64_c2(%{{.*}}: !llvm.ptr<1> {llvm.align = 128 : i64})
// CHECK-NOT: cp.async
// CHECK: nvvm.griddepcontrol launch_dependents
// CHECK: ld.relaxed.gpu.global
// CHECK-NOT: cp.async
// CHECK-NOT: cp.async
// CHECK: nvvm.griddepcontrol wait
// CHECK: cp.async
#q = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d1 * 32 + d3)>
#k = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d1 * 32 + d3 + 384)>
#v = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d1 * 32 + d3 + 768)>
shapejit.kernel @packed symbols 2 (%x: tensor<?x1152xbf16, #shapejit.shape<[s0 * s1, 1152]>>) {
  %y = shapejit.attention over [s0, 12, s1, s1, 32, 32]
    q(%x at #q : tensor<?x1152xbf16, #shapejit.shape<[s0 * s1, 1152]>>)
    k(%x at #k : tensor<?x1152xbf16, #shapejit.shape<[s0 * s1, 1152]>>)
    v(%x at #v : tensor<?x1152xbf16, #shapejit.shape<[s0 * s1, 1152]>>)
    {scale = 0.17 : f64} -> #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>
  shapejit.yield %y : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>
}

// -----

// Causal with a cache, heads that four queries share, f16, values longer than keys; a constant
// number of queries, and a view between the argument and the attention.

// CHECK-LABEL: gpu.module @cache__tiles_64x64_c2
// CHECK: wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16
// CHECK: wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16
#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#kv = affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 4, d2, d3)>
#turn = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>
shapejit.kernel @cache symbols 2 (%q: tensor<?x8x1x64xf16, #shapejit.shape<[s0, 8, 1, 64]>>, %k: tensor<?x?x2x64xf16, #shapejit.shape<[s0, s1, 2, 64]>>, %v: tensor<?x2x?x128xf16, #shapejit.shape<[s0, 2, s1, 128]>>) {
  %t = shapejit.view %k at #turn : tensor<?x?x2x64xf16, #shapejit.shape<[s0, s1, 2, 64]>> -> tensor<?x2x?x64xf16, #shapejit.shape<[s0, 2, s1, 64]>>
  %y = shapejit.attention over [s0, 8, 1, s1, 64, 128]
    q(%q at #q : tensor<?x8x1x64xf16, #shapejit.shape<[s0, 8, 1, 64]>>)
    k(%t at #kv : tensor<?x2x?x64xf16, #shapejit.shape<[s0, 2, s1, 64]>>)
    v(%v at #kv : tensor<?x2x?x128xf16, #shapejit.shape<[s0, 2, s1, 128]>>)
    {scale = 0.125 : f64, causal = affine_map<()[s0, s1] -> (s1 - 1)>} -> #q : tensor<?x8x1x128xf16, #shapejit.shape<[s0, 8, 1, 128]>>
  shapejit.yield %y : tensor<?x8x1x128xf16, #shapejit.shape<[s0, 8, 1, 128]>>
}

// -----

// Keys whose elements are no neighbours are copied one by one.

// CHECK-LABEL: gpu.module @turned__tiles_64x64_c2
// CHECK: nounroll
// CHECK: ld.global.b16
#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#k = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3, d2)>
shapejit.kernel @turned symbols 1 (%q: tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>, %k: tensor<2x3x64x?xbf16, #shapejit.shape<[2, 3, 64, s0]>>) {
  %y = shapejit.attention over [2, 3, s0, s0, 64, 64]
    q(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>)
    k(%k at #k : tensor<2x3x64x?xbf16, #shapejit.shape<[2, 3, 64, s0]>>)
    v(%q at #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>)
    {scale = 0.125 : f64} -> #q : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
  shapejit.yield %y : tensor<2x3x?x64xbf16, #shapejit.shape<[2, 3, s0, 64]>>
}
