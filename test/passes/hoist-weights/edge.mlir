// RUN: shapejit-opt %s --split-input-file --shapejit-hoist-weights=slack=0 | FileCheck %s

// What depends on a size of an input stays: by its space, by an index, or by a size in its body. So
// does what is computed from an input, which a buffer that the model changes is.

!w = tensor<64xf32, #shapejit.shape<[64]>>
!r = tensor<f32, #shapejit.shape<[]>>
#id = affine_map<(d0) -> (d0)>
#all = affine_map<(d0) -> ()>

// CHECK-LABEL: @sizes
// CHECK-NOT: shapejit.hoisted
// CHECK-COUNT-4: shapejit.loop
shapejit.symbol @rows {id = 0, min = 1, max = 64}
func.func @sizes(%x: !w {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> (!r, !r, !r, !r) {
  %0 = shapejit.loop over [s0] ins(%w at #id : !w) outs(add #all : !r) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  %1 = shapejit.loop over [16] ins(%w at affine_map<(d0)[s0] -> ((d0 + s0) mod 64)> : !w) outs(add #all : !r) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  %2 = shapejit.loop over [64] ins(%w at #id : !w) outs(add #all : !r) {
  ^bb0(%a: f32):
    %n = shapejit.size affine_map<()[s0] -> (s0)>
    %i = arith.index_cast %n : index to i64
    %f = arith.sitofp %i : i64 to f32
    %m = arith.mulf %a, %f : f32
    shapejit.yield %m : f32
  }
  %3 = shapejit.loop over [64] ins(%x at #id : !w, %w at #id : !w) outs(add #all : !r) {
  ^bb0(%a: f32, %b: f32):
    %m = arith.mulf %a, %b : f32
    shapejit.yield %m : f32
  }
  return %0, %1, %2, %3 : !r, !r, !r, !r
}

// -----

// A table that takes five times the bytes of its weight stays, and is noted with its operator; what
// it is computed from is hoisted.

!w = tensor<64xf32, #shapejit.shape<[64]>>
!t = tensor<5x64xf32, #shapejit.shape<[5, 64]>>
!x = tensor<?x5xf32, #shapejit.shape<[s0, 5]>>
!y = tensor<?x64xf32, #shapejit.shape<[s0, 64]>>
#id = affine_map<(d0) -> (d0)>

// CHECK-LABEL: module @shapejit_bind
// CHECK: math.exp
// CHECK: func.func @large(
// CHECK-SAME: %[[H:[a-z0-9]+]]: tensor<64xf32, #shapejit.shape<[64]>> {shapejit.hoisted
// CHECK-SAME: attributes {shapejit.kept = ["aten.expand model.py:7: 1280 bytes, of weights of 256"]}
// CHECK-NEXT: %[[T:.*]] = shapejit.loop over [5, 64]
// CHECK-NEXT: ins(%[[H]] at
// CHECK: rhs(%[[T]] at
shapejit.symbol @rows {id = 0, min = 1, max = 64}
func.func @large(%x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> !y {
  %e = shapejit.loop over [64] ins(%w at #id : !w) outs(#id : !w) {
  ^bb0(%a: f32):
    %0 = math.exp %a : f32
    shapejit.yield %0 : f32
  }
  %t = shapejit.loop over [5, 64] ins(%e at affine_map<(d0, d1) -> (d1)> : !w) outs(affine_map<(d0, d1) -> (d0, d1)> : !t) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  } loc("aten.expand"("model.py":7:1))
  %y = shapejit.gemm over [s0, 64, 5] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x) rhs(%t at affine_map<(d0, d1, d2) -> (d2, d1)> : !t) -> !y
  return %y : !y
}

// -----

// Four results of one weight are as large as it may get; the fifth stays. The last ones come first.

!w = tensor<16x64xf32, #shapejit.shape<[16, 64]>>
!s = tensor<16xf32, #shapejit.shape<[16]>>
!x = tensor<?x64xf32, #shapejit.shape<[s0, 64]>>
!y = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
#t = affine_map<(d0, d1) -> (d1 mod 16, d0 * 4 + d1 floordiv 16)>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>

// CHECK-LABEL: func.func @together
// CHECK-SAME: -> (tensor<16x64xf32, {{.*}}> {shapejit.name = "hoisted0"}, {{.*}}"hoisted1"}, {{.*}}"hoisted2"}, {{.*}}"hoisted3"})
// CHECK-COUNT-4: shapejit.view
// CHECK: func.func @together
// CHECK-SAME: shapejit.kept = ["shapejit.view: 4096 bytes, beside 16384 that are computed from the same weights"]
// CHECK-NEXT: shapejit.view
// CHECK-NOT: shapejit.view
shapejit.symbol @rows {id = 0, min = 1, max = 64}
func.func @together(%x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}) -> (!y, !y, !y, !y, !y) {
  %0 = shapejit.view %w at #t : !w -> !w
  %1 = shapejit.view %w at #t : !w -> !w
  %2 = shapejit.view %w at #t : !w -> !w
  %3 = shapejit.view %w at #t : !w -> !w
  %4 = shapejit.view %w at #t : !w -> !w
  %5 = shapejit.gemm over [s0, 16, 64] lhs(%x at #lhs : !x) rhs(%0 at #rhs : !w) -> !y
  %6 = shapejit.gemm over [s0, 16, 64] lhs(%x at #lhs : !x) rhs(%1 at #rhs : !w) -> !y
  %7 = shapejit.gemm over [s0, 16, 64] lhs(%x at #lhs : !x) rhs(%2 at #rhs : !w) -> !y
  %8 = shapejit.gemm over [s0, 16, 64] lhs(%x at #lhs : !x) rhs(%3 at #rhs : !w) -> !y
  %9 = shapejit.gemm over [s0, 16, 64] lhs(%x at #lhs : !x) rhs(%4 at #rhs : !w) -> !y
  return %5, %6, %7, %8, %9 : !y, !y, !y, !y, !y
}

// -----

// No gain: a view that only regroups dims, a pointwise result that is returned, a tensor without
// elements. A product that is returned is hoisted, and copied by the calls.

!w = tensor<64x32xf32, #shapejit.shape<[64, 32]>>
!f = tensor<2048xf32, #shapejit.shape<[2048]>>
!n = tensor<0x32xf32, #shapejit.shape<[0, 32]>>
!m = tensor<32x32xf32, #shapejit.shape<[32, 32]>>
#id = affine_map<(d0, d1) -> (d0, d1)>

// CHECK-LABEL: module @shapejit_bind
// CHECK-NEXT: func.func @no_gain
// CHECK-NEXT: %[[P:.*]] = shapejit.gemm over [32, 32, 64]
// CHECK-NEXT: lhs
// CHECK-NEXT: rhs
// CHECK-NEXT: return %[[P]] :
// CHECK: func.func @no_gain
// CHECK-SAME: %[[H:[a-z0-9]+]]: tensor<32x32xf32, #shapejit.shape<[32, 32]>> {shapejit.hoisted
// CHECK-NOT: shapejit.kept
// CHECK-NEXT: %[[V:.*]] = shapejit.view
// CHECK-NEXT: %[[L:.*]] = shapejit.loop over [64, 32]
// CHECK: %[[N:.*]] = shapejit.loop over [0, 32]
// CHECK: return %[[V]], %[[L]], %[[N]], %[[H]] :
func.func @no_gain(%w: !w {shapejit.kind = "weight"}) -> (!f, !w, !n, !m) {
  %v = shapejit.view %w at affine_map<(d0) -> (d0 floordiv 32, d0 mod 32)> : !w -> !f
  %l = shapejit.loop over [64, 32] ins(%w at #id : !w) outs(#id : !w) {
  ^bb0(%a: f32):
    %0 = math.exp %a : f32
    shapejit.yield %0 : f32
  }
  %n = shapejit.loop over [0, 32] ins(%w at #id : !w) outs(#id : !n) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  %p = shapejit.gemm over [32, 32, 64] lhs(%w at affine_map<(d0, d1, d2) -> (d2, d0)> : !w) rhs(%w at affine_map<(d0, d1, d2) -> (d2, d1)> : !w) -> !m
  return %v, %l, %n, %p : !f, !w, !n, !m
}

// -----

// What a scatter of the calls writes into is needed anew in each; what it writes is not.

!w = tensor<64xf32, #shapejit.shape<[64]>>
!i = tensor<8xi64, #shapejit.shape<[8]>>
!s = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0) -> (d0)>

// CHECK-LABEL: module @shapejit_bind
// CHECK: shapejit.scan
// CHECK-NOT: math.exp
// CHECK: func.func @scattered
// CHECK-SAME: %[[H:[a-z0-9]+]]: tensor<8xf32, #shapejit.shape<[8]>> {shapejit.hoisted
// CHECK: math.exp
// CHECK: shapejit.scatter
// CHECK-NEXT: from(%[[H]] at
func.func @scattered(%at: !i {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}, %v: !s {shapejit.kind = "weight"}) -> !w {
  %d = shapejit.loop over [64] ins(%w at #id : !w) outs(#id : !w) {
  ^bb0(%a: f32):
    %0 = math.exp %a : f32
    shapejit.yield %0 : f32
  }
  %c = shapejit.scan add over [8] ins(%v at #id : !s) -> !s
  %r = shapejit.scatter over [8] from(%c at #id : !s) by(%at at #id : !i) into(%d at affine_map<(d0, d1) -> (d1)> : !w)
  return %r : !w
}
