// RUN: shapejit-opt %s --shapejit-lower-to-host --canonicalize --cse | FileCheck %s

// Kernels in block form run under constant graphs: the host program says in which region of sizes a
// call is and what its words are.

!x = tensor<?x64xbf16, #shapejit.shape<[s0 * s1, 64]>>
!k = tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
!p = tensor<?x64xbf16, #shapejit.shape<[s0 * s1, 64]>>
!w = tensor<64x64xbf16, #shapejit.shape<[64, 64]>>
!h = tensor<32x64xbf16, #shapejit.shape<[32, 64]>>

module attributes {shapejit.target = "cuda:sm_90a:h200"} {
shapejit.symbol @batch {id = 0, min = 1, max = 4}
shapejit.symbol @tokens {id = 1, min = 1, max = 100}

shapejit.kernel @gemm0 symbols 1 (%x: !k, %w: !w) {
  %0 = shapejit.gemm over [s0, 64, 64]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !k)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !k
  shapejit.yield %0 : !k
}
shapejit.dispatch @gemm0 by affine_map<()[s0] -> (s0)> [
  #shapejit.bucket<[1], [16], "small", "few rows">,
  #shapejit.bucket<[17], [400], "large", "many rows">
]
gpu.module @gemm0__small attributes {shapejit.interface = "{\22entry\22:\22small\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[[0,16],[1,16]],\22ctas_per_sm\22:1},\22values\22:[\22s0\22,\2264\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:true,\22block_bytes\22:64,\22programmatic\22:true}"} {}
gpu.module @gemm0__large attributes {shapejit.interface = "{\22entry\22:\22large\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[[1,64]],\22ctas_per_sm\22:1},\22values\22:[\2264\22,\22s0\22,\22s0 * 64\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:true,\22block_bytes\22:64,\22programmatic\22:true}"} {}

shapejit.kernel @loop0 symbols 2 (%x: !p) {
  %0 = shapejit.loop over [s0 * s1, 64] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !p)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !p) {
  ^bb0(%v: bf16):
    shapejit.yield %v : bf16
  }
  shapejit.yield %0 : !p
}
// By length only: for the regions, what its third bucket says is what the first one says.
shapejit.dispatch @loop0 by affine_map<()[s0, s1] -> (s1)> [
  #shapejit.bucket<[1], [8], "warp", "">,
  #shapejit.bucket<[9], [64], "cta", "">,
  #shapejit.bucket<[65], [?], "warp", "">
]
gpu.module @loop0__warp attributes {shapejit.interface = "{\22entry\22:\22warp\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[[0,8]],\22ctas_per_sm\22:1},\22values\22:[\22s0 * s1\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:true,\22block_bytes\22:64,\22programmatic\22:true}"} {}
gpu.module @loop0__cta attributes {shapejit.interface = "{\22entry\22:\22cta\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[[0,1],[1,32]],\22ctas_per_sm\22:1},\22values\22:[\22s0\22,\22s1\22,\22s0 * s1\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:true,\22block_bytes\22:64,\22programmatic\22:true}"} {}

