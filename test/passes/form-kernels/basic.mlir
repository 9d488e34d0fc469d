// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-form-kernels --mlir-print-local-scope --split-input-file | FileCheck %s

// A norm after a product, twice: two kernels, four launches. Rows of [batch, seq, 8] are rows of
// [batch*seq, 8], and both have one symbol, the number of rows.

!rows = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!flat = tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
!scalars = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#row = affine_map<(d0, d1, d2) -> (d0, d1)>
#col = affine_map<(d0, d1, d2) -> (d2)>
#flatten = affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>
shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @seq {id = 1, min = 1, max = 512}

// CHECK: shapejit.symbol @seq
// CHECK-NEXT: shapejit.kernel @gemm0 symbols 1 (%[[X:.*]]: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %[[W:.*]]: tensor<8x8xf32, #shapejit.shape<[8, 8]>>) {
// CHECK-NEXT: %[[G:.*]] = shapejit.gemm over [s0, 8, 8]
// CHECK-NEXT: lhs(%[[X]] at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
// CHECK-NEXT: rhs(%[[W]] at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
// CHECK-NEXT: shapejit.yield %[[G]] : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
// CHECK-NEXT: }

// CHECK-NEXT: shapejit.kernel @rows0 symbols 1 (%[[R:[a-z0-9]*]]: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %[[B:.*]]: tensor<8xf32, #shapejit.shape<[8]>>) {
// CHECK-NEXT: %[[SUM:.*]] = shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[R]] at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
// CHECK-NEXT: outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
// CHECK: %[[MEAN:.*]] = shapejit.loop over [s0]
// CHECK-NEXT: ins(%[[SUM]] at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
// CHECK: %[[N:.*]] = shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[R]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %[[MEAN]] at affine_map<(d0, d1) -> (d0)> : {{.*}}, %[[B]] at affine_map<(d0, d1) -> (d1)> : {{.*}})
// CHECK: shapejit.yield %[[N]] : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
// CHECK-NEXT: }
// CHECK-NOT: shapejit.kernel

