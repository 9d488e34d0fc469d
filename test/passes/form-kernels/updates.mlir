// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-form-kernels --mlir-print-local-scope --split-input-file | FileCheck %s

// A scatter computes what it writes, and is in place in the input that changes. What reads the old
// value, though it comes later in the program, runs before.

shapejit.symbol @n {id = 0, min = 1, max = 8}
!new = tensor<?x4xf32, #shapejit.shape<[s0, 4]>>
!cache = tensor<8x4xf32, #shapejit.shape<[8, 4]>>
!rows = tensor<?xi64, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#at = affine_map<(d0, d1, d2) -> (d2, d1)>

// CHECK: shapejit.kernel @pointwise0
// CHECK: shapejit.kernel @scatter0 symbols 1 (%[[X:[a-z0-9]*]]: tensor<?x4xf32, #shapejit.shape<[s0, 4]>>, %[[P:[a-z0-9]*]]: tensor<?xi64, #shapejit.shape<[s0]>>, %[[C:[a-z0-9]*]]: tensor<8x4xf32, #shapejit.shape<[8, 4]>>)
// CHECK-NEXT: %[[K:.*]] = shapejit.loop over [s0, 4]
// CHECK: arith.negf
// CHECK: shapejit.scatter over [s0, 4]
// CHECK-NEXT: from(%[[K]] at
// CHECK-NEXT: by(%[[P]] at
// CHECK-NEXT: into(%[[C]] at
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[A0:.*]]: tensor<?x4xf32, {{.*}}>, %[[A1:.*]]: tensor<?xi64, {{.*}}>, %[[A2:.*]]: tensor<8x4xf32, {{.*}}>)
// CHECK-NEXT: %[[OLD:.*]] = shapejit.launch @pointwise0 affine_map<() -> ()>(%[[A2]])
// CHECK-NEXT: %[[NEW:.*]] = shapejit.launch @scatter0 affine_map<()[s0] -> (s0)>(%[[A0]], %[[A1]], %[[A2]]) {in_place = array<i64: 2>}
// CHECK-NEXT: return %[[OLD]], %[[NEW]]
func.func @main(%x: !new, %rows: !rows, %cache: !cache) -> (!cache, !cache {shapejit.updates = 2 : i64}) {
  %k = shapejit.loop over [s0, 4] ins(%x at #id : !new) outs(#id : !new) {
  ^bb0(%v: f32):
    %w = arith.negf %v : f32
    shapejit.yield %w : f32
  }
  %new = shapejit.scatter over [s0, 4] from(%k at #id : !new) by(%rows at #row : !rows) into(%cache at #at : !cache)
  %old = shapejit.loop over [8, 4] ins(%cache at #id : !cache) outs(#id : !cache) {
  ^bb0(%v: f32):
    %w = arith.addf %v, %v : f32
    shapejit.yield %w : f32
  }
  return %old, %new : !cache, !cache
}

// -----

// What needs the old value and the new one reads a copy of the old one; so does what is returned.

!cache = tensor<8x4xf32, #shapejit.shape<[8, 4]>>
!row = tensor<4xf32, #shapejit.shape<[4]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#own = affine_map<(d0) -> (d0)>
#first = affine_map<(d0) -> (0, d0)>

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[ROW:.*]]: tensor<4xf32, {{.*}}>, %[[CACHE:.*]]: tensor<8x4xf32, {{.*}}>)
// CHECK-NEXT: %[[COPY:.*]] = shapejit.launch @pointwise0 affine_map<() -> ()>(%[[CACHE]])
// CHECK-NEXT: %[[NEW:.*]] = shapejit.launch @scatter0 affine_map<() -> ()>(%[[ROW]], %[[CACHE]]) {in_place = array<i64: 1>}
// CHECK-NEXT: %[[BOTH:.*]] = shapejit.launch @pointwise1 affine_map<() -> ()>(%[[COPY]], %[[NEW]])
// CHECK-NEXT: return %[[BOTH]], %[[NEW]]
func.func @main(%row: !row, %cache: !cache) -> (!cache, !cache {shapejit.updates = 1 : i64}) {
  %new = shapejit.scatter over [4] from(%row at #own : !row) into(%cache at #first : !cache)
  %both = shapejit.loop over [8, 4] ins(%cache at #id : !cache, %new at #id : !cache) outs(#id : !cache) {
  ^bb0(%v: f32, %u: f32):
    %w = arith.addf %v, %u : f32
    shapejit.yield %w : f32
  }
  return %both, %new : !cache, !cache
}

// -----

// An argument that is not to change is copied. Of two scatters into one value one is in place.

!cache = tensor<8x4xf32, #shapejit.shape<[8, 4]>>
!row = tensor<4xf32, #shapejit.shape<[4]>>
#own = affine_map<(d0) -> (d0)>

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[ROW:.*]]: tensor<4xf32, {{.*}}>, %[[CACHE:.*]]: tensor<8x4xf32, {{.*}}>)
// CHECK-DAG: %[[C0:.*]] = shapejit.launch @pointwise0 affine_map<() -> ()>(%[[CACHE]])
// CHECK-DAG: %[[NEW:.*]] = shapejit.launch @scatter0 affine_map<() -> ()>(%[[ROW]], %[[C0]]) {in_place = array<i64: 1>}
// CHECK-DAG: %[[C1:.*]] = shapejit.launch @pointwise0 affine_map<() -> ()>(%[[NEW]])
// CHECK-DAG: %[[A:.*]] = shapejit.launch @scatter1 affine_map<() -> ()>(%[[ROW]], %[[C1]]) {in_place = array<i64: 1>}
// CHECK-DAG: %[[B:.*]] = shapejit.launch @scatter2 affine_map<() -> ()>(%[[ROW]], %[[NEW]]) {in_place = array<i64: 1>}
// CHECK: return %[[A]], %[[B]]
func.func @main(%row: !row, %cache: !cache) -> (!cache, !cache) {
  %new = shapejit.scatter over [4] from(%row at #own : !row) into(%cache at affine_map<(d0) -> (0, d0)> : !cache)
  %a = shapejit.scatter over [4] from(%row at #own : !row) into(%new at affine_map<(d0) -> (1, d0)> : !cache)
  %b = shapejit.scatter over [4] from(%row at #own : !row) into(%new at affine_map<(d0) -> (2, d0)> : !cache)
  return %a, %b : !cache, !cache
}

// -----

// A scatter does not compute what it reads of the tensor itself: that runs before.

!cache = tensor<8x4xf32, #shapejit.shape<[8, 4]>>
!part = tensor<7x4xf32, #shapejit.shape<[7, 4]>>
#id = affine_map<(d0, d1) -> (d0, d1)>

// CHECK: shapejit.kernel @pointwise0
// CHECK: shapejit.kernel @scatter0 symbols 0 (%{{.*}}: tensor<7x4xf32, {{.*}}>, %{{.*}}: tensor<8x4xf32, {{.*}}>) {
// CHECK-NEXT: shapejit.scatter
// CHECK: func.func @main(%[[CACHE:.*]]: tensor<8x4xf32, {{.*}}>) ->
// CHECK-NEXT: %[[ROWS:.*]] = shapejit.launch @pointwise0 affine_map<() -> ()>(%[[CACHE]])
// CHECK-NEXT: shapejit.launch @scatter0 affine_map<() -> ()>(%[[ROWS]], %[[CACHE]])
func.func @main(%cache: !cache) -> (!cache {shapejit.updates = 0 : i64}) {
  %rows = shapejit.loop over [7, 4] ins(%cache at #id : !cache) outs(#id : !part) {
  ^bb0(%v: f32):
    %w = arith.negf %v : f32
    shapejit.yield %w : f32
  }
  %new = shapejit.scatter over [7, 4] from(%rows at #id : !part)
      into(%cache at affine_map<(d0, d1) -> (d0 + 1, d1)> : !cache)
  return %new : !cache
}
