// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-pack-weights=panel=16 --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}

!x = tensor<?x?x20xf32, #shapejit.shape<[s0, s1, 20]>>
!w = tensor<20x4x3xf32, #shapejit.shape<[20, 4, 3]>>

// Groups of four channels, two of which fit into half a panel: packed over the channels of all groups.

// CHECK-LABEL: func.func @narrow
// CHECK: shapejit.pack %{{.*}} over [20, 3, 4] at affine_map<(d0, d1, d2) -> (d0, d2, d1)> {dim = 0 : i64, panel = 8 : i64} : {{.*}} -> tensor<3x3x4x8xf32, {{.*}}>
// CHECK: weight(%{{.*}} at affine_map<(d0, d1, d2, d3) -> ((d0 * 4 + d1) floordiv 8, d3, d2, (d0 * 4 + d1) mod 8)> :
func.func @narrow(%x: !x, %w: !w {shapejit.kind = "weight"}) -> !x {
  %0 = shapejit.conv over [s0, 5, s1, 4, 4, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g * 4 + c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (g * 4 + f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, g * 4 + f)> : !x
  return %0 : !x
}

// A transposed one, and one of a single group, are products: a panel has the columns of one group.

!one = tensor<4x4x3xf32, #shapejit.shape<[4, 4, 3]>>
!four = tensor<?x?x4xf32, #shapejit.shape<[s0, s1, 4]>>
!long = tensor<?x?x20xf32, #shapejit.shape<[s0, s1 * 2 + 1, 20]>>
// CHECK-LABEL: func.func @products
// CHECK: shapejit.pack %{{.*}} over [5, 4, 3, 4] at {{.*}} {dim = 1 : i64, panel = 8 : i64}
// CHECK: shapejit.pack %{{.*}} over [1, 4, 3, 4] at {{.*}} {dim = 1 : i64, panel = 8 : i64}
func.func @products(%x: !x, %w: !w {shapejit.kind = "weight"}, %y: !four, %v: !one {shapejit.kind = "weight"}) -> (!long, !four) {
  %0 = shapejit.conv over [s0, 5, s1 * 2 + 1, 4, 4, 3] image [s1] lhs_dilation [2] padding [(2, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g * 4 + c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (g * 4 + c, f, 2 - t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, g * 4 + f)> : !long
  %1 = shapejit.conv over [s0, 1, s1, 4, 4, 3] image [s1] padding [(1, 1)]
      input(%y at affine_map<(n, g, p, c) -> (n, p, c)> : !four)
      weight(%v at affine_map<(g, f, c, t) -> (f, c, t)> : !one)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !four
  return %0, %1 : !long, !four
}
