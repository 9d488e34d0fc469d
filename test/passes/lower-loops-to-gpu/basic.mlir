// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --shapejit-lower-loops-to-gpu | FileCheck %s

// One module a distinct variant of the dispatch; the kernel and its dispatch stay. Points: vectors,
// if all addresses are aligned, and then what is left one by one.

// CHECK-LABEL: module attributes {shapejit.target = "cuda:sm_90a:h200"}
// CHECK: shapejit.kernel @double
// CHECK: gpu.module @double__loops_v4_w1_k0_t256_c4 [#nvvm.target<O = 3, chip = "sm_90a", features = "+ptx83">]
// CHECK-SAME: shapejit.interface = "{\22entry\22:\22double__loops_v4_w1_k0_t256_c4\22,\22threads\22:256,\22shared_bytes\22:0,\22cluster\22:1,
// A CTA has 1024 elements.
// CHECK-SAME: \22grid\22:{\22tiles\22:{{\[\[}}[[GRID:[0-9]+]],1]],\22ctas_per_sm\22:4},\22values\22:[{{.*}}\22(s0 + 1023)//1024\22
// CHECK-SAME: \22block\22:false,\22block_bytes\22:0,\22programmatic\22:false}"
// CHECK: llvm.func @double__loops_v4_w1_k0_t256_c4(
// CHECK-SAME: nvvm.kernel, nvvm.minctasm = 4 : i32, nvvm.reqntid = array<i32: 256, 1, 1>
// CHECK: %[[ALIGNED:.*]] = arith.cmpi eq, %{{.*}}, %{{.*}} : i64
// CHECK: %[[VECTORS:.*]] = arith.select %[[ALIGNED]], %{{.*}}, %{{.*}} : i32
// CHECK: scf.for %{{.*}} = %{{.*}} to %[[VECTORS]] step
// CHECK: "ld.global.v4.b32 {$0, $1, $2, $3}, [$4+0];"
// CHECK-COUNT-4: arith.addf
// CHECK: "st.global.v4.b32 [$0+0], {$1, $2, $3, $4};"
// CHECK: scf.for
// CHECK: "ld.global.b32 $0, [$1+0];"
// CHECK: arith.addf
// CHECK: "st.global.b32 [$0+0], $1;"
// CHECK: gpu.module @double__loops_v2_w1_k0_t128_c2
// CHECK: shapejit.dispatch @double
#id = affine_map<(d0) -> (d0)>
module attributes {shapejit.target = "cuda:sm_90a:h200"} {
  shapejit.kernel @double symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
    %y = shapejit.loop over [s0] ins(%x at #id : tensor<?xf32, #shapejit.shape<[s0]>>)
        outs(#id : tensor<?xf32, #shapejit.shape<[s0]>>) {
    ^bb0(%v: f32):
      %1 = arith.addf %v, %v : f32
      shapejit.yield %1 : f32
    }
    shapejit.yield %y : tensor<?xf32, #shapejit.shape<[s0]>>
  }
  shapejit.dispatch @double by affine_map<()[s0] -> (s0)> [
    #shapejit.bucket<[0], [99], "loops_v4_w1_k0_t256_c4", "16 bytes">,
    #shapejit.bucket<[100], [199], "loops_v2_w1_k0_t128_c2", "8 bytes">,
    #shapejit.bucket<[200], [?], "loops_v4_w1_k0_t256_c4", "16 bytes">
  ]
}

// -----

// A row cluster: everything is loaded at once, the row stays in registers. A warp a row: sums over
// lanes, no shared memory.

// CHECK-LABEL: gpu.module @norm__loops_v4_w1_k1_t64_c8
// CHECK-SAME: \22tiles\22:{{\[\[}}{{[0-9]+}},1]],\22ctas_per_sm\22:8},\22values\22:[{{.*}}\22(s0 + 1)//2\22
// Aligned:
// CHECK: scf.if
// CHECK: scf.for
// CHECK-COUNT-2: "ld.global.v2.b32
// CHECK-NOT: "ld.global
// CHECK-COUNT-5: nvvm.shfl.sync bfly
// CHECK-NOT: "ld.global
// CHECK: "st.global.v2.b32
// Not aligned: read again in each pass.
// CHECK: else
// CHECK: scf.for
// CHECK: scf.for
// CHECK: "ld.global.b16
// CHECK: nvvm.shfl.sync bfly
// CHECK: scf.for
// CHECK: "ld.global.b16
// CHECK: "st.global.b16
// CHECK-NOT: gpu.barrier
#full = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>
!x = tensor<?x128xbf16, #shapejit.shape<[s0, 128]>>
!w = tensor<128xbf16, #shapejit.shape<[128]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
module {
  shapejit.kernel @norm symbols 1 (%x: !x, %w: !w) {
    %s = shapejit.loop over [s0, 128] ins(%x at #full : !x) outs(add #row : !r) {
    ^bb0(%v: bf16):
      %1 = arith.extf %v : bf16 to f32
      %2 = arith.mulf %1, %1 : f32
      shapejit.yield %2 : f32
    }
    %y = shapejit.loop over [s0, 128] ins(%x at #full : !x, %w at #column : !w, %s at #row : !r)
        outs(#full : !x) {
    ^bb0(%v: bf16, %u: bf16, %t: f32):
      %1 = arith.extf %v : bf16 to f32
      %2 = arith.extf %u : bf16 to f32
      %3 = math.rsqrt %t : f32
      %4 = arith.mulf %1, %3 : f32
      %5 = arith.mulf %4, %2 : f32
      %6 = arith.truncf %5 : f32 to bf16
      shapejit.yield %6 : bf16
    }
    shapejit.yield %y : !x
  }
  shapejit.dispatch @norm by affine_map<() -> ()> [#shapejit.bucket<[], [], "loops_v4_w1_k1_t64_c8", "">]
}

// -----

// Columns side by side: warps share the rows, and meet in shared memory.

// CHECK-LABEL: gpu.module @pool__loops_v1_w1_k0_t128_c2
// CHECK-SAME: \22shared_bytes\22:1024
// CHECK: scf.for
// CHECK: scf.for
// CHECK-COUNT-4: ld.global.b32
// CHECK: scf.for
// CHECK: ld.global.b32
// CHECK: st.shared.b32
// CHECK: gpu.barrier
// CHECK: scf.if
// CHECK-COUNT-4: llvm.load {{.*}} !llvm.ptr<3>
// CHECK: st.global.b32
// CHECK: gpu.barrier
shapejit.kernel @pool symbols 2 (%x: tensor<?x?xf32, #shapejit.shape<[s0, s1]>>) {
  %y = shapejit.loop over [s0, s1]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>)
      outs(add affine_map<(d0, d1) -> (d1)> : tensor<?xf32, #shapejit.shape<[s1]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %y : tensor<?xf32, #shapejit.shape<[s1]>>
}
shapejit.dispatch @pool by affine_map<() -> ()> [#shapejit.bucket<[], [], "loops_v1_w1_k0_t128_c2", "">]
