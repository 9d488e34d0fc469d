// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-form-kernels --mlir-print-local-scope --split-input-file | FileCheck %s

// Results: an argument, a reshape of one, one value twice. Each is written by a launch of its own.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!flat = tensor<?xf32, #shapejit.shape<[s0 * 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: shapejit.kernel @pointwise0
// CHECK: ^bb0(%[[V:.*]]: f32):
// CHECK-NEXT: math.exp
// CHECK-LABEL: shapejit.kernel @pointwise1
// CHECK: ^bb0(%[[V:.*]]: f32):
// CHECK-NEXT: shapejit.yield %[[V]]
// CHECK-LABEL: func.func @results(
// CHECK-SAME: %[[X:.*]]: tensor<?x8xf32,
// CHECK-DAG: %[[E:.*]] = shapejit.launch @pointwise0 {{.*}}(%[[X]])
// CHECK-DAG: %[[F:.*]] = shapejit.view %[[E]]
// CHECK-DAG: %[[A:.*]] = shapejit.launch @pointwise1 {{.*}}(%[[X]])
// CHECK-DAG: %[[XV:.*]] = shapejit.view %[[X]]
// CHECK-DAG: %[[B:.*]] = shapejit.launch @pointwise{{[12]}} {{.*}}(%[[XV]])
// CHECK-DAG: %[[C:.*]] = shapejit.launch @pointwise{{[12]}} {{.*}}(%[[F]])
// CHECK: return %[[A]], %[[B]], %[[E]], %[[C]]
func.func @results(%x: !x) -> (!x, !flat, !x, !flat) {
  %0 = shapejit.view %x at affine_map<(d0) -> (d0 floordiv 8, d0 mod 8)> : !x -> !flat
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  }
  %2 = shapejit.view %1 at affine_map<(d0) -> (d0 floordiv 8, d0 mod 8)> : !x -> !flat
  return %x, %0, %1, %2 : !x, !flat, !x, !flat
}

// -----

// A view that keeps the row-major order stays, one that does not becomes a copy.

!x = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!flat = tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
!t = tensor<8x?xf32, #shapejit.shape<[8, s0 * s1]>>
!w = tensor<4x8xf32, #shapejit.shape<[4, 8]>>
!y = tensor<?x4xf32, #shapejit.shape<[s0 * s1, 4]>>
shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}
// CHECK: shapejit.kernel @pointwise0 symbols 1 (%[[A:.*]]: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
// CHECK-NEXT: shapejit.loop over [8, s0]
// CHECK-NEXT: ins(%[[A]] at affine_map<(d0, d1) -> (d1, d0)> :
// CHECK-NEXT: outs(affine_map<(d0, d1) -> (d0, d1)> :
// CHECK-LABEL: func.func @views(
// CHECK-SAME: %[[X:.*]]: tensor<?x?x8xf32, {{.*}}>, %[[W:.*]]: tensor<4x8xf32,
// CHECK-NEXT: %[[V:.*]] = shapejit.view %[[X]]
// CHECK-NEXT: %[[T:.*]] = shapejit.launch @pointwise0 affine_map<()[s0, s1] -> (s0 * s1)>(%[[V]])
// CHECK-NEXT: shapejit.launch @gemm0 affine_map<()[s0, s1] -> (s0 * s1)>(%[[T]], %[[W]])
func.func @views(%x: !x, %w: !w) -> !y {
  %0 = shapejit.view %x at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)> : !x -> !flat
  %1 = shapejit.view %0 at affine_map<(d0, d1) -> (d1, d0)> : !flat -> !t
  %2 = shapejit.gemm over [s0 * s1, 4, 8] lhs(%1 at affine_map<(d0, d1, d2) -> (d2, d0)> : !t)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  return %2 : !y
}

// -----

