// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --shapejit-lower-loops-to-gpu=schedule=loops_v4_w1_k2_t128_c4 | FileCheck %s
// RUN: shapejit-opt %s --split-input-file --shapejit-lower-loops-to-gpu='schedule=loops_v4_w1_k2_t128_c4 parameters=block programmatic=true constant-weights=true' | FileCheck %s --check-prefix=BLOCK
// RUN: shapejit-opt %s --split-input-file --shapejit-lower-loops-to-gpu=schedule=loops_v4_w1_k2_t128_c4_wide | FileCheck %s --check-prefix=WIDE

// Rows of a size that is not known: in vectors if the size is a multiple, else cut where addresses
// are, with one more element of what is ahead of the vectors or behind them; and read again, one by
// one, if they are too long for registers. Bools are bytes.

// CHECK-LABEL: gpu.module @any__loops_v4_w1_k2_t128_c4
// CHECK: %[[REST:.*]] = arith.remui
// CHECK: %[[IS_MULTIPLE:.*]] = arith.cmpi eq, %[[REST]]
// CHECK: arith.cmpi sle
// CHECK: scf.if
// CHECK: "mov.b32 $0, 0; @$2 ld.global.b32 $0, [$1+0];"
// CHECK: "mov.b32 $0, 0; @$2 ld.global.b32 $0, [$1+128];"
// CHECK: arith.ori
// CHECK: nvvm.shfl.sync bfly
// CHECK: else
// CHECK: scf.if
// CHECK: arith.minui
// CHECK-COUNT-2: "mov.b32 $0, 0; @$2 ld.global.b32 $0, [$1+{{[0-9]+}}];"
// CHECK: "mov.b16 $0, 0; @$2 ld.global.u8 $0, [$1+0];"
// CHECK: arith.ori
// CHECK: nvvm.shfl.sync bfly
// CHECK: else
// CHECK: scf.for
// CHECK: scf.for
// CHECK: "ld.global.u8
// CHECK: "@$2 st.global.u8 [$0+0], $1;"

// Parameters are read from the block, at once; memory only after the wait.
// BLOCK-LABEL: gpu.module @any__loops_v4_w1_k2_t128_c4
// BLOCK-SAME: \22block\22:true,\22block_bytes\22:128,\22programmatic\22:true}"
// BLOCK: llvm.func @any__loops_v4_w1_k2_t128_c4(%{{.*}}: !llvm.ptr<1> {llvm.align = 128 : i64})
// BLOCK: nvvm.griddepcontrol launch_dependents
// BLOCK: "ld.relaxed.gpu.global.u32
// BLOCK-NOT: "ld.global
// BLOCK: nvvm.griddepcontrol wait
// BLOCK: ld.global

// WIDE-LABEL: gpu.module @any__loops_v4_w1_k2_t128_c4_wide
// WIDE: scf.for {{.*}} : i64 {
// WIDE-NOT: scf.for {{.*}} : i32 {
// WIDE: llvm.return
shapejit.kernel @any symbols 2 (%x: tensor<?x?xi1, #shapejit.shape<[s0, s1]>>) {
  %y = shapejit.loop over [s0, s1]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xi1, #shapejit.shape<[s0, s1]>>)
      outs(or affine_map<(d0, d1) -> (d0)> : tensor<?xi1, #shapejit.shape<[s0]>>) {
  ^bb0(%v: i1):
    shapejit.yield %v : i1
  }
  shapejit.yield %y : tensor<?xi1, #shapejit.shape<[s0]>>
}

// -----

// A view that is left over is a copy. What it reads is not side by side.

// CHECK-LABEL: gpu.module @transpose__
// CHECK: scf.for
// CHECK-COUNT-4: "ld.global.b32
// CHECK: "st.global.v4.b32
shapejit.kernel @transpose symbols 1 (%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  %y = shapejit.view %x at affine_map<(d0, d1) -> (d1, d0)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>> -> tensor<8x?xf32, #shapejit.shape<[8, s0]>>
  shapejit.yield %y : tensor<8x?xf32, #shapejit.shape<[8, s0]>>
}

// -----

// A row of a table by a loaded index: the index once, the row in vectors. A table of known size has
// elements, of one of unknown size that is asked first.

// CHECK-LABEL: gpu.module @gather__
// CHECK: arith.cmpi ne
// CHECK: scf.for
// CHECK: "ld.global.b64
// CHECK: %[[INDEX:.*]] = arith.index_cast
// CHECK-NOT: "ld.global.b64
// CHECK: arith.muli %{{.*}}, %{{.*}} : i32
// CHECK: "ld.global.v2.b32
// CHECK: @$3 ld.global.v2.b32
// CHECK: "st.global.v2.b32
!ids = tensor<?xi64, #shapejit.shape<[s0]>>
!table = tensor<100x64xf16, #shapejit.shape<[100, 64]>>
!any = tensor<?x64xf16, #shapejit.shape<[s1, 64]>>
shapejit.kernel @gather symbols 2 (%ids: !ids, %table: !table, %any: !any) {
  %y = shapejit.loop over [s0, 64] ins(%ids at affine_map<(d0, d1) -> (d0)> : !ids)
      outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x64xf16, #shapejit.shape<[s0, 64]>>) {
  ^bb0(%id: i64):
    %j = shapejit.index 1
    %i = arith.index_cast %id : i64 to index
    %v = tensor.extract %table[%i, %j] : !table
    %w = tensor.extract %any[%i, %j] : !any
    %s = arith.addf %v, %w : f16
    shapejit.yield %s : f16
  }
  shapejit.yield %y : tensor<?x64xf16, #shapejit.shape<[s0, 64]>>
}

// -----

// One loop whose results are reduced in two ways: two phases; the grid is as large as both.

// CHECK-LABEL: gpu.module @both__
// CHECK-SAME: \22values\22:[{{.*}}\22(s0 + 63)//64 + 1\22
// CHECK: "st.global.v4.b32
// CHECK: gpu.barrier
shapejit.kernel @both symbols 1 (%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  %y:2 = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
      outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>,
           max affine_map<(d0, d1) -> (d1)> : tensor<8xf32, #shapejit.shape<[8]>>) {
  ^bb0(%v: f32):
    %1 = arith.negf %v : f32
    shapejit.yield %1, %v : f32, f32
  }
  shapejit.yield %y#0, %y#1 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, tensor<8xf32, #shapejit.shape<[8]>>
}

// -----

// Kernels of other families are left alone.

// CHECK-LABEL: shapejit.kernel @gemm
// CHECK-NOT: gpu.module
shapejit.kernel @gemm symbols 1 (%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, %w: tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) {
  %y = shapejit.gemm over [s0, 64, 64]
    lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>)
    rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<64x64xbf16, #shapejit.shape<[64, 64]>>)
    -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  shapejit.yield %y : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
}