func.func @main(%q: !w {shapejit.kind = "weight"}, %r: !h {shapejit.kind = "weight"}, %x: !x) -> !x
    attributes {shapejit.arena = #shapejit.shape<[s0 * s1 * 128, s0 * s1 * 128]>} {
  %w = shapejit.join %r, %r along 0 : (!h, !h) -> !w
  %0 = shapejit.launch @gemm0 affine_map<()[s0, s1] -> (s0 * s1)> (%x, %w) {buffers = [#shapejit.buffer<arena 0>]} : (!x, !w) -> !x
  %1 = shapejit.launch @loop0 affine_map<()[s0, s1] -> (s0, s1)> (%0) {buffers = [#shapejit.buffer<arena 1>]} : (!x) -> !x
  %2 = shapejit.launch @gemm0 affine_map<()[s0, s1] -> (s0 * s1)> (%1, %q) {buffers = [#shapejit.buffer<output 0>]} : (!x, !w) -> !x
  return %2 : !x
}
}

// Words of a call come first, then the fixed ones: constants, weights and copies of weights. A
// launch has for each variant of its kernel the words that this one asks for.
// CHECK: module @shapejit_host attributes {
// CHECK-SAME: shapejit.call_words = 8 : i64
// CHECK-SAME: shapejit.kernels = ["gemm0__small", "gemm0__large", "loop0__warp", "loop0__cta"]
// CHECK-SAME: shapejit.launches = [
// CHECK-SAME: [@gemm0, array<i64: 4, 9, 5>, [array<i64: 0, 8>, array<i64: 8, 0, 1>]],
// CHECK-SAME: [@loop0, array<i64: 5, 6>, [array<i64: 0>, array<i64: 2, 3, 0>]],
// CHECK-SAME: [@gemm0, array<i64: 6, 10, 7>, [array<i64: 0, 8>, array<i64: 8, 0, 1>]]]
// Numbers of variants for each launch, and how many units of work these have there at most: 16
// rows by 64 columns are four tiles of 16 x 16. The regions of most sizes come first.
// CHECK-SAME: shapejit.regions = [array<i64: 0, 2, 0>, array<i64: 0, 3, 0>, array<i64: 1, 2, 1>, array<i64: 1, 3, 1>]
// CHECK-SAME: shapejit.samples = [array<i64: 3, 1, 17>, array<i64: 2, 1, 65>, array<i64: 0, 1, 1>, array<i64: 1, 1, 9>]
// CHECK-SAME: shapejit.units = [array<i64: 4, 2, 4>, array<i64: 4, 1, 4>, array<i64: 7, 50, 7>, array<i64: 4, 8, 4>]
// CHECK-SAME: shapejit.words = ["s0*s1", "64*s0*s1", "s0", "s1", "input 0", "arena 0", "arena 1", "output 0", "64", "copy 0", "weight 0"]

// Six cells, of which two times two have the same variants.
// CHECK: llvm.mlir.global internal constant @shapejit_region_of_cell(dense<[0, 1, 0, 2, 3, 2]> : tensor<6xi32>)
// CHECK-LABEL: func.func @shapejit_plan
// CHECK-LABEL: func.func @shapejit_region(
// CHECK-SAME: ) -> i64
// CHECK-DAG: %[[OF_CELL:.*]] = llvm.mlir.addressof @shapejit_region_of_cell
// CHECK-DAG: %[[C17:.*]] = arith.constant 17 : index
// CHECK-DAG: %[[C65:.*]] = arith.constant 65 : index
// CHECK-DAG: %[[C9:.*]] = arith.constant 9 : index
// CHECK-DAG: %[[C3:.*]] = arith.constant 3 : i64
// CHECK: %[[ROWS:.*]] = arith.muli %{{.*}}, %[[TOKENS:.*]] : index
// CHECK: %[[B17:.*]] = arith.cmpi sge, %[[ROWS]], %[[C17]]
// CHECK: %[[N17:.*]] = arith.extui %[[B17]]
// CHECK: %[[FIRST:.*]] = arith.muli %[[N17]], %[[C3]]
// CHECK: %[[B9:.*]] = arith.cmpi sge, %[[TOKENS]], %[[C9]]
// CHECK: %[[N9:.*]] = arith.extui %[[B9]]
// CHECK: %[[SECOND:.*]] = arith.addi %[[FIRST]], %[[N9]]
// CHECK: %[[B65:.*]] = arith.cmpi sge, %[[TOKENS]], %[[C65]]
// CHECK: %[[N65:.*]] = arith.extui %[[B65]]
// CHECK: %[[CELL:.*]] = arith.addi %[[SECOND]], %[[N65]]
// CHECK: %[[PLACE:.*]] = llvm.getelementptr %[[OF_CELL]][%[[CELL]]]
// CHECK: llvm.load %[[PLACE]] : !llvm.ptr -> i32

// CHECK-LABEL: func.func @shapejit_words(
// CHECK-SAME: %[[SYMBOLS:.*]]: !llvm.ptr, %[[BUFFERS:.*]]: !llvm.ptr, %[[ARENA:.*]]: !llvm.ptr, %[[WORDS:.*]]: !llvm.ptr)
// CHECK: llvm.store %{{.*}}, %[[WORDS]] : i64
// The input is the first buffer, then come two weights, the copy and the output.
// CHECK: %[[X:.*]] = llvm.load %[[BUFFERS]] : !llvm.ptr -> !llvm.ptr
// CHECK: llvm.getelementptr %[[WORDS]][4]
// CHECK: llvm.store %[[X]]
// CHECK: llvm.getelementptr %[[WORDS]][5]
// CHECK: llvm.store %[[ARENA]]
// CHECK: %[[SLOT:.*]] = llvm.getelementptr %[[ARENA]][%{{.*}}] : (!llvm.ptr, i64) -> !llvm.ptr, i8
// CHECK: llvm.store %[[SLOT]]
// CHECK: %[[OUT:.*]] = llvm.getelementptr %[[BUFFERS]][4]
// CHECK: %[[COPY:.*]] = llvm.getelementptr %[[BUFFERS]][3]
// CHECK: %[[WEIGHT:.*]] = llvm.getelementptr %[[BUFFERS]][1]
// CHECK: llvm.getelementptr %[[WORDS]][10]
// CHECK-NOT: func.func @shapejit_run