// A value that leaves a cluster and would come back keeps its reader out of it.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @comes_back
// CHECK-NEXT: %[[N:.*]] = shapejit.launch @rows0
// CHECK-NEXT: %[[G:.*]] = shapejit.launch @gemm0 {{.*}}(%[[N]],
// CHECK-NEXT: %[[A:.*]] = shapejit.launch @pointwise0 {{.*}}(%[[N]], %[[G]])
// CHECK-NEXT: return %[[A]]
func.func @comes_back(%x: !x, %w: !w) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %0 at #row : !r) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %q = arith.divf %v, %s : f32
    shapejit.yield %q : f32
  }
  %2 = shapejit.gemm over [s0, 8, 8] lhs(%1 at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !x
  %3 = shapejit.loop over [s0, 8] ins(%1 at #id : !x, %2 at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %q = arith.addf %v, %s : f32
    shapejit.yield %q : f32
  }
  return %3 : !x
}

// -----

// A cluster runs as a whole, so what reads its first loop moves behind it.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @reordered
// CHECK-NEXT: %[[L:.*]]:2 = shapejit.launch @rows0
// CHECK-NEXT: %[[G:.*]] = shapejit.launch @gemm0 {{.*}}(%[[L]]#0,
// CHECK-NEXT: return %[[G]], %[[L]]#1
func.func @reordered(%x: !x, %y: !x, %w: !w) -> (!x, !r) {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %y at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32, %u: f32):
    %s = arith.addf %v, %u : f32
    shapejit.yield %s : f32
  }
  %1 = shapejit.gemm over [s0, 8, 8] lhs(%0 at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !x
  %2 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %1, %2 : !x, !r
}

// -----

// No cluster: pointwise loops alone; a sum of columns; one row in all; a read of another row; a read at
// computed indices.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!c = tensor<8xf32, #shapejit.shape<[8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
!s = tensor<f32, #shapejit.shape<[]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#col = affine_map<(d0, d1) -> (d1)>
#all = affine_map<(d0, d1) -> ()>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @pointwise
// CHECK-COUNT-3: shapejit.launch @pointwise
// CHECK: return
func.func @pointwise(%x: !x) -> (!x, !x) {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = math.tanh %v : f32
    shapejit.yield %e : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = math.sin %v : f32
    shapejit.yield %e : f32
  }
  return %1, %2 : !x, !x
}

// CHECK-LABEL: func.func @columns
// CHECK-NEXT: shapejit.launch @rows
// CHECK-NEXT: shapejit.launch @pointwise
func.func @columns(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(add #col : !c) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %0 at #col : !c) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %q = arith.divf %v, %s : f32
    shapejit.yield %q : f32
  }
  return %1 : !x
}

// CHECK-LABEL: func.func @one_row
// CHECK-NEXT: shapejit.launch @rows
// CHECK-NEXT: shapejit.launch @pointwise
func.func @one_row(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(add #all : !s) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %0 at #all : !s) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %q = arith.divf %v, %s : f32
    shapejit.yield %q : f32
  }
  return %1 : !x
}

// CHECK-LABEL: func.func @other_row
// CHECK-NEXT: shapejit.launch @rows
// CHECK-NEXT: shapejit.launch @pointwise
func.func @other_row(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %0 at affine_map<(d0, d1) -> (0)> : !r) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %q = arith.divf %v, %s : f32
    shapejit.yield %q : f32
  }
  return %1 : !x
}

// CHECK-LABEL: func.func @computed_row
// CHECK-NEXT: %[[S:.*]] = shapejit.launch @rows
// CHECK-NEXT: shapejit.launch @pointwise{{.*}}(%{{.*}}, %[[S]])
func.func @computed_row(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %i = arith.fptosi %v : f32 to i64
    %j = arith.index_cast %i : i64 to index
    %s = tensor.extract %0[%j] : !r
    %q = arith.divf %v, %s : f32
    shapejit.yield %q : f32
  }
  return %1 : !x
}

// -----

// Dims collapse where everything reads them together; not where one read, or the body, tells them apart.

