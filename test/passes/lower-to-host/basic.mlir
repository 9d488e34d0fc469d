// RUN: shapejit-opt %s --shapejit-lower-to-host --canonicalize --cse | FileCheck %s

shapejit.symbol @batch {id = 0, min = 1, max = 64}
module @a attributes {shapejit.target = "cpu"} {}
module @b attributes {shapejit.target = "cpu"} {}

// CHECK-NOT: func.func @main
func.func @main(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {shapejit.kind = "input"},
                %w: tensor<8x8xf32, #shapejit.shape<[8, 8]>> {shapejit.kind = "weight"})
    -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> attributes {shapejit.arena = #shapejit.shape<[s0 * 32]>} {
  %p = shapejit.pack %w {dim = 0, panel = 16} : tensor<8x8xf32, #shapejit.shape<[8, 8]>> -> tensor<1x8x16xf32, #shapejit.shape<[1, 8, 16]>>
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0 * 2)> (%x, %p) {buffers = [#shapejit.buffer<arena 0>]} : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, tensor<1x8x16xf32, #shapejit.shape<[1, 8, 16]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  %1 = shapejit.launch @b affine_map<()[s0] -> (s0)> (%0, %w) {buffers = [#shapejit.buffer<output 0>]} : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  return %1 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// CHECK: module @shapejit_host attributes {shapejit.target = "cpu"} {
// CHECK-DAG: func.func private @a(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64)
// CHECK-DAG: func.func private @b(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64)

// The arena's bytes (slots are aligned to 64), the result's sizes, the constraint code.
// CHECK-LABEL: func.func @shapejit_plan
// CHECK-SAME: (%[[SYMS:.*]]: !llvm.ptr, %[[OUT:.*]]: !llvm.ptr)
// CHECK-DAG: %[[C0:.*]] = arith.constant 0 : i64
// CHECK-DAG: %[[C8:.*]] = arith.constant 8 : i64
// CHECK-DAG: %[[C64:.*]] = arith.constant 64 : index
// CHECK-DAG: %[[C1:.*]] = arith.constant 1 : index
// CHECK-DAG: %[[C2:.*]] = arith.constant 2 : index
// CHECK: %[[S0:.*]] = llvm.load %[[SYMS]] : !llvm.ptr -> i64
// CHECK: %[[N:.*]] = arith.index_cast %[[S0]]
// CHECK: %[[UP:.*]] = arith.addi %[[N]], %[[C1]]
// CHECK: %[[LINES:.*]] = arith.divui %[[UP]], %[[C2]]
// CHECK: %[[BYTES:.*]] = arith.muli %[[LINES]], %[[C64]]
// One more line: an empty tensor at the end must have an element that can be read.
// CHECK: %[[PADDED:.*]] = arith.addi %[[BYTES]], %[[C64]]
// CHECK: %[[CAST:.*]] = arith.index_cast %[[PADDED]]
// CHECK: llvm.store %[[CAST]], %[[OUT]]
// CHECK: %[[P1:.*]] = llvm.getelementptr %[[OUT]][1]
// CHECK: llvm.store %[[S0]], %[[P1]]
// CHECK: %[[P2:.*]] = llvm.getelementptr %[[OUT]][2]
// CHECK: llvm.store %[[C8]], %[[P2]]
// CHECK: %[[P3:.*]] = llvm.getelementptr %[[OUT]][3]
// CHECK: llvm.store %[[C0]], %[[P3]]

// Buffers: the input, the weight, the packed weight, the result.
// CHECK-LABEL: func.func @shapejit_run
// CHECK-SAME: (%{{.*}}: !llvm.ptr, %[[BUFS:.*]]: !llvm.ptr, %[[ARENA:.*]]: !llvm.ptr)
// CHECK: %[[X:.*]] = llvm.load %[[BUFS]]
// CHECK: %[[PW:.*]] = llvm.getelementptr %[[BUFS]][1]
// CHECK: %[[W:.*]] = llvm.load %[[PW]]
// CHECK: %[[PP:.*]] = llvm.getelementptr %[[BUFS]][2]
// CHECK: %[[PACKED:.*]] = llvm.load %[[PP]]
// CHECK: call @a(%[[X]], %[[PACKED]], %[[ARENA]], %{{.*}}) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
// CHECK: %[[PO:.*]] = llvm.getelementptr %[[BUFS]][3]
// CHECK: %[[O:.*]] = llvm.load %[[PO]]
// CHECK: call @b(%[[ARENA]], %[[W]], %[[O]], %{{.*}}) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> ()