// CHECK: func.func @main(%[[A0:.*]]: tensor<?x8xf32, {{.*}}>, %[[A1:.*]]: tensor<8x8xf32, {{.*}}>, %[[A2:.*]]: tensor<8x8xf32, {{.*}}>, %[[A3:.*]]: tensor<8xf32, {{.*}}>)
// CHECK-NEXT: %[[L0:.*]] = shapejit.launch @gemm0 affine_map<()[s0, s1] -> (s0 * s1)>(%[[A0]], %[[A1]])
// CHECK-NEXT: %[[L1:.*]] = shapejit.launch @rows0 affine_map<()[s0, s1] -> (s0 * s1)>(%[[L0]], %[[A3]]) : (tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>, tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
// CHECK-NEXT: %[[L2:.*]] = shapejit.launch @gemm0 affine_map<()[s0, s1] -> (s0 * s1)>(%[[L1]], %[[A2]])
// CHECK-NEXT: %[[L3:.*]] = shapejit.launch @rows0 affine_map<()[s0, s1] -> (s0 * s1)>(%[[L2]], %[[A3]])
// CHECK-NEXT: return %[[L3]]
func.func @main(%x: !flat, %w0: !w, %w1: !w, %b: !b) -> !rows {
  %g0 = shapejit.gemm over [s0 * s1, 8, 8] lhs(%x at #lhs : !flat) rhs(%w0 at #rhs : !w) -> !flat
  %s0 = shapejit.loop over [s0, s1, 8] ins(%g0 at #flatten : !flat) outs(add #row : !scalars) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %m0 = shapejit.loop over [s0, s1] ins(%s0 at affine_map<(d0, d1) -> (d0, d1)> : !scalars)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !scalars) {
  ^bb0(%v: f32):
    %n = arith.constant 8.0 : f32
    %m = arith.divf %v, %n : f32
    shapejit.yield %m : f32
  }
  %y0 = shapejit.loop over [s0, s1, 8] ins(%g0 at #flatten : !flat, %m0 at #row : !scalars, %b at #col : !b) outs(#id : !rows) {
  ^bb0(%v: f32, %m: f32, %c: f32):
    %d = arith.subf %v, %m : f32
    %e = arith.mulf %d, %c : f32
    shapejit.yield %e : f32
  }
  %g1 = shapejit.gemm over [s0 * s1, 8, 8]
      lhs(%y0 at affine_map<(d0, d1, d2)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d2)> : !rows) rhs(%w1 at #rhs : !w) -> !flat
  %s1 = shapejit.loop over [s0, s1, 8] ins(%g1 at #flatten : !flat) outs(add #row : !scalars) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %m1 = shapejit.loop over [s0, s1] ins(%s1 at affine_map<(d0, d1) -> (d0, d1)> : !scalars)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !scalars) {
  ^bb0(%v: f32):
    %n = arith.constant 8.0 : f32
    %m = arith.divf %v, %n : f32
    shapejit.yield %m : f32
  }
  %y1 = shapejit.loop over [s0, s1, 8] ins(%g1 at #flatten : !flat, %m1 at #row : !scalars, %b at #col : !b) outs(#id : !rows) {
  ^bb0(%v: f32, %m: f32, %c: f32):
    %d = arith.subf %v, %m : f32
    %e = arith.mulf %d, %c : f32
    shapejit.yield %e : f32
  }
  return %y1 : !rows
}

// -----

// Softmax is one kernel; what another kernel reads as well is a second result of it.

!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}
// CHECK-LABEL: shapejit.kernel @rows0 symbols 2 (
// CHECK: %[[MAX:.*]] = shapejit.loop
// CHECK: %[[EXP:.*]] = shapejit.loop
// CHECK: %[[SUM:.*]] = shapejit.loop
// CHECK: %[[DIV:.*]] = shapejit.loop
// CHECK: shapejit.yield %[[SUM]], %[[DIV]] :
// CHECK: func.func @softmax(
// CHECK-NEXT: %[[L:.*]]:2 = shapejit.launch @rows0 affine_map<()[s0, s1] -> (s0, s1)>(
// CHECK-NEXT: return %[[L]]#1, %[[L]]#0
func.func @softmax(%x: !x) -> (!x, !r) {
  %0 = shapejit.loop over [s0, s1] ins(%x at #id : !x) outs(max #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.loop over [s0, s1] ins(%x at #id : !x, %0 at #row : !r) outs(#id : !x) {
  ^bb0(%v: f32, %m: f32):
    %d = arith.subf %v, %m : f32
    %e = math.exp %d : f32
    shapejit.yield %e : f32
  }
  %2 = shapejit.loop over [s0, s1] ins(%1 at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %3 = shapejit.loop over [s0, s1] ins(%1 at #id : !x, %2 at #row : !r) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %q = arith.divf %v, %s : f32
    shapejit.yield %q : f32
  }
  return %3, %2 : !x, !r
}

// -----

// Two sums of one tensor that meet are one cluster.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: shapejit.kernel @rows0
// CHECK-COUNT-3: shapejit.loop
// CHECK-NOT: shapejit.kernel
// CHECK: func.func @meet
// CHECK-NEXT: shapejit.launch @rows0
// CHECK-NEXT: return
func.func @meet(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    %s = arith.mulf %v, %v : f32
    shapejit.yield %s : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %0 at #row : !r, %1 at #row : !r) outs(#id : !x) {
  ^bb0(%v: f32, %a: f32, %b: f32):
    %d = arith.subf %v, %a : f32
    %q = arith.divf %d, %b : f32
    shapejit.yield %q : f32
  }
  return %2 : !x
}

// -----

// Attention and packed weights; constants and sizes of the function go into the bodies that read them.

