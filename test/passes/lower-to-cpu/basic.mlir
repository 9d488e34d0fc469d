// RUN: shapejit-opt %s --split-input-file --shapejit-lower-to-cpu=vector-bytes=32 | FileCheck %s

// A pointwise kernel: pointers in, one flat loop nest, whose rows threads share when there are
// several and the work is worth it.

// CHECK-LABEL: module @double attributes {shapejit.target = "cpu"}
// CHECK: func.func @double(%[[X:.*]]: !llvm.ptr {llvm.noalias, llvm.noundef, llvm.readonly}, %[[Y:.*]]: !llvm.ptr {llvm.noalias, llvm.noundef}, %[[S0:.*]]: i64)
// CHECK: %[[ROWS:.*]] = arith.index_cast %[[S0]] : i64 to index
// CHECK: %[[THREADS:.*]] = call @shapejitRtThreads() : () -> i32
// CHECK: arith.divui %{{.*}}, %c4000000
// CHECK: scf.if
// CHECK: omp.parallel {
// CHECK-NEXT: omp.wsloop nowait schedule(dynamic) {
// CHECK-NEXT: omp.loop_nest (%[[CHUNK:.*]]) : index =
// CHECK-NEXT: %[[FIRST:.*]] = arith.muli %[[CHUNK]], %[[SIZE:.*]] : index
// CHECK-NEXT: %[[END:.*]] = arith.addi %[[FIRST]], %[[SIZE]]
// CHECK-NEXT: %[[LAST:.*]] = arith.minui %[[END]], %[[ROWS]]
// CHECK-NEXT: func.call @double_part(%[[X]], %[[Y]], %[[S0]], %[[FIRST]], %[[LAST]])
// CHECK: } else {
// CHECK-NEXT: func.call @double_part(%[[X]], %[[Y]], %[[S0]], %c0, %[[ROWS]])

// CHECK: func.func private @double_part(%[[X:.*]]: !llvm.ptr {llvm.noalias, llvm.noundef, llvm.readonly}, %[[Y:.*]]: !llvm.ptr {llvm.noalias, llvm.noundef}, %{{.*}}: i64, %[[FIRST:.*]]: index, %[[LAST:.*]]: index) attributes {llvm.linkage = #llvm.linkage<internal>, passthrough = ["noinline"]}
// CHECK: %[[XM:.*]] = builtin.unrealized_conversion_cast {{.*}} to memref<?xf32>
// CHECK: %[[YM:.*]] = builtin.unrealized_conversion_cast {{.*}} to memref<?xf32>
// CHECK: scf.for %[[I:.*]] = %[[FIRST]] to %[[LAST]] step %c1 {
// The row's offset is computed in the row loop.
// CHECK-NEXT: %[[ROW:.*]] = arith.muli %[[I]], %c8
// CHECK-NEXT: scf.for %[[J:.*]] = %c0 to %c8 step %c1 {
// CHECK-NEXT: %[[O:.*]] = arith.addi %[[ROW]], %[[J]]
// CHECK-NEXT: %[[V:.*]] = memref.load %[[XM]][%[[O]]]
// CHECK-NEXT: %[[W:.*]] = arith.addf %[[V]], %[[V]]
// CHECK-NEXT: memref.store %[[W]], %[[YM]][%[[O]]]
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.kernel @double symbols 1 (%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) outs(#id : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  ^bb0(%v: f32):
    %1 = arith.addf %v, %v : f32
    shapejit.yield %1 : f32
  }
  shapejit.yield %0 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// Launches stay.
