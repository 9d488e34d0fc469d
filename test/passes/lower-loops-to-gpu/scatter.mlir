// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=loops_v4_w1_k0_t128_c4 | FileCheck %s

// A vector goes to the place of its row, if there is such a row.

module attributes {shapejit.target = "cuda:sm_90a:h200"} {
// CHECK: llvm.func @rows__loops_v4_w1_k0_t128_c4(
// CHECK: "ld.global.v4.b32 {$0, $1, $2, $3}, [$4+0];"
// CHECK: %[[WIDE:.*]] = {{.*}}"ld.global.b64 $0, [$1+0];"
// CHECK: %[[INSIDE:.*]] = arith.cmpi ult, %{{.*}}, %{{.*}} : i64
// CHECK: "@$5 st.global.v4.b32 [$0+0], {$1, $2, $3, $4};"
shapejit.kernel @rows symbols 1 (%x: tensor<?x16xf32, #shapejit.shape<[s0, 16]>>, %p: tensor<?xi64, #shapejit.shape<[s0]>>, %cache: tensor<8x16xf32, #shapejit.shape<[8, 16]>>) {
  %0 = shapejit.scatter over [s0, 16] from(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x16xf32, #shapejit.shape<[s0, 16]>>)
      by(%p at affine_map<(d0, d1) -> (d0)> : tensor<?xi64, #shapejit.shape<[s0]>>)
      into(%cache at affine_map<(d0, d1, d2) -> (d2, d1)> : tensor<8x16xf32, #shapejit.shape<[8, 16]>>)
  shapejit.yield %0 : tensor<8x16xf32, #shapejit.shape<[8, 16]>>
}
}
