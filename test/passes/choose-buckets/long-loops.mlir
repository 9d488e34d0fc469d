// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-choose-buckets=max-regions=100 | FileCheck %s

// Rows that registers cannot hold lie in the shared memory of a CTA or of a cluster: few of any length
// in that of as many CTAs as there are for them.

// CHECK: shapejit.dispatch @centre by
// CHECK-NEXT: <[1, 1], [1024, 1000], "loops_v8_w1_{{[a-z0-9_]+}}", "a warp a row, {{.*}}">
// CHECK-NEXT: <[1025, 1], [8192, 1000], "loops_v8_w8_{{[a-z0-9_]+}}", "8 warps a row, {{.*}}">
// CHECK: "loops_v8_w8_k13_t256_c4_shared", "a row of up to 26624 elements in shared memory, 4 CTAs of 256 threads on a multiprocessor">
// CHECK-NEXT: <[26625, 1], [50257, 8], "loops_v8_w16_k1_t512_c1_x16", "{{.*}}">
// CHECK-NEXT: <[26625, 9], [50257, 16], "loops_v8_w16_k2_t512_c1_x8", "{{.*}}">
// CHECK-NEXT: <[26625, 17], [50257, 33], "loops_v8_w16_k4_t512_c1_x4_shared", "up to 33 long rows, each shared by a cluster of 4 CTAs, up to 65536 elements of it kept in shared memory">
// CHECK-NEXT: <[26625, 34], [50257, 132], "loops_v8_w16_k13_t512_c2_x2_shared", "a row of up to 106496 elements in the shared memory of 2 CTAs, 2 CTAs of 512 threads on a multiprocessor">
// CHECK-NEXT: <[26625, 133], [50257, 1000], "loops_v8_w16_k13_t512_c2_shared", "a row of up to 53248 elements in shared memory, 2 CTAs of 512 threads on a multiprocessor">
// CHECK-NEXT: ]

// All CTAs share columns that are long and few.

// CHECK: shapejit.dispatch @total by
// CHECK: "loops_v8_w1_k264_t512_c2_l8_units_wide", "up to 8448 columns, whose steps 264 CTAs share">
// CHECK-NEXT: ]
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
!x = tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
!m = tensor<?xf32, #shapejit.shape<[s0]>>
!y = tensor<?x64xbf16, #shapejit.shape<[s0 * s1, 64]>>
!z = tensor<64xf32, #shapejit.shape<[64]>>
shapejit.symbol @rows {id = 0, min = 1, max = 1000}
shapejit.symbol @columns {id = 1, min = 1, max = 50257}
shapejit.kernel @centre symbols 2 (%x: !x) {
  %0 = shapejit.loop over [s0, s1] ins(%x at #id : !x) outs(max #row : !m) {
  ^bb0(%v: bf16):
    %1 = arith.extf %v : bf16 to f32
    shapejit.yield %1 : f32
  }
  %1 = shapejit.loop over [s0, s1] ins(%x at #id : !x, %0 at #row : !m) outs(#id : !x) {
  ^bb0(%v: bf16, %n: f32):
    %2 = arith.extf %v : bf16 to f32
    %3 = arith.subf %2, %n : f32
    %4 = arith.truncf %3 : f32 to bf16
    shapejit.yield %4 : bf16
  }
  shapejit.yield %1 : !x
}
shapejit.kernel @total symbols 1 (%y: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>) {
  %0 = shapejit.loop over [s0, 64] ins(%y at #id : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>)
      outs(add affine_map<(d0, d1) -> (d1)> : !z) {
  ^bb0(%v: bf16):
    %1 = arith.extf %v : bf16 to f32
    shapejit.yield %1 : f32
  }
  shapejit.yield %0 : !z
}
func.func @main(%x: !x, %y: !y) -> (!x, !z) {
  %0 = shapejit.launch @centre affine_map<()[s0, s1] -> (s0, s1)> (%x) : (!x) -> !x
  %1 = shapejit.launch @total affine_map<()[s0, s1] -> (s0 * s1)> (%y) : (!y) -> !z
  return %0, %1 : !x, !z
}
