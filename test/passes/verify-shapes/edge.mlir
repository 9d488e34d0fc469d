// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --shapejit-verify-shapes | FileCheck %s

// A range makes the slice legal.
shapejit.symbol @n {id = 0, min = 3, max = 8}
// CHECK-LABEL: func.func @range
func.func @range(%x: tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0 - 2]>> {
  %0 = shapejit.view %x at affine_map<(d0) -> (d0 + 2)>
      : tensor<?xf32, #shapejit.shape<[s0]>> -> tensor<?xf32, #shapejit.shape<[s0 - 2]>>
  return %0 : tensor<?xf32, #shapejit.shape<[s0 - 2]>>
}

// -----

// So does a constraint.
shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @m {id = 1, min = 1, max = 8}
shapejit.constraint affine_set<()[s0, s1] : (s0 - s1 >= 0)>
// CHECK-LABEL: func.func @constraint
func.func @constraint(%x: tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s1]>> {
  %0 = shapejit.view %x at affine_map<(d0) -> (d0)>
      : tensor<?xf32, #shapejit.shape<[s0]>> -> tensor<?xf32, #shapejit.shape<[s1]>>
  return %0 : tensor<?xf32, #shapejit.shape<[s1]>>
}

// -----

// And a divisor: s0 is even, so that its two halves are all of it.
shapejit.symbol @n {id = 0, min = 2, max = 64, divisor = 2}
shapejit.kernel @halves symbols 1 (%x: tensor<2x?xf32, #shapejit.shape<[2, s0]>>) {
  %0 = shapejit.loop over [2, s0]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<2x?xf32, #shapejit.shape<[2, s0]>>)
      outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<2x?xf32, #shapejit.shape<[2, s0]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : tensor<2x?xf32, #shapejit.shape<[2, s0]>>
}
// CHECK-LABEL: func.func @divisor
func.func @divisor(%x: tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0]>> {
  %0 = shapejit.launch @halves affine_map<()[s0] -> (s0 floordiv 2)> (%x)
      : (tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0]>>
  return %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}

// -----

// An empty space reads nothing, wherever its map points.
// CHECK-LABEL: func.func @empty
func.func @empty(%x: tensor<4xf32, #shapejit.shape<[4]>>) -> tensor<0xf32, #shapejit.shape<[0]>> {
  %0 = shapejit.view %x at affine_map<(d0) -> (d0 + 9)>
      : tensor<4xf32, #shapejit.shape<[4]>> -> tensor<0xf32, #shapejit.shape<[0]>>
  return %0 : tensor<0xf32, #shapejit.shape<[0]>>
}

// -----

// A kernel that nothing launches is checked for what can be known.
// CHECK-LABEL: shapejit.kernel @unused
shapejit.kernel @unused symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
  %0 = shapejit.view %x at affine_map<(d0) -> (d0 + 1)>
      : tensor<?xf32, #shapejit.shape<[s0]>> -> tensor<?xf32, #shapejit.shape<[s0]>>
  shapejit.yield %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}
