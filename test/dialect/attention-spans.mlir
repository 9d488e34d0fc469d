// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s | shapejit-opt | FileCheck %s
// RUN: shapejit-opt %s --mlir-print-op-generic | shapejit-opt | FileCheck %s

// Attention whose batches differ in how many queries or keys they have.

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
!rows = tensor<?x8xf32, #shapejit.shape<[s2, 8]>>
!mask = tensor<?x?xi1, #shapejit.shape<[s0, s1]>>
!lengths = tensor<?xi32, #shapejit.shape<[s0]>>
!starts = tensor<?xi64, #shapejit.shape<[s0 + 1]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#row = affine_map<(d0, d1, d2, d3) -> (d2, d1 * 4 + d3)>

// CHECK-LABEL: func.func @lengths
// CHECK: v(
// CHECK-NEXT: lengths(%{{.*}} at {{.*}} : tensor<?xi32, {{.*}}>)
// CHECK-NEXT: {causal = {{.*}}, from_end, scale = 5.000000e-01 : f64} -> {{.*}} : tensor<?x2x?x4xf32, {{.*}}>
// CHECK: mask(%{{.*}} at {{.*}} : tensor<?x?xi1, {{.*}}>)
// CHECK-NEXT: lengths(%{{.*}} at {{.*}} : tensor<?xi32, {{.*}}>)
// CHECK-NEXT: {is_initialized, scale = 5.000000e-01 : f64} -> {{.*}} : tensor<?x2x?x4xf32, {{.*}}>
func.func @lengths(%q: !q, %m: !mask, %l: !lengths) -> (!q, !q) {
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q)
      lengths(%l at affine_map<(d0, d1) -> (d0)> : !lengths)
      {scale = 0.5 : f64, causal = affine_map<() -> (0)>, from_end} -> #id : !q
  %1 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q)
      mask(%m at affine_map<(d0, d1, d2, d3) -> (d0, d3)> : !mask)
      lengths(%l at affine_map<(d0, d1) -> (d0)> : !lengths)
      {scale = 0.5 : f64, is_initialized} -> #id : !q
  return %0, %1 : !q, !q
}

// CHECK-LABEL: func.func @ragged
// CHECK: lengths(
// CHECK-NEXT: starts(%{{.*}} at [[MAP:#[a-z0-9]+]] : tensor<?xi64, {{.*}}>, %{{.*}} at [[MAP]] : tensor<?xi64, {{.*}}>)
// CHECK-NEXT: {scale = 5.000000e-01 : f64} -> {{.*}} : tensor<?x8xf32, {{.*}}>
func.func @ragged(%q: !rows, %l: !lengths, %qs: !starts, %ks: !starts) -> !rows {
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #row : !rows) k(%q at #row : !rows) v(%q at #row : !rows)
      lengths(%l at affine_map<(d0, d1) -> (d0)> : !lengths)
      starts(%qs at affine_map<(d0) -> (d0)> : !starts, %ks at affine_map<(d0) -> (d0)> : !starts)
      {scale = 0.5 : f64} -> #row : !rows
  return %0 : !rows
}
