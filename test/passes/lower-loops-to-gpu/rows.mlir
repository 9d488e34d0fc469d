// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Scans and sorts are kernels of loops too.

// RUN: shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=loops_v4_w4_k0_t128_c2_x8 --mlir-print-local-scope | FileCheck %s

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!v = tensor<?x5xf32, #shapejit.shape<[s0, 5]>>
!i = tensor<?x5xi64, #shapejit.shape<[s0, 5]>>

// A row is cut over eight CTAs, which tell each other their totals.
// CHECK: gpu.module @scan__loops_v4_w4_k0_t128_c2_x8
// CHECK: nvvm.cluster_dim = array<i32: 8, 1, 1>
// CHECK: ld.global.v4.b32
// CHECK: nvvm.shfl.sync up
// CHECK: gpu.barrier
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK: nvvm.mapa
// CHECK: ld.shared::cluster.b32
// CHECK: st.global.v4.b32
shapejit.kernel @scan symbols 2 (%x: !x) {
  %y = shapejit.scan add over [s0, s1] ins(%x at #id : !x) -> !x
  shapejit.yield %y : !x
}

// The head of a row is collected in shared memory, with one addition a warp.
// CHECK: gpu.module @head__loops_v4_w4_k0_t128_c2_x8
// CHECK: vote.sync.ballot.b32
// CHECK: atom.shared.add.u32
// CHECK: st.shared.b64
// CHECK: ld.shared::cluster.b64
shapejit.kernel @head symbols 2 (%x: !x) {
  %v, %i = shapejit.sort over [s0, s1] ins(%x at #id : !x) {descending} -> !v, !i
  shapejit.yield %v, %i : !v, !i
}
