// RUN: shapejit-opt %s --split-input-file --shapejit-hoist-weights | FileCheck %s

// A weight with scaled rows: its product with the scales is computed when weights are bound. Inputs
// of the bind part are the weights that it needs, by their numbers among the weights.

!w = tensor<64x32xf32, #shapejit.shape<[64, 32]>>
!s = tensor<64xf32, #shapejit.shape<[64]>>
!x = tensor<?x32xf32, #shapejit.shape<[s0, 32]>>
!y = tensor<?x64xf32, #shapejit.shape<[s0, 64]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>

// CHECK-LABEL: module {
// CHECK: module @shapejit_bind {
// CHECK-NEXT: func.func @main(%[[W:[a-z0-9]+]]: tensor<64x32xf32, #shapejit.shape<[64, 32]>> {shapejit.kind = "input", shapejit.name = "w", shapejit.weight = 1 : i64},
// CHECK-SAME: %[[S:[a-z0-9]+]]: tensor<64xf32, #shapejit.shape<[64]>> {shapejit.kind = "input", shapejit.name = "s", shapejit.weight = 2 : i64})
// CHECK-SAME: -> (tensor<64x32xf32, #shapejit.shape<[64, 32]>> {shapejit.name = "hoisted0"})
// CHECK-NEXT: %[[U:.*]] = shapejit.loop over [64, 32]
// CHECK-NEXT: ins(%[[W]] at
// CHECK-SAME: %[[S]] at
// CHECK: arith.mulf
// CHECK: return %[[U]]
// CHECK: func.func @main(%[[X:[a-z0-9]+]]: tensor<?x32xf32
// CHECK-SAME: shapejit.name = "unused"}
// CHECK-SAME: shapejit.name = "w"}
// CHECK-SAME: shapejit.name = "s"}, %[[H:[a-z0-9]+]]: tensor<64x32xf32, #shapejit.shape<[64, 32]>> {shapejit.hoisted, shapejit.kind = "weight", shapejit.name = "hoisted0"})
// CHECK-NEXT: %[[Y:.*]] = shapejit.gemm over [s0, 64, 32]
// CHECK-NEXT: lhs(%[[X]] at
// CHECK-NEXT: rhs(%[[H]] at
// CHECK-NEXT: return %[[Y]]
shapejit.symbol @rows {id = 0, min = 1, max = 64}
func.func @main(%x: !x {shapejit.kind = "input"}, %v: !w {shapejit.name = "unused", shapejit.kind = "weight"}, %w: !w {shapejit.kind = "weight", shapejit.name = "w"}, %s: !s {shapejit.kind = "weight", shapejit.name = "s"}) -> !y {
  %u = shapejit.loop over [64, 32] ins(%w at #id : !w, %s at #row : !s) outs(#id : !w) {
  ^bb0(%a: f32, %b: f32):
    %0 = arith.mulf %a, %b : f32
    shapejit.yield %0 : f32
  }
  %y = shapejit.gemm over [s0, 64, 32] lhs(%x at #lhs : !x) rhs(%u at #rhs : !w) -> !y
  return %y : !y
}

// -----

// A chain is hoisted as a whole, with what its bodies read; one result is read here and there. The
// module of the bind part is for the same target.

!w = tensor<64x32xf32, #shapejit.shape<[64, 32]>>
!v = tensor<32x32xf32, #shapejit.shape<[32, 32]>>
!n = tensor<64xi64, #shapejit.shape<[64]>>
!x = tensor<?x32xf32, #shapejit.shape<[s0, 32]>>
!y = tensor<?x64xf32, #shapejit.shape<[s0, 64]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>

// CHECK-LABEL: module attributes {shapejit.target = "cuda:sm_90a"} {
// CHECK: module @shapejit_bind attributes {shapejit.target = "cuda:sm_90a"} {
// CHECK-NEXT: func.func @chain(%[[W:[a-z0-9]+]]: {{.*}}, %[[V:[a-z0-9]+]]: {{.*}}, %[[N:[a-z0-9]+]]: tensor<64xi64
// CHECK-SAME: -> ({{.*}} {shapejit.name = "hoisted0"}, {{.*}} {shapejit.name = "hoisted1"})
// CHECK-NEXT: %[[P:.*]] = shapejit.gemm over [64, 32, 32]
// CHECK-NEXT: lhs(%[[W]] at
// CHECK-NEXT: rhs(%[[V]] at
// CHECK-NEXT: %[[G:.*]] = shapejit.loop over [64, 32]
// CHECK-NEXT: ins(%[[N]] at
// CHECK: tensor.extract %[[P]][
// CHECK: return %[[P]], %[[G]]
// CHECK: func.func @chain(
// CHECK-SAME: %[[HP:[a-z0-9]+]]: tensor<64x32xf32, #shapejit.shape<[64, 32]>> {shapejit.hoisted, shapejit.kind = "weight", shapejit.name = "hoisted0"}
// CHECK-SAME: %[[HG:[a-z0-9]+]]: tensor<64x32xf32, #shapejit.shape<[64, 32]>> {shapejit.hoisted, shapejit.kind = "weight", shapejit.name = "hoisted1"}
// CHECK-NEXT: shapejit.gemm
// CHECK: rhs(%[[HP]] at
// CHECK-NEXT: shapejit.gemm
// CHECK: rhs(%[[HG]] at
// CHECK-NEXT: return
module attributes {shapejit.target = "cuda:sm_90a"} {
  shapejit.symbol @rows {id = 0, min = 1, max = 64}
  func.func @chain(%x: !x {shapejit.kind = "input"}, %w: !w {shapejit.kind = "weight"}, %v: !v {shapejit.kind = "weight"}, %n: !n {shapejit.kind = "weight"}) -> (!y, !y) {
    %p = shapejit.gemm over [64, 32, 32] lhs(%w at #lhs : !w) rhs(%v at #rhs : !v) -> !w
    %g = shapejit.loop over [64, 32] ins(%n at #row : !n) outs(#id : !w) {
    ^bb0(%a: i64):
      %i = arith.index_cast %a : i64 to index
      %c = shapejit.index 1
      %0 = tensor.extract %p[%i, %c] : !w
      shapejit.yield %0 : f32
    }
    %y = shapejit.gemm over [s0, 64, 32] lhs(%x at #lhs : !x) rhs(%p at #rhs : !w) -> !y
    %z = shapejit.gemm over [s0, 64, 32] lhs(%x at #lhs : !x) rhs(%g at #rhs : !w) -> !y
    return %y, %z : !y, !y
  }
}
