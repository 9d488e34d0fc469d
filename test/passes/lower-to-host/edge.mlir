// RUN: shapejit-opt %s --split-input-file --shapejit-lower-to-host --canonicalize --cse | FileCheck %s

// Derived symbols are computed from those before them, in both entry points; the first
// constraint that fails gives its number.

shapejit.symbol @n {id = 0, min = 0, max = 64}
shapejit.symbol @d1 {id = 1} = max(s0 - 2, 0)
shapejit.symbol @d2 {id = 2} = ceildiv(s1, s0)
shapejit.constraint affine_set<()[s0] : (s0 - 1 >= 0)>
shapejit.constraint affine_set<()[s0] : (s0 - 8 == 0)>
module @a attributes {shapejit.target = "cpu"} {}
func.func @main(%x: tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s1]>>
    attributes {shapejit.arena = #shapejit.shape<[]>} {
  %0 = shapejit.launch @a affine_map<()[s0, s1, s2] -> (s0, s1, s2)> (%x) {buffers = [#shapejit.buffer<output 0>]} : (tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s1]>>
  return %0 : tensor<?xf32, #shapejit.shape<[s1]>>
}
// CHECK-LABEL: func.func @shapejit_plan
// CHECK-DAG: %[[ZERO:.*]] = arith.constant 0 : i64
// CHECK-DAG: %[[ONE:.*]] = arith.constant 1 : i64
// CHECK-DAG: %[[TWO:.*]] = arith.constant 2 : i64
// CHECK: %[[N:.*]] = arith.index_cast
// CHECK: %[[LESS:.*]] = arith.subi %[[N]], %{{.*}}
// CHECK: arith.maxsi %[[LESS]], %{{.*}} : index
// CHECK: %[[IS8:.*]] = arith.cmpi eq
// CHECK: %[[SECOND:.*]] = arith.select %[[IS8]], %[[ZERO]], %[[TWO]] : i64
// CHECK: %[[IS1:.*]] = arith.cmpi sge
// CHECK: %[[CODE:.*]] = arith.select %[[IS1]], %[[SECOND]], %[[ONE]] : i64
// CHECK: llvm.store %[[CODE]]
// CHECK-LABEL: func.func @shapejit_run
// CHECK: arith.maxsi
// A divisor of 0 (an empty dim) must not trap.
// CHECK: arith.maxui
// CHECK: arith.divsi
// CHECK: call @a

// -----

// A view is its source's memory; a result that is a view is written in place.

shapejit.symbol @n {id = 0, min = 0, max = 64}
module @a attributes {shapejit.target = "cpu"} {}
func.func @main(%x: tensor<?x2xf32, #shapejit.shape<[s0, 2]>>) -> tensor<?xf32, #shapejit.shape<[s0 * 2]>>
    attributes {shapejit.arena = #shapejit.shape<[]>} {
  %v = shapejit.view %x at affine_map<(d0) -> (d0 floordiv 2, d0 mod 2)> : tensor<?x2xf32, #shapejit.shape<[s0, 2]>> -> tensor<?xf32, #shapejit.shape<[s0 * 2]>>
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%v) {buffers = [#shapejit.buffer<output 0>]} : (tensor<?xf32, #shapejit.shape<[s0 * 2]>>) -> tensor<?x2xf32, #shapejit.shape<[s0, 2]>>
  %r = shapejit.view %0 at affine_map<(d0) -> (d0 floordiv 2, d0 mod 2)> : tensor<?x2xf32, #shapejit.shape<[s0, 2]>> -> tensor<?xf32, #shapejit.shape<[s0 * 2]>>
  return %r : tensor<?xf32, #shapejit.shape<[s0 * 2]>>
}
// CHECK-LABEL: func.func @shapejit_run
// CHECK-SAME: (%{{.*}}: !llvm.ptr, %[[BUFS:.*]]: !llvm.ptr,
// CHECK: %[[X:.*]] = llvm.load %[[BUFS]]
// CHECK: %[[PO:.*]] = llvm.getelementptr %[[BUFS]][1]
// CHECK: %[[O:.*]] = llvm.load %[[PO]]
// CHECK: call @a(%[[X]], %[[O]], %{{.*}})

// -----

// A slot of several sizes is as large as the largest of them, and those after it begin there.

shapejit.symbol @n {id = 0, min = 0, max = 64}
shapejit.symbol @m {id = 1, min = 0, max = 64}
module @a attributes {shapejit.target = "cpu"} {}
func.func @main(%x: tensor<?xf32, #shapejit.shape<[s0]>>, %y: tensor<?xf32, #shapejit.shape<[s1]>>) -> tensor<?xf32, #shapejit.shape<[s0]>>
    attributes {shapejit.arena = [#shapejit.shape<[s0 * 64, s1 * 128]>, #shapejit.shape<[s0 * 64]>]} {
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%x) {buffers = [#shapejit.buffer<arena 1>]} : (tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0]>>
  %1 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%0) {buffers = [#shapejit.buffer<output 0>]} : (tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0]>>
  return %1 : tensor<?xf32, #shapejit.shape<[s0]>>
}
// CHECK-LABEL: func.func @shapejit_plan
// CHECK: %[[LARGER:.*]] = arith.maxsi {{.*}} : i64
// CHECK: %[[SUM:.*]] = arith.addi {{.*}}%[[LARGER]] : i64
// CHECK: llvm.store %[[SUM]], %{{.*}} : i64
// CHECK-LABEL: func.func @shapejit_run
// CHECK-SAME: %[[ARENA:[a-z0-9]+]]: !llvm.ptr) {
// CHECK: %[[BEGIN:.*]] = arith.maxsi {{.*}} : i64
// CHECK: llvm.getelementptr %[[ARENA]][%[[BEGIN]]]
