// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-inline-pointwise --mlir-print-local-scope --split-input-file | FileCheck %s

// A chain becomes one loop; the operations stay in their order.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @chain
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32, {{.*}}>, %[[B:.*]]: tensor<8xf32, {{.*}}>)
// CHECK-NEXT: %[[R:.*]] = shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[X]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %[[B]] at affine_map<(d0, d1) -> (d1)> : tensor<8xf32, #shapejit.shape<[8]>>)
// CHECK-NEXT: outs(
// CHECK-NEXT: ^bb0(%[[V:.*]]: f32, %[[C:.*]]: f32):
// CHECK-NEXT: %[[E:.*]] = math.exp %[[V]] : f32
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[E]], %[[C]] : f32
// CHECK-NEXT: %[[M:.*]] = arith.mulf %[[S]], %[[V]] : f32
// CHECK-NEXT: shapejit.yield %[[M]] : f32
// CHECK-NEXT: }
// CHECK-NEXT: return %[[R]]
func.func @chain(%x: !x, %b: !b) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %b at #col : !b) outs(#id : !x) {
  ^bb0(%v: f32, %c: f32):
    %s = arith.addf %v, %c : f32
    shapejit.yield %s : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%1 at #id : !x, %x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32, %w: f32):
    %m = arith.mulf %v, %w : f32
    shapejit.yield %m : f32
  }
  return %2 : !x
}

// -----

// Maps compose, through transposed results too, and into reductions.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!t = tensor<8x?xf32, #shapejit.shape<[8, s0]>>
!r = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @compose
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32,
// CHECK-NEXT: shapejit.loop over [8, s0]
// CHECK-NEXT: ins(%[[X]] at affine_map<(d0, d1) -> (d1, -d0 + 7)> : {{.*}})
// CHECK-NEXT: outs(add affine_map<(d0, d1) -> (d0)>
// CHECK-NEXT: ^bb0(%[[V:.*]]: f32):
// CHECK-NEXT: %[[E:.*]] = math.exp %[[V]]
// CHECK-NEXT: shapejit.yield %[[E]]
func.func @compose(%x: !x) -> !r {
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, 7 - d1)> : !x)
      outs(affine_map<(d0, d1) -> (d1, d0)> : !t) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  }
  %1 = shapejit.loop over [8, s0] ins(%0 at #id : !t) outs(add affine_map<(d0, d1) -> (d0)> : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %1 : !r
}

// -----

// Two results read at one place are computed once, at two places twice if that is cheap.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#flip = affine_map<(d0, d1) -> (d0, 7 - d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @two_results
// CHECK: shapejit.loop over [s0, 8]
// CHECK: ^bb0(%[[V:.*]]: f32):
// CHECK-NEXT: %[[E:.*]] = math.exp %[[V]]
// CHECK-NEXT: %[[N:.*]] = arith.negf %[[V]]
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[E]], %[[N]]
// CHECK-NEXT: shapejit.yield %[[S]]
func.func @two_results(%x: !x) -> !x {
  %0:2 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x, #id : !x) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    %n = arith.negf %v : f32
    shapejit.yield %e, %n : f32, f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0#0 at #id : !x, %0#1 at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    shapejit.yield %s : f32
  }
  return %1 : !x
}

// CHECK-LABEL: func.func @two_places
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32,
// CHECK-NEXT: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[X]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %[[X]] at affine_map<(d0, d1) -> (d0, -d1 + 7)> : {{.*}})
// CHECK: ^bb0(%[[A:.*]]: f32, %[[B:.*]]: f32):
// CHECK-NEXT: %[[NA:.*]] = arith.negf %[[A]]
// CHECK-NEXT: %[[NB:.*]] = arith.negf %[[B]]
// CHECK-NEXT: arith.addf %[[NA]], %[[NB]]
func.func @two_places(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %n = arith.negf %v : f32
    shapejit.yield %n : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %0 at #flip : !x) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    shapejit.yield %s : f32
  }
  return %1 : !x
}

// -----

// The producer's indices become arithmetic on the consumer's.

!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!flat = tensor<?xf32, #shapejit.shape<[s0 * s1]>>
shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}
// CHECK-LABEL: func.func @index
// CHECK: shapejit.loop over [s0 * s1]
// CHECK: ^bb0(%[[V:.*]]: f32):
// CHECK-NEXT: %[[D:.*]] = shapejit.index 0
// CHECK-NEXT: %[[N:.*]] = shapejit.size affine_map<()[s0, s1] -> (s1)>
// CHECK-NEXT: %[[Q:.*]] = arith.floordivsi %[[D]], %[[N]] : index
// CHECK-NEXT: %[[M:.*]] = arith.muli %[[Q]], %[[N]] : index
// CHECK-NEXT: %[[R:.*]] = arith.subi %[[D]], %[[M]] : index
// CHECK-NEXT: %[[I:.*]] = arith.index_cast %[[R]] : index to i32
// CHECK-NEXT: %[[F:.*]] = arith.sitofp %[[I]] : i32 to f32
// CHECK-NEXT: %[[A:.*]] = arith.addf %[[V]], %[[F]] : f32
// CHECK-NEXT: math.exp %[[A]]
func.func @index(%x: !x) -> !flat {
  %0 = shapejit.loop over [s0, s1] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    %d = shapejit.index 1
    %i = arith.index_cast %d : index to i32
    %f = arith.sitofp %i : i32 to f32
    %a = arith.addf %v, %f : f32
    shapejit.yield %a : f32
  }
  %1 = shapejit.loop over [s0 * s1] ins(%0 at affine_map<(d0)[s0, s1] -> (d0 floordiv s1, d0 mod s1)> : !x)
      outs(affine_map<(d0) -> (d0)> : !flat) {
  ^bb0(%v: f32):
    %e = math.exp %v : f32
    shapejit.yield %e : f32
  }
  return %1 : !flat
}

