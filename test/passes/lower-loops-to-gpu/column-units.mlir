// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// All CTAs share long columns; the last one that is done with a block adds up the pieces.

// RUN: shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=loops_v4_w1_k64_t128_c2_l16_units --mlir-print-local-scope | FileCheck %s
// RUN: not shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=loops_v4_w1_k0_t128_c2_units 2>&1 | FileCheck %s --check-prefix=UNITS

// CHECK: gpu.module @k__loops_v4_w1_k64_t128_c2_l16_units
// Each CTA reads its piece, and the lanes of a warp that have the same columns meet.
// CHECK: ld.global.v4.b32
// CHECK: nvvm.shfl.sync bfly
// CHECK: st.shared.b32
// CHECK: gpu.barrier
// What it adds up to is published by a counter.
// CHECK: st.global.b32
// CHECK: gpu.barrier
// CHECK: atom.add.acq_rel.gpu.global.u32
// The last CTA reads it past the first-level cache.
// CHECK: ld.relaxed.gpu.global.u32
// CHECK: st.global.b32

// UNITS: error: this kernel has the schedule loops_v4_w1_k0_t128_c2_units; columns have up to 4096 units, of a CTA each
shapejit.kernel @k symbols 1 (%x: tensor<?x64xf32, #shapejit.shape<[s0, 64]>>) {
  %y = shapejit.loop over [s0, 64]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x64xf32, #shapejit.shape<[s0, 64]>>)
      outs(add affine_map<(d0, d1) -> (d1)> : tensor<64xf32, #shapejit.shape<[64]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %y : tensor<64xf32, #shapejit.shape<[64]>>
}