// CHECK: func.func @main
// CHECK: shapejit.launch @double
func.func @main(%x: tensor<4x8xf32, #shapejit.shape<[4, 8]>>) -> tensor<4x8xf32, #shapejit.shape<[4, 8]>> {
  %0 = shapejit.launch @double affine_map<() -> (4)> (%x) : (tensor<4x8xf32, #shapejit.shape<[4, 8]>>) -> tensor<4x8xf32, #shapejit.shape<[4, 8]>>
  return %0 : tensor<4x8xf32, #shapejit.shape<[4, 8]>>
}

// -----

// A row cluster, softmax: three passes over a row. The exponentials are kept in the result's row.

// CHECK-LABEL: func.func private @softmax_part
// CHECK: scf.for
// CHECK: %[[MAX:.*]] = scf.for {{.*}} iter_args
// CHECK: arith.maximumf {{.*}} fastmath<reassoc,nsz>
// CHECK: %[[SUM:.*]] = scf.for {{.*}} iter_args
// CHECK: arith.subf %{{.*}}, %[[MAX]]
// CHECK: %[[E:.*]] = math.exp
// CHECK-NEXT: memref.store %[[E]], %[[OUT:.*]][
// CHECK-NEXT: arith.addf %{{.*}}, %[[E]] fastmath<reassoc,contract>
// CHECK: scf.for
// CHECK: %[[KEPT:.*]] = memref.load %[[OUT]][
// CHECK-NEXT: %[[R:.*]] = arith.divf %[[KEPT]], %[[SUM]]
// CHECK-NEXT: memref.store %[[R]], %[[OUT]][
#full = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.kernel @softmax symbols 1 (%x: tensor<?x100xf32, #shapejit.shape<[s0, 100]>>) {
  %m = shapejit.loop over [s0, 100] ins(%x at #full : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>) outs(max #row : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %e = shapejit.loop over [s0, 100] ins(%x at #full : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>, %m at #row : tensor<?xf32, #shapejit.shape<[s0]>>) outs(#full : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>) {
  ^bb0(%v: f32, %top: f32):
    %1 = arith.subf %v, %top : f32
    %2 = math.exp %1 : f32
    shapejit.yield %2 : f32
  }
  %s = shapejit.loop over [s0, 100] ins(%e at #full : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>) outs(add #row : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %y = shapejit.loop over [s0, 100] ins(%e at #full : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>, %s at #row : tensor<?xf32, #shapejit.shape<[s0]>>) outs(#full : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>) {
  ^bb0(%v: f32, %total: f32):
    %1 = arith.divf %v, %total : f32
    shapejit.yield %1 : f32
  }
  shapejit.yield %y : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>
}

// -----

// A product with a packed weight: the micro-kernel reads the panels in place, the epilogue runs over
// the block of sums.

// CHECK-LABEL: module @linear
// CHECK: func.func private @linear_micro_6_16{{.*}} attributes {llvm.linkage = #llvm.linkage<internal>, passthrough = ["noinline"]}
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>, vector<8xf32>, {{.*}}) {
// CHECK-COUNT-12: vector.fma
// CHECK: func.func private @linear_part(
// CHECK: %[[W:.*]] = builtin.unrealized_conversion_cast
// CHECK: memref.alloca() {alignment = 64 : i64}
// CHECK: func.call @linear_micro_6_16{{[^(]*}}(
// CHECK: scf.for
// CHECK: arith.addf
// CHECK: memref.store
shapejit.kernel @linear symbols 1 (%x: tensor<?x64xf32, #shapejit.shape<[s0, 64]>>, %w: tensor<2x64x16xf32, #shapejit.shape<[2, 64, 16]>>, %b: tensor<32xf32, #shapejit.shape<[32]>>) {
  %0 = shapejit.gemm over [s0, 32, 64] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x64xf32, #shapejit.shape<[s0, 64]>>) rhs(%w at affine_map<(d0, d1, d2) -> (d1 floordiv 16, d2, d1 mod 16)> : tensor<2x64x16xf32, #shapejit.shape<[2, 64, 16]>>) extras(%b at affine_map<(d0, d1) -> (d1)> : tensor<32xf32, #shapejit.shape<[32]>>) epilogue {
  ^bb0(%acc: f32, %bias: f32):
    %1 = arith.addf %acc, %bias : f32
    shapejit.yield %1 : f32
  } -> tensor<?x32xf32, #shapejit.shape<[s0, 32]>>
  shapejit.yield %0 : tensor<?x32xf32, #shapejit.shape<[s0, 32]>>
}

// -----

// Attention: scratch of fixed size, scores exponentiated against a running maximum.

// CHECK-LABEL: func.func private @attention_part(
// CHECK-NOT: memref.alloc()
// CHECK-COUNT-7: memref.alloca()
// CHECK: vector.reduction <maximumf>
// CHECK: arith.mulf {{.*}} fastmath<contract> : vector<8xf32>
#heads = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 32 + d3)>
shapejit.kernel @attention symbols 2 (%q: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>, %k: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>, %v: tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) {
  %0 = shapejit.attention over [s0, 12, s1, s1, 32, 32] q(%q at #heads : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) k(%k at #heads : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) v(%v at #heads : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>) {scale = 0.17 : f64} -> #heads : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
  shapejit.yield %0 : tensor<?x?x384xf32, #shapejit.shape<[s0, s1, 384]>>
}
