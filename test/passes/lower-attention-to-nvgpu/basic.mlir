// RUN: shapejit-opt %s --split-input-file --shapejit-lower-attention-to-nvgpu | FileCheck %s

// One module a distinct variant of the dispatch; the kernel and its dispatch stay.

// CHECK-LABEL: module attributes {shapejit.target = "cuda:sm_90a:h200"}
// CHECK: shapejit.kernel @attention0
// CHECK: gpu.module @attention0__tiles_64x64_c4 [#nvvm.target<O = 3, chip = "sm_90a", features = "+ptx83">]
// CHECK-SAME: shapejit.interface = "{\22entry\22:\22attention0__tiles_64x64_c4\22,\22threads\22:128,\22shared_bytes\22:20480,\22cluster\22:1,
// A tile is 64 queries of a batch and head.
// CHECK-SAME: \22grid\22:{\22tiles\22:{{\[\[}}0,1],[2,1],[1,64]],\22ctas_per_sm\22:4},\22values\22:[\22s0\22,\22s1\22,\2212\22
// Pointers and sizes, no tensor maps.
// CHECK-NOT: tensor_map
// CHECK: llvm.func @attention0__tiles_64x64_c4(
// CHECK-SAME: nvvm.kernel, nvvm.minctasm = 4 : i32, nvvm.reqntid = array<i32: 128, 1, 1>
// Tiles of the CTA, and blocks of keys: the copies come first, then the products.
// CHECK: scf.for
// CHECK: cp.async.cg.shared.global
// CHECK: scf.for
// CHECK: cp.async.wait_group 0
// CHECK: nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>
// CHECK: gpu.barrier
// CHECK: cp.async.cg.shared.global
// CHECK: cp.async.commit_group
// What the mask shows, a bit a key.
// CHECK-COUNT-2: vote.sync.ballot.b32
// CHECK: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// CHECK: wgmma.wait_group.sync.aligned 0
// CHECK: ex2.approx.ftz.f32
// CHECK: cvt.rn.bf16x2.f32
// Weights from registers.
// CHECK: wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16
// CHECK: wgmma.wait_group.sync.aligned 0
// CHECK: rcp.approx.ftz.f32
// CHECK: nvvm.stmatrix
// CHECK: st.global.v4.b32
// CHECK: gpu.module @attention0__tiles_64x128_g2_c1
// CHECK: nvvm.reqntid = array<i32: 256, 1, 1>
// CHECK: wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
// CHECK: shapejit.dispatch @attention0
#q = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d1 * 32 + d3)>
#mask = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d3)>
module attributes {shapejit.target = "cuda:sm_90a:h200"} {
  shapejit.kernel @attention0 symbols 2 (%q: tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>, %k: tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>, %v: tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>, %mask: tensor<?xi1, #shapejit.shape<[s0 * s1]>>) {
    %y = shapejit.attention over [s0, 12, s1, s1, 32, 32]
      q(%q at #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>)
      k(%k at #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>)
      v(%v at #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>)
      mask(%mask at #mask : tensor<?xi1, #shapejit.shape<[s0 * s1]>>)
      {scale = 0.17 : f64} -> #q : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>
    shapejit.yield %y : tensor<?x384xbf16, #shapejit.shape<[s0 * s1, 384]>>
  }
  shapejit.dispatch @attention0 by affine_map<()[s0, s1] -> (s1)> [
    #shapejit.bucket<[0], [64], "tiles_64x64_c4", "one block of keys">,
    #shapejit.bucket<[65], [128], "tiles_64x128_g2_c1", "few queries">,
    #shapejit.bucket<[129], [?], "tiles_64x64_c4", "again">
  ]
}

// -----

// A kernel with neither a dispatch nor the option is left alone, and so are other kernels.
// CHECK-LABEL: module {
// CHECK-NOT: gpu.module
#q = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#x = affine_map<(d0) -> (d0)>
module {
  shapejit.kernel @attention0 symbols 1 (%q: tensor<2x4x?x64xf16, #shapejit.shape<[2, 4, s0, 64]>>) {
    %y = shapejit.attention over [2, 4, s0, s0, 64, 64]
      q(%q at #q : tensor<2x4x?x64xf16, #shapejit.shape<[2, 4, s0, 64]>>)
      k(%q at #q : tensor<2x4x?x64xf16, #shapejit.shape<[2, 4, s0, 64]>>)
      v(%q at #q : tensor<2x4x?x64xf16, #shapejit.shape<[2, 4, s0, 64]>>)
      {scale = 0.125 : f64} -> #q : tensor<2x4x?x64xf16, #shapejit.shape<[2, 4, s0, 64]>>
    shapejit.yield %y : tensor<2x4x?x64xf16, #shapejit.shape<[2, 4, s0, 64]>>
  }
  shapejit.kernel @pointwise0 symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
    %y = shapejit.loop over [s0] ins(%x at #x : tensor<?xf32, #shapejit.shape<[s0]>>) outs(#x : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%a: f32):
      shapejit.yield %a : f32
    }
    shapejit.yield %y : tensor<?xf32, #shapejit.shape<[s0]>>
  }
  shapejit.dispatch @pointwise0 by affine_map<() -> ()> [#shapejit.bucket<[], [], "other", "other family">]
}
