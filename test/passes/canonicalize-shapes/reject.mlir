// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-canonicalize-shapes | FileCheck %s
// RUN: not shapejit-opt %s --pass-pipeline='builtin.module(shapejit-canonicalize-shapes{rows=maybe})' 2>&1 | FileCheck %s --check-prefix=OPTION

// OPTION: is invalid value for boolean argument

shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}

// Symbols with the same range are not the same size.
// CHECK-LABEL: func.func @distinct_symbols
// CHECK-SAME: tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
func.func @distinct_symbols(%x: tensor<?x?xf32, #shapejit.shape<[s0, s1]>>) -> tensor<?xf32, #shapejit.shape<[s0]>> {
  // CHECK: shapejit.loop over [s0, s1]
  %0 = shapejit.loop over [s0, s1]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>)
      outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  return %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}

// The types of arguments and results are the caller's: unit dims stay in them.
// CHECK-LABEL: func.func @signature
// CHECK-SAME: (%{{.*}}: tensor<1x?xf32, #shapejit.shape<[1, s0]>>) -> tensor<1x?xf32, #shapejit.shape<[1, s0]>>
func.func @signature(%x: tensor<1x?xf32, #shapejit.shape<[1, s0]>>) -> tensor<1x?xf32, #shapejit.shape<[1, s0]>> {
  %0 = shapejit.loop over [1, s0]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<1x?xf32, #shapejit.shape<[1, s0]>>)
      outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<1x?xf32, #shapejit.shape<[1, s0]>>) {
  ^bb0(%a: f32):
    %1 = arith.negf %a : f32
    shapejit.yield %1 : f32
  }
  return %0 : tensor<1x?xf32, #shapejit.shape<[1, s0]>>
}