!h = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
!p = tensor<1x8x32xf32, #shapejit.shape<[1, 8, 32]>>
#heads = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 4 + d3)>
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
shapejit.symbol @unused {id = 0, min = 1, max = 64}
shapejit.symbol @batch {id = 1, min = 1, max = 64}
shapejit.symbol @seq {id = 2, min = 1, max = 64}
// CHECK-LABEL: shapejit.kernel @attention0 symbols 2 (%{{.*}}: tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>) {
// CHECK-NEXT: shapejit.attention over [s0, 2, s1, s1, 4, 4]
// CHECK: {causal = affine_map<()[s0, s1] -> (s1 - 1)>, scale = 5.000000e-01 : f64}
// CHECK-LABEL: shapejit.kernel @gemm0 symbols 1 (%{{.*}}: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %{{.*}}: tensor<1x8x32xf32, {{.*}}>) {
// CHECK-NEXT: shapejit.gemm over [s0, 8, 8]
// CHECK-NEXT: lhs(%{{.*}} at affine_map<(d0, d1, d2) -> (d0, d2)> :
// CHECK-NEXT: rhs(%{{.*}} at affine_map<(d0, d1, d2) -> (d1 floordiv 32, d2, d1 mod 32)> :
// CHECK-LABEL: shapejit.kernel @pointwise0 symbols 2 (%{{.*}}: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
// CHECK-NEXT: shapejit.loop over [s0, 8]
// CHECK: ^bb0(%[[V:.*]]: f32):
// CHECK-DAG: %[[C:.*]] = arith.constant 2.500000e-01 : f32
// CHECK-DAG: %[[N:.*]] = shapejit.size affine_map<()[s0, s1] -> (s1)>
func.func @sizes(%x: tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>, %w: !w) -> tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>> {
  %c = arith.constant 0.25 : f32
  %n = shapejit.size affine_map<()[s0] -> (s0)>
  %a = shapejit.attention over [s1, 2, s2, s2, 4, 4]
      q(%x at #heads : tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>)
      k(%x at #heads : tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>)
      v(%x at #heads : tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>)
      {scale = 0.5 : f64, causal = affine_map<()[s0, s1, s2] -> (s2 - 1)>}
      -> #heads : tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>
  %p = shapejit.pack %w {dim = 0, panel = 32} : !w -> !p
  %g = shapejit.gemm over [s1, s2, 8, 8]
      lhs(%a at affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)> : tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>)
      rhs(%p at affine_map<(d0, d1, d2, d3) -> (d2 floordiv 32, d3, d2 mod 32)> : !p)
      -> tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>
  %0 = shapejit.loop over [s1, s2, 8] ins(%g at #id : tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>)
      outs(#id : tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>) {
  ^bb0(%v: f32):
    %i = arith.index_cast %n : index to i32
    %f = arith.sitofp %i : i32 to f32
    %m = arith.mulf %v, %c : f32
    %r = arith.addf %m, %f : f32
    shapejit.yield %r : f32
  }
  // CHECK: func.func @sizes(%[[X:.*]]: {{.*}}, %[[W:.*]]: tensor<8x8xf32, {{.*}}>)
  // CHECK-NEXT: %[[A:.*]] = shapejit.launch @attention0 affine_map<()[s0, s1, s2] -> (s1, s2)>(%[[X]])
  // CHECK-NEXT: %[[P:.*]] = shapejit.pack %[[W]]
  // CHECK-NEXT: %[[G:.*]] = shapejit.launch @gemm0 affine_map<()[s0, s1, s2] -> (s1 * s2)>(%[[A]], %[[P]])
  // CHECK-NEXT: %[[R:.*]] = shapejit.launch @pointwise0 affine_map<()[s0, s1, s2] -> (s1 * s2, s0)>(%[[G]])
  // CHECK-NEXT: return %[[R]]
  return %0 : tensor<?x?x8xf32, #shapejit.shape<[s1, s2, 8]>>
}
