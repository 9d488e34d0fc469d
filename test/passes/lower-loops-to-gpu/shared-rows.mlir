// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Rows that registers do not hold lie in shared memory: they are read from global memory once.

// RUN: shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=loops_v4_w4_k4_t128_c2_shared --mlir-print-local-scope | FileCheck %s
// RUN: not shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=loops_v4_w4_k3_t128_c2_shared 2>&1 | FileCheck %s --check-prefix=ROOM
// RUN: not shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=loops_v2_w4_k8_t128_c2_shared 2>&1 | FileCheck %s --check-prefix=BLOCKS

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
!x = tensor<?x2048xf32, #shapejit.shape<[s0, 2048]>>
!v = tensor<?xf32, #shapejit.shape<[s0]>>

// One thread sets up a barrier for each piece of a row, and starts to copy the first row.
// CHECK: gpu.module @k__loops_v4_w4_k4_t128_c2_shared
// CHECK: nvgpu.mbarrier.init
// CHECK: nvgpu.mbarrier.init
// CHECK: nvvm.fence.mbarrier.init
// CHECK: gpu.barrier
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// CHECK: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
// The first pass waits for the pieces, the second one has them.
// CHECK: scf.for
// CHECK: nvgpu.mbarrier.try_wait.parity
// CHECK-COUNT-2: ld.shared.v4.b32
// CHECK-NOT: nvgpu.mbarrier.try_wait.parity
// CHECK-NOT: ld.global
// CHECK-COUNT-2: ld.shared.v4.b32
// CHECK-COUNT-2: st.global.v4.b32
// Nobody reads the row any more: the next one may come.
// CHECK: gpu.barrier
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// CHECK: cp.async.bulk.shared::cluster.global

// ROOM: error: this kernel has the variant loops_v4_w4_k3_t128_c2_shared, which has no room for its rows in shared memory
// BLOCKS: error: this kernel has the variant loops_v2_w4_k8_t128_c2_shared, which keeps rows in shared memory, and reads no rows that lie side by side in blocks of 16 bytes
shapejit.kernel @k symbols 1 (%x: !x) {
  %m = shapejit.loop over [s0, 2048] ins(%x at #id : !x) outs(max #row : !v) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  %y = shapejit.loop over [s0, 2048] ins(%x at #id : !x, %m at #row : !v) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32):
    %d = arith.subf %a, %b : f32
    shapejit.yield %d : f32
  }
  shapejit.yield %y : !x
}
