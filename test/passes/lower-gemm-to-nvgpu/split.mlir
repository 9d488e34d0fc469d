// RUN: shapejit-opt %s --split-input-file --shapejit-lower-gemm-to-nvgpu="schedule=swapped_128x80x64_s6_w2_k3" | FileCheck %s

// Three CTAs without a cluster share a tile's K, through scratch memory.

// CHECK-LABEL: gpu.module @free__swapped
// CHECK-SAME: \22cluster\22:1
// A grid of three parts of every tile.
// CHECK-SAME: \22tiles\22:{{\[\[}}1,128],[2,80],[3,1]],\22ctas_per_sm\22:1},\22values\22:[\22s2\22,\22s1\22,\22s0\22,\223\22]
// Sums of 128 x 80 in f32 for every CTA, and flags that are zero.
// CHECK-SAME: {\22kind\22:\22workspace\22,\22bytes_per_cta\22:40960,\22zeroed\22:4096
// CHECK: llvm.func @free__swapped_128x80x64_s6_w2_k3(
// CHECK: nvvm.setmaxregister decrease
// CHECK: scf.while
// CHECK: nvgpu.tma.async.load
// CHECK: nvvm.setmaxregister increase
// CHECK: scf.while
// A later part: sums, then the flag.
// CHECK: scf.if
// CHECK-COUNT-10: st.global.cg.v4.f32
// CHECK: st.release.gpu.global.u32
// CHECK: } else {
// The owner: both flags, then both parts of every sum, the second part added last.
// CHECK-COUNT-2: ld.acquire.gpu.global.u32
// CHECK: ld.global.cg.v4.f32
// CHECK: arith.addf
// CHECK: nvgpu.tma.async.store
#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
shapejit.kernel @free symbols 3 (%x: tensor<?x?xbf16, #shapejit.shape<[s0, s2]>>, %w: tensor<?x?xbf16, #shapejit.shape<[s1, s2]>>) {
  %y = shapejit.gemm over [s0, s1, s2]
    lhs(%x at #x : tensor<?x?xbf16, #shapejit.shape<[s0, s2]>>)
    rhs(%w at #w : tensor<?x?xbf16, #shapejit.shape<[s1, s2]>>)
    -> tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
  shapejit.yield %y : tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
}
