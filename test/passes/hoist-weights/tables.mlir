// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --shapejit-hoist-weights | FileCheck %s

// Cosines of positions: computed for the greatest length when weights are bound; calls read the
// first rows.

!w = tensor<8xf32, #shapejit.shape<[8]>>
!t = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

module {
  shapejit.symbol @tokens {id = 0, min = 1, max = 100}

// CHECK: module @shapejit_bind
// CHECK: %[[T:.*]] = shapejit.loop over [100, 8]
// CHECK: outs({{.*}} : tensor<100x8xf32, #shapejit.shape<[100, 8]>>)
// CHECK: math.cos
// CHECK: return %[[T]]
// CHECK: func.func @main(
// CHECK-SAME: %[[H:[a-z0-9]+]]: tensor<100x8xf32, #shapejit.shape<[100, 8]>> {shapejit.hoisted
// CHECK-NEXT: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins({{.*}}, %[[H]] at
// CHECK-NOT: math.cos
func.func @main(%x: !t {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !t {
  %t = shapejit.loop over [s0, 8]
      ins(%w at affine_map<(d0, d1) -> (d1)> : !w)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    %n = shapejit.index 0
    %i = arith.index_cast %n : index to i64
    %f = arith.sitofp %i : i64 to f32
    %m = arith.mulf %f, %a : f32
    %c = math.cos %m : f32
    shapejit.yield %c : f32
  }
  %y = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !t, %t at affine_map<(d0, d1) -> (d0, d1)> : !t)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.mulf %a, %b : f32
    shapejit.yield %0 : f32
  }
  return %y : !t
}
}

// -----

// No greatest length.

!w = tensor<8xf32, #shapejit.shape<[8]>>
!t = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

module {
  shapejit.symbol @tokens {id = 0, min = 1}

// CHECK-NOT: shapejit_bind
// CHECK: func.func @unbounded(
// CHECK: math.cos
// CHECK: return
func.func @unbounded(%x: !t {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !t {
  %t = shapejit.loop over [s0, 8]
      ins(%w at affine_map<(d0, d1) -> (d1)> : !w)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    %n = shapejit.index 0
    %i = arith.index_cast %n : index to i64
    %f = arith.sitofp %i : i64 to f32
    %m = arith.mulf %f, %a : f32
    %c = math.cos %m : f32
    shapejit.yield %c : f32
  }
  %y = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !t, %t at affine_map<(d0, d1) -> (d0, d1)> : !t)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.mulf %a, %b : f32
    shapejit.yield %0 : f32
  }
  return %y : !t
}
}

// -----

// 8 MiB are the most.

!w = tensor<8xf32, #shapejit.shape<[8]>>
!t = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

module {
  shapejit.symbol @tokens {id = 0, min = 1, max = 262145}

// CHECK-NOT: shapejit_bind
// CHECK: func.func @large(
// CHECK-SAME: attributes {shapejit.kept = ["{{.*}}: 8388640 bytes up to the greatest length"]}
// CHECK: math.cos
// CHECK: return
func.func @large(%x: !t {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !t {
  %t = shapejit.loop over [s0, 8]
      ins(%w at affine_map<(d0, d1) -> (d1)> : !w)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    %n = shapejit.index 0
    %i = arith.index_cast %n : index to i64
    %f = arith.sitofp %i : i64 to f32
    %m = arith.mulf %f, %a : f32
    %c = math.cos %m : f32
    shapejit.yield %c : f32
  }
  %y = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !t, %t at affine_map<(d0, d1) -> (d0, d1)> : !t)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.mulf %a, %b : f32
    shapejit.yield %0 : f32
  }
  return %y : !t
}
}

// -----

// Positions that depend on a size besides.

!w = tensor<8xf32, #shapejit.shape<[8]>>
!t = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

module {
  shapejit.symbol @tokens {id = 0, min = 1, max = 100}

// CHECK-NOT: shapejit_bind
// CHECK: func.func @size(
// CHECK: math.cos
// CHECK: return
func.func @size(%x: !t {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !t {
  %t = shapejit.loop over [s0, 8]
      ins(%w at affine_map<(d0, d1) -> (d1)> : !w)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    %n = shapejit.index 0
    %s = shapejit.size affine_map<()[s0] -> (s0)>
    %o = arith.addi %n, %s : index
    %i = arith.index_cast %o : index to i64
    %f = arith.sitofp %i : i64 to f32
    %m = arith.mulf %f, %a : f32
    %c = math.cos %m : f32
    shapejit.yield %c : f32
  }
  %y = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !t, %t at affine_map<(d0, d1) -> (d0, d1)> : !t)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.mulf %a, %b : f32
    shapejit.yield %0 : f32
  }
  return %y : !t
}
}