!x = tensor<?x?x?x8xf32, #shapejit.shape<[s0, s1, s2, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
shapejit.symbol @a {id = 0, min = 1, max = 64}
shapejit.symbol @b {id = 1, min = 1, max = 64}
shapejit.symbol @c {id = 2, min = 1, max = 64}
// CHECK-LABEL: shapejit.kernel @pointwise0 symbols 1 (
// CHECK: shapejit.loop over [s0, 8]
// CHECK-LABEL: shapejit.kernel @pointwise1 symbols 2 (%{{.*}}: tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %{{.*}}: tensor<?xf32, #shapejit.shape<[s0]>>) {
// CHECK: shapejit.loop over [s0, s1, 8]
// CHECK-LABEL: shapejit.kernel @pointwise2 symbols 2 (
// CHECK: shapejit.loop over [s0, s1, 8]
// CHECK: shapejit.index 1
// CHECK: shapejit.size affine_map<()[s0, s1] -> (s1)>
// CHECK-LABEL: func.func @collapse
// CHECK: shapejit.launch @pointwise0 affine_map<()[s0, s1, s2] -> ((s0 * s1) * s2)>
// CHECK: shapejit.launch @pointwise1 affine_map<()[s0, s1, s2] -> (s0, s1 * s2)>
// CHECK: shapejit.launch @pointwise2 affine_map<()[s0, s1, s2] -> (s0 * s1, s2)>
func.func @collapse(%x: !x, %r: !r) -> (!x, !x, !x) {
  %0 = shapejit.loop over [s0, s1, s2, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  }
  %1 = shapejit.loop over [s0, s1, s2, 8] ins(%x at #id : !x, %r at affine_map<(d0, d1, d2, d3) -> (d0)> : !r) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %e = arith.mulf %v, %s : f32
    shapejit.yield %e : f32
  }
  %2 = shapejit.loop over [s0, s1, s2, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %i = shapejit.index 2
    %n = shapejit.size affine_map<()[s0, s1, s2] -> (s2)>
    %j = arith.subi %n, %i : index
    %k = arith.index_cast %j : index to i32
    %f = arith.sitofp %k : i32 to f32
    %e = arith.mulf %v, %f : f32
    shapejit.yield %e : f32
  }
  return %0, %1, %2 : !x, !x, !x
}

// -----

// Sizes that are expressions are symbols of the kernel if nothing else of theirs is needed. Strided
// windows of two sizes are one kernel.

!x = tensor<?x8xf32, #shapejit.shape<[(s0 + 1) floordiv 2, 8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s1 * 2 + 1, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}
// CHECK: shapejit.kernel @pointwise0 symbols 1 (%{{.*}}: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
// CHECK-NOT: shapejit.kernel
// CHECK: shapejit.launch @pointwise0 affine_map<()[s0] -> ((s0 + 1) floordiv 2)>
// CHECK: shapejit.launch @pointwise0 affine_map<()[s0, s1] -> (s1 * 2 + 1)>
func.func @expressions(%x: !x, %y: !y) -> (!x, !y) {
  %0 = shapejit.loop over [(s0 + 1) floordiv 2, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  }
  %1 = shapejit.loop over [s1 * 2 + 1, 8] ins(%y at #id : !y) outs(#id : !y) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  }
  return %0, %1 : !x, !y
}

// -----

// Kernels differ if a constant of a body, a kind or the element type does.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!d = tensor<?x8xf64, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-COUNT-3: shapejit.kernel @pointwise
// CHECK-NOT: shapejit.kernel
func.func @different(%x: !x, %d: !d) -> (!x, !x, !x, !d) {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %c = arith.constant 2.0 : f32
    %e = arith.mulf %v, %c : f32
    shapejit.yield %e : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %c = arith.constant 3.0 : f32
    %e = arith.mulf %v, %c : f32
    shapejit.yield %e : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %c = arith.constant 3.0 : f32
    %e = arith.mulf %v, %c : f32
    shapejit.yield %e : f32
  }
  %3 = shapejit.loop over [s0, 8] ins(%d at #id : !d) outs(#id : !d) {
  ^bb0(%v: f64):
    %c = arith.constant 3.0 : f64
    %e = arith.mulf %v, %c : f64
    shapejit.yield %e : f64
  }
  return %0, %1, %2, %3 : !x, !x, !x, !d
}
