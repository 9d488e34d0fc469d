// RUN: shapejit-opt %s --split-input-file --shapejit-merge-products | FileCheck %s

// q, k and v of an attention: one product, of which the attention reads three slices. The key has
// fewer heads.

!x = tensor<?x64xbf16, #shapejit.shape<[s0 * s1, 64]>>
!w = tensor<64x64xbf16, #shapejit.shape<[64, 64]>>
!v = tensor<32x64xbf16, #shapejit.shape<[32, 64]>>
!y = tensor<?x32xbf16, #shapejit.shape<[s0 * s1, 32]>>
!b = tensor<64xbf16, #shapejit.shape<[64]>>
!c = tensor<32xbf16, #shapejit.shape<[32]>>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>
#n = affine_map<(d0, d1) -> (d1)>
#heads = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d1 * 32 + d3)>
#shared = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d3)>

// CHECK-DAG: #[[$Q:.*]] = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d1 * 32 + d3)>
// CHECK-DAG: #[[$K:.*]] = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d3 + 64)>
// CHECK-DAG: #[[$V:.*]] = affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0 * s1 + d2, d3 + 96)>

shapejit.symbol @batch {id = 0, min = 1, max = 8}
shapejit.symbol @tokens {id = 1, min = 1, max = 64}

// CHECK-LABEL: func.func @attention
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<?x64xbf16
// CHECK-SAME: %[[WQ:[a-z0-9]+]]: tensor<64x64xbf16
// CHECK-SAME: %[[WK:[a-z0-9]+]]: tensor<32x64xbf16
// CHECK-SAME: %[[WV:[a-z0-9]+]]: tensor<32x64xbf16
func.func @attention(%x: !x {shapejit.kind = "input"},
    %wq: !w {shapejit.kind = "weight"}, %wk: !v {shapejit.kind = "weight"}, %wv: !v {shapejit.kind = "weight"},
    %bq: !b {shapejit.kind = "weight"}, %bk: !c {shapejit.kind = "weight"}, %bv: !c {shapejit.kind = "weight"}) -> !x {
  // CHECK-NEXT: %[[W:.*]] = shapejit.join %[[WQ]], %[[WK]], %[[WV]] along 0
  // CHECK-SAME: -> tensor<128x64xbf16, #shapejit.shape<[128, 64]>>
  // CHECK-NEXT: %[[B:.*]] = shapejit.join %{{.*}}, %{{.*}}, %{{.*}} along 0 : {{.*}} -> tensor<128xbf16, {{.*}}>
  // CHECK-NEXT: %[[QKV:.*]] = shapejit.gemm over [s0 * s1, 128, 64]
  // CHECK-NEXT: lhs(%[[X]] at
  // CHECK-NEXT: rhs(%[[W]] at
  // CHECK-NEXT: extras(%[[B]] at
  // CHECK-NEXT: ^bb0(%[[SUM:.*]]: f32, %[[BIAS:.*]]: bf16):
  // CHECK: } -> tensor<?x128xbf16, #shapejit.shape<[s0 * s1, 128]>>
  %q = shapejit.gemm over [s0 * s1, 64, 64] lhs(%x at #lhs : !x) rhs(%wq at #rhs : !w) extras(%bq at #n : !b) epilogue {
  ^bb0(%sum: f32, %bias: bf16):
    %0 = arith.extf %bias : bf16 to f32
    %1 = arith.addf %sum, %0 : f32
    %2 = arith.truncf %1 : f32 to bf16
    shapejit.yield %2 : bf16
  } -> !x
  %k = shapejit.gemm over [s0 * s1, 32, 64] lhs(%x at #lhs : !x) rhs(%wk at #rhs : !v) extras(%bk at #n : !c) epilogue {
  ^bb0(%sum: f32, %bias: bf16):
    %0 = arith.extf %bias : bf16 to f32
    %1 = arith.addf %sum, %0 : f32
    %2 = arith.truncf %1 : f32 to bf16
    shapejit.yield %2 : bf16
  } -> !y
  %v = shapejit.gemm over [s0 * s1, 32, 64] lhs(%x at #lhs : !x) rhs(%wv at #rhs : !v) extras(%bv at #n : !c) epilogue {
  ^bb0(%sum: f32, %bias: bf16):
    %0 = arith.extf %bias : bf16 to f32
    %1 = arith.addf %sum, %0 : f32
    %2 = arith.truncf %1 : f32 to bf16
    shapejit.yield %2 : bf16
  } -> !y
  // CHECK-NEXT: shapejit.attention
  // CHECK-NEXT: q(%[[QKV]] at #[[$Q]] : tensor<?x128xbf16
  // CHECK-NEXT: k(%[[QKV]] at #[[$K]] : tensor<?x128xbf16
  // CHECK-NEXT: v(%[[QKV]] at #[[$V]] : tensor<?x128xbf16
  %a = shapejit.attention over [s0, 2, s1, s1, 32, 32] q(%q at #heads : !x) k(%k at #shared : !y) v(%v at #shared : !y)
      {scale = 0.25 : f64} -> #heads : !x
  return %a : !x
}

// -----

// Weights stored as [k, n] are joined along their last dim. Slices are read by products, as rows and
// as residual, and by loops; a view in between goes into the reader.

!x = tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>
!w = tensor<16x8xf32, #shapejit.shape<[16, 8]>>
!u = tensor<16x12xf32, #shapejit.shape<[16, 12]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
!z = tensor<?x12xf32, #shapejit.shape<[s0 * s1, 12]>>
!t = tensor<?x?x12xf32, #shapejit.shape<[s0, s1, 12]>>
!p = tensor<12x8xf32, #shapejit.shape<[12, 8]>>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d2, d1)>
#id = affine_map<(d0, d1) -> (d0, d1)>
#id3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>

// CHECK-DAG: #[[$ROWS:.*]] = affine_map<(d0, d1, d2) -> (d0, d2 + 8)>
// CHECK-DAG: #[[$FIRST:.*]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG: #[[$VIEWED:.*]] = affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2 + 8)>

shapejit.symbol @batch {id = 0, min = 1, max = 8}
shapejit.symbol @tokens {id = 1, min = 1, max = 64}

// CHECK-LABEL: func.func @readers
func.func @readers(%x: !x, %w: !w {shapejit.kind = "weight"}, %u: !u {shapejit.kind = "weight"},
                   %p: !p {shapejit.kind = "weight"}) -> (!y, !t) {
  // CHECK: %[[W:.*]] = shapejit.join %{{.*}}, %{{.*}} along 1 : {{.*}} -> tensor<16x20xf32
  // CHECK: %[[YZ:.*]] = shapejit.gemm over [s0 * s1, 20, 16]
  // CHECK-NOT: epilogue
  %y = shapejit.gemm over [s0 * s1, 8, 16] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !y
  %z = shapejit.gemm over [s0 * s1, 12, 16] lhs(%x at #lhs : !x) rhs(%u at #rhs : !u) -> !z
  // CHECK: shapejit.gemm over [s0 * s1, 8, 12]
  // CHECK-NEXT: lhs(%[[YZ]] at #[[$ROWS]] :
  // CHECK: extras(%[[YZ]] at #[[$FIRST]] :
  %o = shapejit.gemm over [s0 * s1, 8, 12] lhs(%z at #lhs : !z) rhs(%p at #rhs : !p) extras(%y at #id : !y) epilogue {
  ^bb0(%sum: f32, %residual: f32):
    %0 = arith.addf %sum, %residual : f32
    shapejit.yield %0 : f32
  } -> !y
  %t = shapejit.view %z at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)> : !z -> !t
  // CHECK-NOT: shapejit.view
  // CHECK: shapejit.loop over [s0, s1, 12]
  // CHECK-NEXT: ins(%[[YZ]] at #[[$VIEWED]] :
  %l = shapejit.loop over [s0, s1, 12] ins(%t at #id3 : !t) outs(#id3 : !t) {
  ^bb0(%a: f32):
    %0 = math.exp %a : f32
    shapejit.yield %0 : f32
  }
  return %o, %l : !y, !t
}
