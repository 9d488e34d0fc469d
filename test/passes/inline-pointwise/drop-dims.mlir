// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-inline-pointwise --mlir-print-local-scope --split-input-file | FileCheck %s

// The mask that Hugging Face models build: padding, and a causal part that is always true. It depends
// on batch and key only, so that is all that is stored.

!ids = tensor<?x?xi64, #shapejit.shape<[s0, s1]>>
!h = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!mask = tensor<?x1x?x?xi1, #shapejit.shape<[s0, 1, s1, s1]>>
#heads = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 4 + d3)>
shapejit.symbol @batch {id = 0, min = 0, max = 64}
shapejit.symbol @seq {id = 1, min = 0, max = 64}
// CHECK-LABEL: func.func @mask
// CHECK-SAME: (%[[IDS:.*]]: tensor<?x?xi64, {{.*}}>, %{{.*}}: tensor<?x?x8xf32,
// CHECK-NEXT: %[[M:.*]] = shapejit.loop over [s0, s1]
// CHECK-NEXT: ins(%[[IDS]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}})
// CHECK-NEXT: outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<?x?xi1, #shapejit.shape<[s0, s1]>>) {
// CHECK-NEXT: ^bb0(%[[ID:.*]]: i64):
// CHECK-NEXT: %[[Z:.*]] = arith.constant 0 : i64
// CHECK-NEXT: %[[NE:.*]] = arith.cmpi ne, %[[ID]], %[[Z]] : i64
// CHECK-NEXT: shapejit.yield %[[NE]] : i1
// CHECK: shapejit.attention
// CHECK: mask(%[[M]] at affine_map<(d0, d1, d2, d3) -> (d0, d3)> : tensor<?x?xi1, #shapejit.shape<[s0, s1]>>)
func.func @mask(%ids: !ids, %q: !h) -> !h {
  %m = shapejit.loop over [s0, 1, s1, s1] ins(%ids at affine_map<(d0, d1, d2, d3) -> (d0, d3)> : !ids)
      outs(affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !mask) {
  ^bb0(%id: i64):
    %zero = arith.constant 0 : i64
    %padded = arith.cmpi ne, %id, %zero : i64
    %query = shapejit.index 2
    %query64 = arith.index_cast %query : index to i64
    %visible = arith.cmpi sge, %query64, %zero : i64
    %keep = arith.andi %visible, %padded : i1
    shapejit.yield %keep : i1
  }
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #heads : !h) k(%q at #heads : !h) v(%q at #heads : !h)
      mask(%m at affine_map<(d0, d1, d2, d3) -> (d0, 0, d2, d3)> : !mask) {scale = 0.5 : f64} -> #heads : !h
  return %0 : !h
}

// -----

// The dims that stay keep their order, in transposed results and in the body; views follow.

!x = tensor<?xf32, #shapejit.shape<[s1]>>
!y = tensor<?x?x4xf32, #shapejit.shape<[s1, s0, 4]>>
!v = tensor<?x4x?xf32, #shapejit.shape<[s0, 4, s1]>>
shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}
// CHECK-LABEL: func.func @transposed
// CHECK-NEXT: %[[Y:.*]] = shapejit.loop over [4, s1]
// CHECK-NEXT: ins(%{{.*}} at affine_map<(d0, d1) -> (d1)> : {{.*}})
// CHECK-NEXT: outs(affine_map<(d0, d1) -> (d1, d0)> : tensor<?x4xf32, #shapejit.shape<[s1, 4]>>) {
// CHECK: shapejit.index 0
// CHECK: shapejit.view %[[Y]] at affine_map<(d0, d1, d2) -> (d2, d1)> : tensor<?x4xf32, {{.*}}> -> tensor<?x4x?xf32, {{.*}}>
func.func @transposed(%x: !x) -> !v {
  %0 = shapejit.loop over [s0, 4, s1] ins(%x at affine_map<(d0, d1, d2) -> (d2)> : !x)
      outs(affine_map<(d0, d1, d2) -> (d2, d0, d1)> : !y) {
  ^bb0(%a: f32):
    %i = shapejit.index 1
    %j = arith.index_cast %i : index to i32
    %f = arith.sitofp %j : i32 to f32
    %e = math.powf %a, %f : f32
    shapejit.yield %e : f32
  }
  %1 = shapejit.view %0 at affine_map<(d0, d1, d2) -> (d2, d0, d1)> : !y -> !v
  return %1 : !v
}

// -----

// A result of the function has the sizes that its type says.

!x = tensor<?xf32, #shapejit.shape<[s1]>>
!y = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}
// CHECK-LABEL: func.func @returned
// CHECK-NEXT: shapejit.loop over [s0, s1]
func.func @returned(%x: !x) -> !y {
  %0 = shapejit.loop over [s0, s1] ins(%x at affine_map<(d0, d1) -> (d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !y) {
  ^bb0(%a: f32):
    %e = math.exp %a : f32
    shapejit.yield %e : f32
  }
  return %0 : !y
}

// -----

// Row 0 of %x is read only if there are rows: with none, the loop reads nothing. A dim that may be empty
// stays if without it the loop would read what is not there.

!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!y = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!v = tensor<?x?xf32, #shapejit.shape<[s1, s0]>>
shapejit.symbol @n {id = 0, min = 0, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}
// CHECK-LABEL: func.func @maybe_empty
// CHECK-NEXT: shapejit.loop over [s0, s1]
func.func @maybe_empty(%x: !x) -> !v {
  %0 = shapejit.loop over [s0, s1] ins(%x at affine_map<(d0, d1) -> (0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !y) {
  ^bb0(%a: f32):
    %e = math.exp %a : f32
    shapejit.yield %e : f32
  }
  %1 = shapejit.view %0 at affine_map<(d0, d1) -> (d1, d0)> : !y -> !v
  return %1 : !v
}
