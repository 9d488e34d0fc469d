// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --shapejit-plan-memory | FileCheck %s

// What is written in place has the memory that its operand has: of an input, which the function
// changes, a slot, or an output. Inputs are counted without weights.

module @a {}
!x = tensor<8xf32, #shapejit.shape<[8]>>

// CHECK-LABEL: func.func @places
// CHECK-SAME: attributes {shapejit.arena = #shapejit.shape<[32]>}
func.func @places(%w: !x {shapejit.kind = "weight"}, %x: !x, %cache: !x)
    -> (!x, !x {shapejit.updates = 2 : i64}) {
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<input 1>], in_place = array<i64: 1>}
  %0 = shapejit.launch @a affine_map<() -> ()> (%x, %cache) {in_place = array<i64: 1>} : (!x, !x) -> !x
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<input 1>], in_place = array<i64: 1>}
  %1 = shapejit.launch @a affine_map<() -> ()> (%x, %0) {in_place = array<i64: 1>} : (!x, !x) -> !x
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<arena 0>]}
  %2 = shapejit.launch @a affine_map<() -> ()> (%1) : (!x) -> !x
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<arena 0>], in_place = array<i64: 1>}
  %3 = shapejit.launch @a affine_map<() -> ()> (%w, %2) {in_place = array<i64: 1>} : (!x, !x) -> !x
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<output 0>]}
  %4 = shapejit.launch @a affine_map<() -> ()> (%3) : (!x) -> !x
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<output 0>], in_place = array<i64: 1>}
  %5 = shapejit.launch @a affine_map<() -> ()> (%3, %4) {in_place = array<i64: 1>} : (!x, !x) -> !x
  return %5, %1 : !x, !x
}

// -----

// A slot is busy until the last value that it has is dead.

module @a {}
!x = tensor<8xf32, #shapejit.shape<[8]>>

// CHECK-LABEL: func.func @busy
// CHECK-SAME: attributes {shapejit.arena = #shapejit.shape<[32, 32]>}
func.func @busy(%x: !x) -> !x {
  // CHECK: {buffers = [#shapejit.buffer<arena 0>]}
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) : (!x) -> !x
  // CHECK: {buffers = [#shapejit.buffer<arena 0>], in_place = array<i64: 0>}
  %1 = shapejit.launch @a affine_map<() -> ()> (%0) {in_place = array<i64: 0>} : (!x) -> !x
  // CHECK: {buffers = [#shapejit.buffer<arena 1>]}
  %2 = shapejit.launch @a affine_map<() -> ()> (%x) : (!x) -> !x
  // CHECK: {buffers = [#shapejit.buffer<output 0>]}
  %3 = shapejit.launch @a affine_map<() -> ()> (%1, %2) : (!x, !x) -> !x
  return %3 : !x
}
