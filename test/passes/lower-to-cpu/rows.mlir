// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Scans and sorts.

// RUN: shapejit-opt %s --split-input-file --shapejit-lower-to-cpu=vector-bytes=32 | FileCheck %s

// Few long rows are cut into blocks, in three steps that threads share, by a kernel of four parts.

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
// CHECK-DAG: func.func @k_rows(
// CHECK-DAG: func.func @k_blocks(
// CHECK-DAG: func.func @k_ends(
// CHECK-DAG: func.func @k_rest(
// CHECK-LABEL: func.func @k(
// CHECK: scf.if
// CHECK: call @k_blocks
// CHECK: call @k_ends
// CHECK: call @k_rest
// CHECK: else
// CHECK: call @k_rows
shapejit.kernel @k symbols 2 (%x: !x) {
  %y = shapejit.scan add over [s0, s1] ins(%x at #id : !x) -> !x
  shapejit.yield %y : !x
}

// -----

// Short rows are not cut; a vector is scanned in steps of 1, 2 and 4.

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
// CHECK-LABEL: func.func private @short_part(
// CHECK: vector.shuffle %{{.*}}, %{{.*}} [7, 8, 9, 10, 11, 12, 13, 14]
// CHECK: vector.shuffle %{{.*}}, %{{.*}} [6, 7, 8, 9, 10, 11, 12, 13]
// CHECK: vector.shuffle %{{.*}}, %{{.*}} [4, 5, 6, 7, 8, 9, 10, 11]
// CHECK: vector.broadcast
// CHECK: vector.store
shapejit.kernel @short symbols 1 (%x: !x) {
  %y = shapejit.scan add over [s0, 384] ins(%x at #id : !x) -> !x
  shapejit.yield %y : !x
}

// -----

// A row is sorted in the memory of its places.

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!i = tensor<?x?xi64, #shapejit.shape<[s0, s1]>>
// CHECK-LABEL: func.func private @sort_part(
// CHECK-NOT: memref.alloca
// CHECK: vector.maskedload %{{.*}} : memref<?xi64>
// CHECK: arith.minsi %{{.*}} : vector<8xi64>
shapejit.kernel @sort symbols 2 (%x: !x) {
  %v, %i = shapejit.sort over [s0, s1] ins(%x at #id : !x) -> !x, !i
  shapejit.yield %v, %i : !x, !i
}

// -----

// A head is collected in a buffer of at least twice its length.

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!v = tensor<?x50xf32, #shapejit.shape<[s0, 50]>>
!i = tensor<?x50xi64, #shapejit.shape<[s0, 50]>>
// CHECK-LABEL: func.func private @head_part(
// CHECK: memref.alloca() {alignment = 64 : i64} : memref<136xi64>
// CHECK: vector.compressstore
shapejit.kernel @head symbols 2 (%x: !x) {
  %v, %i = shapejit.sort over [s0, s1] ins(%x at #id : !x) {descending} -> !v, !i
  shapejit.yield %v, %i : !v, !i
}
