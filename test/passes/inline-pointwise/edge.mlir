// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-inline-pointwise --mlir-print-local-scope --split-input-file | FileCheck %s

// What must stay as it is.

// A dear value that a broadcast would compute again for each column.

!r = tensor<?xf32, #shapejit.shape<[s0]>>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @dear_broadcast
// CHECK: shapejit.loop over [s0]
// CHECK: math.rsqrt
// CHECK: shapejit.loop over [s0, 8]
func.func @dear_broadcast(%x: !x, %v: !r) -> !x {
  %0 = shapejit.loop over [s0] ins(%v at affine_map<(d0) -> (d0)> : !r) outs(affine_map<(d0) -> (d0)> : !r) {
  ^bb0(%a: f32):
    %b = math.rsqrt %a : f32
    shapejit.yield %b : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %0 at #row : !r) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.mulf %a, %b : f32
    shapejit.yield %c : f32
  }
  return %1 : !x
}

// -----

// A dear value that two loops read, and a cheap one of two tensors of its own size.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @softmax
// CHECK: %[[E:.*]] = shapejit.loop over [s0, 8]
// CHECK: math.exp
// CHECK: %[[S:.*]] = shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[E]] at
// CHECK: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[E]] at {{.*}}, %[[S]] at
func.func @softmax(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    %b = math.exp %a : f32
    shapejit.yield %b : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(add #row : !r) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %1 at #row : !r) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.divf %a, %b : f32
    shapejit.yield %c : f32
  }
  return %2 : !x
}

// CHECK-LABEL: func.func @two_large_inputs
// CHECK: %[[E:.*]] = shapejit.loop over [s0, 8]
// CHECK: arith.addf
// CHECK: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[E]] at
func.func @two_large_inputs(%x: !x, %y: !x) -> (!r, !r) {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %y at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %b : f32
    shapejit.yield %c : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(add #row : !r) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(max #row : !r) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  return %1, %2 : !r, !r
}

// -----

// A value that is a result of the function, or read by more than loops: inlining saves nothing.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @other_readers
// CHECK: %[[P:.*]] = shapejit.loop
// CHECK: %[[Q:.*]] = shapejit.loop
// CHECK: shapejit.gemm
// CHECK-NEXT: lhs(%[[Q]]
// CHECK: shapejit.loop
// CHECK-NEXT: ins(%[[P]] at {{.*}}, %[[Q]] at
func.func @other_readers(%x: !x, %w: !w) -> (!x, !x, !x) {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    %b = arith.negf %a : f32
    shapejit.yield %b : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    %b = math.absf %a : f32
    shapejit.yield %b : f32
  }
  %2 = shapejit.gemm over [s0, 8, 8] lhs(%1 at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !x
  %3 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %1 at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %b : f32
    shapejit.yield %c : f32
  }
  return %0, %2, %3 : !x, !x, !x
}

// -----

// Reductions are no producers; a gather by data keeps its table, which nothing is inlined into.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!i = tensor<?x8xi64, #shapejit.shape<[s0, 8]>>
!t = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @reduction_and_gather
// CHECK: %[[S:.*]] = shapejit.loop over [s0, 8]
// CHECK: outs(add
// CHECK: %[[T:.*]] = shapejit.loop over [8]
// CHECK: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%{{.*}} at {{.*}}, %[[S]] at affine_map<(d0, d1) -> (d1)> : {{.*}})
// CHECK: tensor.extract %[[T]]
func.func @reduction_and_gather(%x: !x, %i: !i, %table: !t) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(add #col : !t) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  %1 = shapejit.loop over [8] ins(%table at affine_map<(d0) -> (d0)> : !t) outs(affine_map<(d0) -> (d0)> : !t) {
  ^bb0(%a: f32):
    %b = arith.negf %a : f32
    shapejit.yield %b : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%i at #id : !i, %0 at #col : !t) outs(#id : !x) {
  ^bb0(%a: i64, %b: f32):
    %c = arith.index_cast %a : i64 to index
    %d = tensor.extract %1[%c] : !t
    %e = arith.mulf %b, %d : f32
    shapejit.yield %e : f32
  }
  return %2 : !x
}

// -----

