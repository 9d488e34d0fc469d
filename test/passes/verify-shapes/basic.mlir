// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-verify-shapes | FileCheck %s

// Right in every place: the module comes out as it went in.

shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @tokens {id = 1, min = 1, max = 512}
shapejit.symbol @keys {id = 2, min = 1, max = 512, equal_to = 1}
shapejit.symbol @clamped {id = 3} = max(s1 - 2, 0)

shapejit.kernel @scale symbols 2 (%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  %0 = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
      outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  ^bb0(%v: f32):
    %n = shapejit.size affine_map<()[s0, s1] -> (s1)>
    %i = arith.index_cast %n : index to i32
    %f = arith.sitofp %i : i32 to f32
    %m = arith.mulf %v, %f : f32
    shapejit.yield %m : f32
  }
  shapejit.yield %0 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// An operand of a launch may regroup dims; equal symbols are equal sizes.
// CHECK-LABEL: func.func @launches
// CHECK-COUNT-2: shapejit.launch @scale
func.func @launches(%x: tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %y: tensor<?x?x8xf32, #shapejit.shape<[s0, s2, 8]>>)
    -> (tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, tensor<?x?x8xf32, #shapejit.shape<[s0, s2, 8]>>) {
  %0 = shapejit.launch @scale affine_map<()[s0, s1] -> (s0 * s1, s1)> (%x)
      : (tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>) -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
  %1 = shapejit.launch @scale affine_map<()[s0, s1] -> (s0 * s1, s1)> (%y)
      : (tensor<?x?x8xf32, #shapejit.shape<[s0, s2, 8]>>) -> tensor<?x?x8xf32, #shapejit.shape<[s0, s2, 8]>>
  return %0, %1 : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, tensor<?x?x8xf32, #shapejit.shape<[s0, s2, 8]>>
}

// Splitting, merging, transposing and slicing stay within bounds.
// CHECK-LABEL: func.func @views
// CHECK-COUNT-4: shapejit.view
func.func @views(%x: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) -> tensor<?x?xf32, #shapejit.shape<[s0 * s1, s3]>> {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)>
      : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>> -> tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>
  %1 = shapejit.view %0 at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d1 floordiv 32, d0 mod s1, d1 mod 32)>
      : tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>> -> tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>>
  %2 = shapejit.view %1 at affine_map<(d0, d1)[s0, s1] -> (d0, 0)>
      : tensor<?x384xf32, #shapejit.shape<[s0 * s1, 384]>> -> tensor<?x?xf32, #shapejit.shape<[s0 * s1, s1]>>
  // All but the first two, of which there are none if the tokens are fewer.
  %3 = shapejit.view %2 at affine_map<(d0, d1) -> (d0, d1 + 2)>
      : tensor<?x?xf32, #shapejit.shape<[s0 * s1, s1]>> -> tensor<?x?xf32, #shapejit.shape<[s0 * s1, s3]>>
  return %3 : tensor<?x?xf32, #shapejit.shape<[s0 * s1, s3]>>
}

// Grouped queries share heads of k and v.
// CHECK-LABEL: func.func @attention
// CHECK: shapejit.attention
func.func @attention(%q: tensor<?x?x128xf32, #shapejit.shape<[s0, s1, 128]>>, %k: tensor<?x?x64xf32, #shapejit.shape<[s0, s2, 64]>>)
    -> tensor<?x?x128xf32, #shapejit.shape<[s0, s1, 128]>> {
  %0 = shapejit.attention over [s0, 4, s1, s1, 32, 32]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)> : tensor<?x?x128xf32, #shapejit.shape<[s0, s1, 128]>>)
      k(%k at affine_map<(d0, d1, d2, d3) -> (d0, d2, (d1 floordiv 2) * 32 + d3)> : tensor<?x?x64xf32, #shapejit.shape<[s0, s2, 64]>>)
      v(%k at affine_map<(d0, d1, d2, d3) -> (d0, d2, (d1 floordiv 2) * 32 + d3)> : tensor<?x?x64xf32, #shapejit.shape<[s0, s2, 64]>>)
      {scale = 1.0 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)> : tensor<?x?x128xf32, #shapejit.shape<[s0, s1, 128]>>
  return %0 : tensor<?x?x128xf32, #shapejit.shape<[s0, s1, 128]>>
}