// -----

// All rows are the same: no table.

!w = tensor<8xf32, #shapejit.shape<[8]>>
!t = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

module {
  shapejit.symbol @tokens {id = 0, min = 1, max = 100}

// CHECK-NOT: shapejit_bind
// CHECK: func.func @same(
// CHECK: math.cos
// CHECK: return
func.func @same(%x: !t {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !t {
  %t = shapejit.loop over [s0, 8]
      ins(%w at affine_map<(d0, d1) -> (d1)> : !w)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    %c = math.cos %a : f32
    shapejit.yield %c : f32
  }
  %y = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !t, %t at affine_map<(d0, d1) -> (d0, d1)> : !t)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.mulf %a, %b : f32
    shapejit.yield %0 : f32
  }
  return %y : !t
}
}

// -----

// Whoever gets the table as a result would get a copy.

!w = tensor<8xf32, #shapejit.shape<[8]>>
!t = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

module {
  shapejit.symbol @tokens {id = 0, min = 1, max = 100}

// CHECK-NOT: shapejit_bind
// CHECK: func.func @returned(
// CHECK: math.cos
// CHECK: return
func.func @returned(%x: !t {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !t {
  %t = shapejit.loop over [s0, 8]
      ins(%w at affine_map<(d0, d1) -> (d1)> : !w)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    %n = shapejit.index 0
    %i = arith.index_cast %n : index to i64
    %f = arith.sitofp %i : i64 to f32
    %m = arith.mulf %f, %a : f32
    %c = math.cos %m : f32
    shapejit.yield %c : f32
  }
  return %t : !t
}
}

// -----

// A weight that is read by row has no more rows than there are.

!w = tensor<8xf32, #shapejit.shape<[8]>>
!t = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<100xf32, #shapejit.shape<[100]>>

module {
  shapejit.symbol @tokens {id = 0, min = 1, max = 100}

// CHECK-NOT: shapejit_bind
// CHECK: func.func @rows(
// CHECK: math.cos
// CHECK: return
func.func @rows(%x: !t {shapejit.kind = "input"}, %w: !r {shapejit.kind = "weight"}) -> !t {
  %t = shapejit.loop over [s0, 8]
      ins(%w at affine_map<(d0, d1) -> (d0)> : !r)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    %n = shapejit.index 0
    %i = arith.index_cast %n : index to i64
    %f = arith.sitofp %i : i64 to f32
    %m = arith.mulf %f, %a : f32
    %c = math.cos %m : f32
    shapejit.yield %c : f32
  }
  %y = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !t, %t at affine_map<(d0, d1) -> (d0, d1)> : !t)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.mulf %a, %b : f32
    shapejit.yield %0 : f32
  }
  return %y : !t
}
}

// -----

// What is computed from an input.

!w = tensor<8xf32, #shapejit.shape<[8]>>
!t = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

module {
  shapejit.symbol @tokens {id = 0, min = 1, max = 100}

// CHECK-NOT: shapejit_bind
// CHECK: func.func @input(
// CHECK: math.cos
// CHECK: return
func.func @input(%x: !t {shapejit.kind = "input"}, %w: !w {shapejit.kind = "input"}) -> !t {
  %t = shapejit.loop over [s0, 8]
      ins(%w at affine_map<(d0, d1) -> (d1)> : !w)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    %n = shapejit.index 0
    %i = arith.index_cast %n : index to i64
    %f = arith.sitofp %i : i64 to f32
    %m = arith.mulf %f, %a : f32
    %c = math.cos %m : f32
    shapejit.yield %c : f32
  }
  %y = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !t, %t at affine_map<(d0, d1) -> (d0, d1)> : !t)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.mulf %a, %b : f32
    shapejit.yield %0 : f32
  }
  return %y : !t
}
}

// -----

// A loop over no dims computes one number, which is no table.

module {
  shapejit.symbol @tokens {id = 0, min = 1, max = 100}

// CHECK-NOT: shapejit_bind
// CHECK: func.func @number(
// CHECK: shapejit.size
// CHECK: return
func.func @number(%x: tensor<?xf32, #shapejit.shape<[s0]>> {shapejit.kind = "input"}) -> tensor<f32, #shapejit.shape<[]>> {
  %n = shapejit.loop over [] outs(affine_map<() -> ()> : tensor<f32, #shapejit.shape<[]>>) {
    %s = shapejit.size affine_map<()[s0] -> (s0)>
    %i = arith.index_cast %s : index to i64
    %f = arith.sitofp %i : i64 to f32
    shapejit.yield %f : f32
  }
  return %n : tensor<f32, #shapejit.shape<[]>>
}
}
