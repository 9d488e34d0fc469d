// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-fold-views | FileCheck %s
// RUN: not shapejit-opt %s --pass-pipeline='builtin.module(shapejit-fold-views{depth=2})' 2>&1 | FileCheck %s --check-prefix=OPTION

// OPTION: no such option depth

shapejit.symbol @n {id = 0, min = 1, max = 64}

// A view that nothing in a kernel reads is not the pass's to fold.
// CHECK-LABEL: func.func @returned
func.func @returned(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<8x?xf32, #shapejit.shape<[8, s0]>> {
  // CHECK: shapejit.view
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d1, d0)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>> -> tensor<8x?xf32, #shapejit.shape<[8, s0]>>
  return %0 : tensor<8x?xf32, #shapejit.shape<[8, s0]>>
}

// Reading the lhs of a gemm through a division of k would make every load an index
// computation: the view stays, and becomes a copy.
// CHECK-LABEL: func.func @divided_k
func.func @divided_k(%x: tensor<4x?x2xf32, #shapejit.shape<[4, s0, 2]>>, %w: tensor<16x8xf32, #shapejit.shape<[16, 8]>>) -> tensor<?x16xf32, #shapejit.shape<[s0, 16]>> {
  // CHECK: %[[V:.*]] = shapejit.view
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d1 floordiv 2, d0, d1 mod 2)> : tensor<4x?x2xf32, #shapejit.shape<[4, s0, 2]>> -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  // CHECK: lhs(%[[V]] at
  %1 = shapejit.gemm over [s0, 16, 8]
      lhs(%0 at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<16x8xf32, #shapejit.shape<[16, 8]>>)
      -> tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
  return %1 : tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
}