// -----

// A producer without inputs goes into every loop that reads it, even if others read it, too.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!p = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @positions
// CHECK-NEXT: %[[P:.*]] = shapejit.loop over [8]
// CHECK: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%{{[a-z0-9]*}} at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
// CHECK: shapejit.index 1
// CHECK: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%{{[a-z0-9]*}} at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
// CHECK: shapejit.index 1
// CHECK: return %{{.*}}, %{{.*}}, %[[P]]
func.func @positions(%x: !x) -> (!x, !x, !p) {
  %p = shapejit.loop over [8] outs(affine_map<(d0) -> (d0)> : !p) {
    %d = shapejit.index 0
    %i = arith.index_cast %d : index to i32
    %f = arith.sitofp %i : i32 to f32
    shapejit.yield %f : f32
  }
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %p at #col : !p) outs(#id : !x) {
  ^bb0(%v: f32, %w: f32):
    %s = arith.addf %v, %w : f32
    shapejit.yield %s : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%x at #id : !x, %p at #col : !p) outs(#id : !x) {
  ^bb0(%v: f32, %w: f32):
    %s = arith.mulf %v, %w : f32
    shapejit.yield %s : f32
  }
  return %0, %1, %p : !x, !x, !p
}

// -----

// A cast that two loops read goes into both: they read its input instead.

!h = tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @cast
// CHECK-SAME: (%[[H:.*]]: tensor<?x8xbf16,
// CHECK-NEXT: %[[S:.*]] = shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[H]] at
// CHECK-NEXT: outs(add
// CHECK-NEXT: ^bb0(%[[V:.*]]: bf16):
// CHECK-NEXT: %[[W:.*]] = arith.extf %[[V]] : bf16 to f32
// CHECK-NEXT: shapejit.yield %[[W]]
// CHECK: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins({{.*}}%[[H]] at
// CHECK: arith.extf
// CHECK: return
func.func @cast(%h: !h) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%h at #id : !h) outs(#id : !x) {
  ^bb0(%v: bf16):
    %w = arith.extf %v : bf16 to f32
    shapejit.yield %w : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(add #row : !r) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %1 at #row : !r) outs(#id : !x) {
  ^bb0(%v: f32, %s: f32):
    %d = arith.subf %v, %s : f32
    shapejit.yield %d : f32
  }
  return %2 : !x
}

// -----

// A tensor.extract at affine functions of the indices is a mapped input.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!table = tensor<2x64xf32, #shapejit.shape<[2, 64]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 7}
// CHECK-LABEL: func.func @extract
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32, {{.*}}>, %[[T:.*]]: tensor<2x64xf32, {{.*}}>)
// CHECK-NEXT: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[X]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %[[T]] at affine_map<(d0, d1) -> (1, d0 * 8 + d1 + 2)> : {{.*}})
// CHECK: ^bb0(%[[V:.*]]: f32, %[[E:.*]]: f32):
// CHECK-NEXT: %[[A:.*]] = arith.addf %[[V]], %[[E]]
// CHECK-NEXT: shapejit.yield %[[A]]
func.func @extract(%x: !x, %table: !table) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %i = shapejit.index 0
    %j = shapejit.index 1
    %i64 = arith.index_cast %i : index to i64
    %c8 = arith.constant 8 : i64
    %c2 = arith.constant 2 : i64
    %row = arith.muli %i64, %c8 : i64
    %start = arith.addi %row, %c2 : i64
    %at = arith.index_cast %start : i64 to index
    %place = arith.addi %at, %j : index
    %c1 = arith.constant 1 : index
    %e = tensor.extract %table[%c1, %place] : !table
    %a = arith.addf %v, %e : f32
    shapejit.yield %a : f32
  }
  return %0 : !x
}

// -----

// What ranges decide is folded: comparisons, the logic on them, choices, clamps.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!table = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @decided
// CHECK-NEXT: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%{{.*}} at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %{{.*}} at affine_map<(d0, d1) -> (d1)> : {{.*}})
// CHECK-NEXT: outs(
// CHECK-NEXT: ^bb0(%[[V:.*]]: f32, %[[E:.*]]: f32):
// CHECK-NEXT: %[[C:.*]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[P:.*]] = arith.cmpf ogt, %[[V]], %[[C]] : f32
// CHECK-NEXT: %[[R:.*]] = arith.select %[[P]], %[[V]], %[[E]] : f32
// CHECK-NEXT: shapejit.yield %[[R]]
func.func @decided(%x: !x, %table: !table) -> !x {
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %i = shapejit.index 0
    %j = shapejit.index 1
    %n = shapejit.size affine_map<()[s0] -> (s0)>
    %zero = arith.constant 0 : index
    %seven = arith.constant 7 : index
    %not_negative = arith.cmpi sge, %i, %zero : index
    %inside = arith.cmpi ult, %i, %n : index
    %past = arith.cmpi sgt, %j, %seven : index
    %both = arith.andi %not_negative, %inside : i1
    %c = arith.constant 0.0 : f32
    %positive = arith.cmpf ogt, %v, %c : f32
    %here = arith.andi %positive, %both : i1
    %take = arith.ori %past, %here : i1
    %wrapped = arith.addi %j, %n : index
    %chosen = arith.select %past, %wrapped, %j : index
    %low = arith.maxsi %chosen, %zero : index
    %at = arith.minsi %low, %seven : index
    %e = tensor.extract %table[%at] : !table
    %r = arith.select %take, %v, %e : f32
    shapejit.yield %r : f32
  }
  return %0 : !x
}
