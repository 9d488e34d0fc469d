// RUN: shapejit-opt %s --shapejit-lower-to-host --canonicalize --cse | FileCheck %s

// For a GPU the launches are queued in a stream, by functions that choose a variant.

module attributes {shapejit.target = "cuda:sm_90a:h200"} {
shapejit.symbol @tokens {id = 0, min = 1}

shapejit.kernel @gemm0 symbols 1 (%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, %w: tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) {
  %0 = shapejit.gemm over [s0, 64, 64]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<64x64xbf16, #shapejit.shape<[64, 64]>>)
      -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  shapejit.yield %0 : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
}
shapejit.dispatch @gemm0 by affine_map<()[s0] -> (s0)> [
  #shapejit.bucket<[1], [16], "small", "few rows">,
  #shapejit.bucket<[17], [2048], "large", "many rows">,
  #shapejit.bucket<[2049], [?], "small", "so many \22rows\22 that ] and > do not matter">
]
gpu.module @gemm0__small attributes {shapejit.interface = "{\22entry\22:\22small\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[[0,16]],\22ctas_per_sm\22:0},\22values\22:[\22s0\22,\2264\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:2,\22offset\22:0}],\22block\22:false,\22block_bytes\22:0,\22programmatic\22:false}"} {}
gpu.module @gemm0__large attributes {shapejit.interface = "{\22entry\22:\22large\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[[1,16]],\22ctas_per_sm\22:0},\22values\22:[\2264\22,\22s0\22,\22s0 * 64\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:2,\22offset\22:0}],\22block\22:false,\22block_bytes\22:0,\22programmatic\22:false}"} {}

func.func @main(%x: tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>,
                %w: tensor<64x64xbf16, #shapejit.shape<[64, 64]>> {shapejit.kind = "weight"})
    -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>> attributes {shapejit.arena = #shapejit.shape<[s0 * 128]>} {
  %0 = shapejit.launch @gemm0 affine_map<()[s0] -> (s0)> (%x, %w) {buffers = [#shapejit.buffer<arena 0>]} : (tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  %1 = shapejit.launch @gemm0 affine_map<()[s0] -> (s0)> (%0, %w) {buffers = [#shapejit.buffer<output 0>]} : (tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>, tensor<64x64xbf16, #shapejit.shape<[64, 64]>>) -> tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
  return %1 : tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
}
}

// Each variant is in the table once. The program itself is code for the CPU.
// CHECK: module @shapejit_host attributes {shapejit.kernels = ["gemm0__small", "gemm0__large"], shapejit.target = "cpu"} {

// The launcher: operands and results, then symbols, the table and the stream.
// CHECK-LABEL: func.func private @gemm0(
// CHECK-SAME: %[[X:arg0]]: !llvm.ptr, %[[W:arg1]]: !llvm.ptr, %[[Y:arg2]]: !llvm.ptr, %[[N:arg3]]: i64, %[[TABLE:arg4]]: !llvm.ptr, %[[STREAM:arg5]]: !llvm.ptr) -> i32
// CHECK-SAME: llvm.linkage = #llvm.linkage<internal>
// CHECK-DAG: %[[NULL:.*]] = llvm.mlir.zero : !llvm.ptr
// CHECK-DAG: %[[C0:.*]] = arith.constant 0 : index
// CHECK-DAG: %[[C1:.*]] = arith.constant 1 : index
// CHECK-DAG: %[[C16:.*]] = arith.constant 16 : index
// CHECK-DAG: %[[C17:.*]] = arith.constant 17 : index
// CHECK-DAG: %[[C2048:.*]] = arith.constant 2048 : index
// CHECK-DAG: %[[C64:.*]] = arith.constant 64 : i64
// CHECK: %[[SIZE:.*]] = arith.index_cast %[[N]] : i64 to index
// CHECK: %[[OPERANDS:.*]] = llvm.alloca
// CHECK: llvm.store %[[X]], %[[OPERANDS]]
// CHECK: %[[SECOND:.*]] = llvm.getelementptr %[[OPERANDS]][1]
// CHECK: llvm.store %[[W]], %[[SECOND]]
// CHECK: %[[THIRD:.*]] = llvm.getelementptr %[[OPERANDS]][2]
// CHECK: llvm.store %[[Y]], %[[THIRD]]
// CHECK: %[[VALUES:.*]] = llvm.alloca
// What variants need is computed once, before they are told apart.
// CHECK: %[[PRODUCT:.*]] = arith.muli %[[SIZE]]
// CHECK: %[[ELEMENTS:.*]] = arith.index_cast %[[PRODUCT]]
// The last bucket is what no other one holds.
// CHECK: arith.cmpi sge, %[[SIZE]], %[[C17]]
// CHECK: arith.cmpi sle, %[[SIZE]], %[[C2048]]
// CHECK: %[[LARGE:.*]] = arith.andi
// CHECK: %[[REST:.*]] = arith.select %[[LARGE]], %[[C1]], %[[C0]]
// CHECK: arith.cmpi sge, %[[SIZE]], %[[C1]]
// CHECK: arith.cmpi sle, %[[SIZE]], %[[C16]]
// CHECK: %[[SMALL:.*]] = arith.andi
// CHECK: %[[CHOSEN:.*]] = arith.select %[[SMALL]], %[[C0]], %[[REST]]
// Values come in the order in which a variant's interface has them.
// CHECK: %[[KERNEL:.*]] = scf.index_switch %[[CHOSEN]] -> !llvm.ptr
// CHECK: case 0 {
// CHECK: llvm.store %[[N]], %[[VALUES]]
// CHECK: llvm.store %[[C64]]
// CHECK: %[[FIRST:.*]] = llvm.load %[[TABLE]]
// CHECK: scf.yield %[[FIRST]]
// CHECK: default {
// CHECK: llvm.store %[[C64]], %[[VALUES]]
// CHECK: llvm.store %[[N]]
// CHECK: llvm.store %[[ELEMENTS]]
// CHECK: llvm.getelementptr %[[TABLE]][1]
// CHECK: scf.yield
// CHECK: %[[STATUS:.*]] = llvm.call @shapejitRtCudaLaunch(%[[KERNEL]], %[[OPERANDS]], %[[VALUES]], %[[NULL]], %[[STREAM]])
// CHECK: return %[[STATUS]] : i32

// Slots of the arena are aligned to 256 bytes: 2 rows of 128.
// CHECK-LABEL: func.func @shapejit_plan
// CHECK-DAG: %[[TWO:.*]] = arith.constant 2 : index
// CHECK-DAG: %[[LINE:.*]] = arith.constant 256 : index
// CHECK: %[[LINES:.*]] = arith.divui %{{.*}}, %[[TWO]]
// CHECK: arith.muli %[[LINES]], %[[LINE]]

// A launch that fails ends the program with its status.
// CHECK-LABEL: func.func @shapejit_run
// CHECK-SAME: (%{{.*}}: !llvm.ptr, %[[BUFS:.*]]: !llvm.ptr, %[[ARENA:.*]]: !llvm.ptr, %[[KERNELS:.*]]: !llvm.ptr, %[[QUEUE:.*]]: !llvm.ptr) -> i32
// CHECK-DAG: %[[OK:.*]] = arith.constant 0 : i32
// CHECK: %[[S1:.*]] = call @gemm0(%{{.*}}, %[[WEIGHT:.*]], %[[ARENA]], %[[ROWS:.*]], %[[KERNELS]], %[[QUEUE]])
// CHECK: %[[FINE1:.*]] = arith.cmpi eq, %[[S1]], %[[OK]]
// CHECK: llvm.cond_br %[[FINE1]], ^[[NEXT:bb[0-9]+]], ^[[END:bb[0-9]+]](%[[S1]] : i32)
// CHECK: ^[[NEXT]]:
// CHECK: %[[S2:.*]] = call @gemm0(%[[ARENA]], %[[WEIGHT]], %{{.*}}, %[[ROWS]], %[[KERNELS]], %[[QUEUE]])
// CHECK: llvm.cond_br %{{.*}}, ^[[LAST:bb[0-9]+]], ^[[END]](%[[S2]] : i32)
// CHECK: ^[[LAST]]:
// CHECK: llvm.br ^[[END]](%[[OK]] : i32)
// CHECK: ^[[END]](%[[RESULT:.*]]: i32):
// CHECK: return %[[RESULT]] : i32