// No epilogue: the gemm has two readers; the loop transposes; the loop needs its own index; an extra that
// has rows is divided along n.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!t = tensor<8x?xf32, #shapejit.shape<[8, s0]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
!b = tensor<?x2xf32, #shapejit.shape<[s0, 2]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @two_readers
// CHECK: shapejit.gemm
// CHECK: shapejit.loop
func.func @two_readers(%x: !x, %w: !w) -> (!x, !x) {
  %g = shapejit.gemm over [s0, 8, 8] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !x
  %0 = shapejit.loop over [s0, 8] ins(%g at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    %b = math.exp %a : f32
    shapejit.yield %b : f32
  }
  return %g, %0 : !x, !x
}

// CHECK-LABEL: func.func @transposes
// CHECK: shapejit.gemm
// CHECK: shapejit.loop
func.func @transposes(%x: !x, %w: !w) -> !t {
  %g = shapejit.gemm over [s0, 8, 8] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !x
  %0 = shapejit.loop over [8, s0] ins(%g at affine_map<(d0, d1) -> (d1, d0)> : !x) outs(#id : !t) {
  ^bb0(%a: f32):
    %b = math.exp %a : f32
    shapejit.yield %b : f32
  }
  return %0 : !t
}

// CHECK-LABEL: func.func @needs_its_index
// CHECK: shapejit.gemm
// CHECK: shapejit.loop
func.func @needs_its_index(%x: !x, %w: !w) -> !x {
  %g = shapejit.gemm over [s0, 8, 8] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !x
  %0 = shapejit.loop over [s0, 8] ins(%g at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    %i = shapejit.index 0
    %j = shapejit.index 1
    %c = arith.cmpi sge, %i, %j : index
    %zero = arith.constant 0.0 : f32
    %b = arith.select %c, %a, %zero : f32
    shapejit.yield %b : f32
  }
  return %0 : !x
}

// CHECK-LABEL: func.func @divided_along_n
// CHECK: shapejit.gemm
// CHECK: shapejit.loop
func.func @divided_along_n(%x: !x, %w: !w, %b: !b) -> !x {
  %g = shapejit.gemm over [s0, 8, 8] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !x
  %0 = shapejit.loop over [s0, 8] ins(%g at #id : !x, %b at affine_map<(d0, d1) -> (d0, d1 floordiv 4)> : !b) outs(#id : !x) {
  ^bb0(%a: f32, %c: f32):
    %d = arith.addf %a, %c : f32
    shapejit.yield %d : f32
  }
  return %0 : !x
}

// -----

// Comparisons that are not decided stay, unsigned ones of values that may be negative too, and
// arithmetic that may wrap is not taken for an index.

!x = tensor<?x8xi1, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @undecided
// CHECK: arith.cmpi sge
// CHECK: arith.cmpi ult
// CHECK: arith.cmpi sge
func.func @undecided() -> (!x, !x, !x) {
  %0:3 = shapejit.loop over [s0, 8] outs(#id : !x, #id : !x, #id : !x) {
    %i = shapejit.index 0
    %j = shapejit.index 1
    %a = arith.cmpi sge, %i, %j : index
    %d = arith.subi %j, %i : index
    %n = arith.constant 100 : index
    %b = arith.cmpi ult, %d, %n : index
    %i8 = arith.index_cast %i : index to i8
    %large = arith.constant 100 : i8
    %sum = arith.addi %i8, %large : i8
    %zero = arith.constant 0 : i8
    %c = arith.cmpi sge, %sum, %zero : i8
    shapejit.yield %a, %b, %c : i1, i1, i1
  }
  return %0#0, %0#1, %0#2 : !x, !x, !x
}

// -----

// Dead code does not count as a reader.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @dead_reader
// CHECK-NEXT: shapejit.loop
// CHECK: math.exp
// CHECK-NEXT: arith.negf
// CHECK: return
func.func @dead_reader(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    %b = math.exp %a : f32
    shapejit.yield %b : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    %b = arith.negf %a : f32
    shapejit.yield %b : f32
  }
  %dead = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    %b = math.absf %a : f32
    shapejit.yield %b : f32
  }
  return %1 : !x
}

// -----

// A loop that only copies is not there.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @copy
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32, {{.*}}>, %{{.*}}: tensor<8x8xf32,
// CHECK-NEXT: shapejit.gemm
// CHECK-NEXT: lhs(%[[X]]
func.func @copy(%x: !x, %w: !w) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  %1 = shapejit.gemm over [s0, 8, 8] lhs(%0 at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !x
  return %1 : !x
}
