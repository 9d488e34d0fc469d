// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-canonicalize-shapes --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

// Loops that are no pointwise readers of whole tensors, in the layout of what they read: all tensors
// here are [s0, s1, 6] in memory and [s0, 6, s1] to the program.

!last = tensor<?x?x6xf32, #shapejit.shape<[s0, s1, 6]>>
!first = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>
!sums = tensor<?x6xf32, #shapejit.shape<[s0, 6]>>
!pixels = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>

shapejit.symbol @n {id = 0, min = 1}
shapejit.symbol @m {id = 1, min = 1}

// A mean over pixels: channels are innermost, and stay in the result's order.
// CHECK-LABEL: func.func @mean
// CHECK: shapejit.loop over [s0, s1, 6]
// CHECK-NEXT: ins(%{{.*}} at affine_map<(d0, d1, d2) -> (d0, d1, d2)> :
// CHECK-NEXT: outs(add affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x6xf32,
// CHECK-NOT: shapejit.view
func.func @mean(%x: !last) -> !sums {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : !last -> !first
  %1 = shapejit.loop over [s0, 6, s1] ins(%0 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first)
      outs(add affine_map<(d0, d1, d2) -> (d0, d1)> : !sums) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %1 : !sums
}

// A softmax over channels: its rows are pixels.
// CHECK-LABEL: func.func @channels
// CHECK: %[[S:.*]] = shapejit.loop over [s0, s1, 6]
// CHECK: outs(add affine_map<(d0, d1, d2) -> (d0, d1)> :
// CHECK: shapejit.loop over [s0, s1, 6]
// CHECK: %[[S]] at affine_map<(d0, d1, d2) -> (d0, d1)> :
// CHECK: outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : tensor<?x?x6xf32,
func.func @channels(%x: !last) -> !first {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : !last -> !first
  %1 = shapejit.loop over [s0, 6, s1] ins(%0 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first)
      outs(add affine_map<(d0, d1, d2) -> (d0, d2)> : !pixels) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %2 = shapejit.loop over [s0, 6, s1]
      ins(%0 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first,
          %1 at affine_map<(d0, d1, d2) -> (d0, d2)> : !pixels)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first) {
  ^bb0(%v: f32, %s: f32):
    %3 = arith.divf %v, %s : f32
    shapejit.yield %3 : f32
  }
  return %2 : !first
}

// A loop that only extracts, at an index of its own that is limited.
// CHECK-LABEL: func.func @shifted
// CHECK: shapejit.loop over [s0, s1, 6]
// CHECK: %[[C:.*]] = shapejit.index 2
// CHECK: %[[N:.*]] = shapejit.index 0
// CHECK: %[[P:.*]] = shapejit.index 1
// CHECK: tensor.extract %{{.*}}[%[[N]], %{{.*}}, %[[C]]]
func.func @shifted(%x: !last) -> !first {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : !last -> !first
  %1 = shapejit.loop over [s0, 6, s1] outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first) {
    %c = shapejit.index 1
    %n = shapejit.index 0
    %p = shapejit.index 2
    %one = arith.constant 1 : index
    %zero = arith.constant 0 : index
    %2 = arith.subi %p, %one : index
    %3 = arith.maxsi %2, %zero : index
    %4 = tensor.extract %0[%n, %c, %3] : !first
    shapejit.yield %4 : f32
  }
  return %1 : !first
}

// A sum whose innermost dim is the same in both orders, and one that also keeps its elements, stay.
!swapped = tensor<?x?x6xf32, #shapejit.shape<[s1, s0, 6]>>
!rows = tensor<?x?xf32, #shapejit.shape<[s1, s0]>>
// CHECK-LABEL: func.func @kept
// CHECK: shapejit.loop over [s1, s0, 6]
// CHECK: shapejit.loop over [s0, 6, s1]
func.func @kept(%x: !last) -> (!rows, !first, !sums) {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2) -> (d1, d0, d2)> : !last -> !swapped
  %1 = shapejit.loop over [s1, s0, 6] ins(%0 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !swapped)
      outs(add affine_map<(d0, d1, d2) -> (d0, d1)> : !rows) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %2 = shapejit.view %x at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : !last -> !first
  %3:2 = shapejit.loop over [s0, 6, s1] ins(%2 at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !first, add affine_map<(d0, d1, d2) -> (d0, d1)> : !sums) {
  ^bb0(%v: f32):
    shapejit.yield %v, %v : f32, f32
  }
  return %1, %3#0, %3#1 : !rows, !first, !sums
}
