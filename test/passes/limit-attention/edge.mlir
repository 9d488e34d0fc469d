// RUN: shapejit-opt %s --shapejit-limit-attention --mlir-print-local-scope --split-input-file | FileCheck %s

// Positions that are given one by one: the greatest of them bounds the keys, the mask stays.

!q = tensor<1x1x?x32xf32, #shapejit.shape<[1, 1, s0, 32]>>
!k = tensor<1x1x512x32xf32, #shapejit.shape<[1, 1, 512, 32]>>
!m = tensor<?x512xi1, #shapejit.shape<[s0, 512]>>
!ps = tensor<?xi64, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0, d1) -> (d0, d1)>
#mask = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
shapejit.symbol @new {id = 0, min = 1, max = 512}

// CHECK-LABEL: func.func @given
// CHECK: %[[L:.*]] = shapejit.loop over [s0]
// CHECK-NEXT: ins(%arg2 at affine_map<(d0) -> (d0)>
// CHECK-NEXT: outs(max affine_map<(d0) -> ()> : tensor<i32
// CHECK: %[[M:.*]] = shapejit.loop over [s0, 512]
// CHECK: shapejit.attention
// CHECK: mask(%[[M]] at affine_map<(d0, d1, d2, d3) -> (d2, d3)>
// CHECK-NEXT: lengths(%[[L]] at
// CHECK-NEXT: {is_initialized, scale
func.func @given(%q: !q, %k: !k, %ps: !ps) -> !q {
  %mask = shapejit.loop over [s0, 512] ins(%ps at affine_map<(d0, d1) -> (d0)> : !ps) outs(#m : !m) {
  ^bb0(%last: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %seen = arith.cmpi sle, %key_i, %last : i64
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [1, 1, s0, 512, 32, 32]
      q(%q at #id : !q) k(%k at #id : !k) v(%k at #id : !k) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// -----

// A padding mask beside the positions of each batch: it is what is left, without queries.

!q = tensor<?x2x?x32xf32, #shapejit.shape<[s0, 2, s1, 32]>>
!k = tensor<?x2x64x32xf32, #shapejit.shape<[s0, 2, 64, 32]>>
!m = tensor<?x?x64xi1, #shapejit.shape<[s0, s1, 64]>>
!pad = tensor<?x64xi1, #shapejit.shape<[s0, 64]>>
!p = tensor<?xi64, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#mask = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
shapejit.symbol @batch {id = 0, min = 1, max = 8}
shapejit.symbol @new {id = 1, min = 1, max = 64}

// CHECK-LABEL: func.func @padding
// CHECK: %[[L:.*]] = shapejit.loop over [s0]
// CHECK-NEXT: ins(%arg3 at affine_map<(d0) -> (d0)>
// CHECK-NEXT: outs(affine_map<(d0) -> (d0)> : tensor<?xi32
// CHECK: %[[M:.*]] = shapejit.loop over [s0, 64]
// CHECK-NEXT: ins(%arg2 at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x64xi1
// CHECK-NEXT: outs(
// CHECK-NEXT: ^bb0(%[[SEEN:.*]]: i1
// CHECK-NEXT: shapejit.yield %[[SEEN]]
// CHECK: shapejit.attention
// CHECK: mask(%[[M]] at affine_map<(d0, d1, d2, d3) -> (d0, d3)>
// CHECK-NEXT: lengths(%[[L]] at affine_map<(d0, d1) -> (d0)>
// CHECK-NEXT: {causal = affine_map<() -> (0)>, from_end, is_initialized
func.func @padding(%q: !q, %k: !k, %pad: !pad, %p: !p) -> !q {
  %mask = shapejit.loop over [s0, s1, 64]
      ins(%pad at affine_map<(d0, d1, d2) -> (d0, d2)> : !pad, %p at affine_map<(d0, d1, d2) -> (d0)> : !p)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !m) {
  ^bb0(%there: i1, %at: i64):
    %key = shapejit.index 2
    %key_i = arith.index_cast %key : index to i64
    %query = shapejit.index 1
    %query_i = arith.index_cast %query : index to i64
    %one = arith.constant 1 : i64
    %after = arith.addi %query_i, %one : i64
    %end = arith.addi %after, %at : i64
    %before = arith.cmpi sgt, %end, %key_i : i64
    %seen = arith.andi %before, %there : i1
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [s0, 2, s1, 64, 32, 32]
      q(%q at #id : !q) k(%k at #id : !k) v(%k at #id : !k) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// -----

// A number of keys for each batch, under a causal limit that is there: it stays. The last key
// counts less by a constant, and the mask has its rows in one dim.

!q = tensor<?x2x8x32xf32, #shapejit.shape<[s0, 2, 8, 32]>>
!m = tensor<?x8xi1, #shapejit.shape<[s0 * 8, 8]>>
!p = tensor<?xi32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0, d1) -> (d0, d1)>
#mask = affine_map<(d0, d1, d2, d3) -> (d0 * 8 + d2, d3)>
shapejit.symbol @batch {id = 0, min = 1, max = 8}

// CHECK-LABEL: func.func @counts
// CHECK: %[[L:.*]] = shapejit.loop over [s0]
// CHECK-NEXT: ins(%arg1 at affine_map<(d0) -> (d0)> : tensor<?xi32
// CHECK: shapejit.attention
// CHECK-NOT: mask(
// CHECK: lengths(%[[L]] at affine_map<(d0, d1) -> (d0)>
// CHECK-NEXT: {causal = affine_map<() -> (0)>, is_initialized, scale
func.func @counts(%q: !q, %p: !p) -> !q {
  %mask = shapejit.loop over [s0 * 8, 8] ins(%p at affine_map<(d0, d1) -> (d0 floordiv 8)> : !p) outs(#m : !m) {
  ^bb0(%count: i32):
    %key = shapejit.index 1
    %two = arith.constant 2 : index
    %after = arith.addi %key, %two : index
    %count_i = arith.index_cast %count : i32 to index
    %seen = arith.cmpi slt, %after, %count_i : index
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [s0, 2, 8, 8, 32, 32]
      q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q) mask(%mask at #mask : !m)
      {scale = 0.5 : f64, causal = affine_map<() -> (0)>} -> #id : !q
  return %0 : !q
}

// -----

// A causal limit by positions under a causal limit that is there: the keys are bounded, no more.

!q = tensor<1x2x8x32xf32, #shapejit.shape<[1, 2, 8, 32]>>
!m = tensor<8x8xi1, #shapejit.shape<[8, 8]>>
!p = tensor<i64, #shapejit.shape<[]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0, d1) -> (d0, d1)>
#mask = affine_map<(d0, d1, d2, d3) -> (d2, d3)>

// CHECK-LABEL: func.func @both
// CHECK: %[[L:.*]] = shapejit.loop over []
// CHECK: %[[EIGHT:.*]] = arith.constant 8 : index
// CHECK: arith.addi %{{.*}}, %[[EIGHT]]
// CHECK: %[[M:.*]] = shapejit.loop over [8, 8]
// CHECK: shapejit.attention
// CHECK: mask(%[[M]] at
// CHECK-NEXT: lengths(%[[L]] at
// CHECK-NEXT: {causal = affine_map<() -> (3)>, is_initialized, scale
func.func @both(%q: !q, %p: !p) -> !q {
  %mask = shapejit.loop over [8, 8] ins(%p at affine_map<(d0, d1) -> ()> : !p) outs(#m : !m) {
  ^bb0(%at: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %query = shapejit.index 0
    %query_i = arith.index_cast %query : index to i64
    %last = arith.addi %query_i, %at : i64
    %seen = arith.cmpi sle, %key_i, %last : i64
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [1, 2, 8, 8, 32, 32]
      q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q) mask(%mask at #mask : !m)
      {scale = 0.5 : f64, causal = affine_map<() -> (3)>} -> #id : !q
  return %0 : !q
}
