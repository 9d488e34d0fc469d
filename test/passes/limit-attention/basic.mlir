// RUN: shapejit-opt %s --shapejit-limit-attention --mlir-print-local-scope --split-input-file | FileCheck %s

// The mask of a cache, as models make it: new tokens see what the cache holds, and those before
// them. All of it becomes a length that memory holds and a causal limit from there.

!q = tensor<1x8x?x32xf32, #shapejit.shape<[1, 8, s0, 32]>>
!k = tensor<1x2x512x32xf32, #shapejit.shape<[1, 2, 512, 32]>>
!m = tensor<?x512xi1, #shapejit.shape<[s0, 512]>>
!p = tensor<i64, #shapejit.shape<[]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#kv = affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 4, d2, d3)>
#m = affine_map<(d0, d1) -> (d0, d1)>
#mask = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
shapejit.symbol @new {id = 0, min = 1, max = 512}

// CHECK-LABEL: func.func @cache
// CHECK-SAME: %[[P:arg3]]: tensor<i64
// CHECK-NEXT: %[[L:.*]] = shapejit.loop over []
// CHECK-NEXT: ins(%[[P]] at
// CHECK-NEXT: outs(affine_map<() -> ()> : tensor<i32
// CHECK-DAG: %[[POSITION:.*]] = arith.index_cast %{{.*}} : i64 to index
// CHECK-DAG: %[[QUERIES:.*]] = shapejit.size affine_map<()[s0] -> (s0)>
// CHECK-DAG: %[[KEYS:.*]] = arith.constant 512
// CHECK-DAG: %[[LEAST:.*]] = arith.muli %[[QUERIES]]
// CHECK: %[[ABOVE:.*]] = arith.maxsi %[[POSITION]], %[[LEAST]]
// CHECK: %[[WITHIN:.*]] = arith.minsi %[[ABOVE]], %[[KEYS]]
// CHECK: arith.addi %[[WITHIN]], %[[QUERIES]]
// CHECK: shapejit.attention over [1, 8, s0, 512, 32, 32]
// CHECK-NOT: mask(
// CHECK: lengths(%[[L]] at affine_map<(d0, d1) -> ()> : tensor<i32
// CHECK-NEXT: {causal = affine_map<() -> (0)>, from_end, is_initialized, scale
func.func @cache(%q: !q, %k: !k, %v: !k, %p: !p) -> !q {
  %mask = shapejit.loop over [s0, 512] ins(%p at affine_map<(d0, d1) -> ()> : !p) outs(#m : !m) {
  ^bb0(%at: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %query = shapejit.index 0
    %query_i = arith.index_cast %query : index to i64
    %last = arith.addi %query_i, %at : i64
    %seen = arith.cmpi sle, %key_i, %last : i64
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [1, 8, s0, 512, 32, 32]
      q(%q at #id : !q) k(%k at #kv : !k) v(%v at #kv : !k) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// -----

// Positions are made by a loop of their own, and two layers have one mask: one length for both.

!q = tensor<1x1x?x32xf32, #shapejit.shape<[1, 1, s0, 32]>>
!k = tensor<1x1x512x32xf32, #shapejit.shape<[1, 1, 512, 32]>>
!m = tensor<?x512xi1, #shapejit.shape<[s0, 512]>>
!p = tensor<i64, #shapejit.shape<[]>>
!ps = tensor<?xi64, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0, d1) -> (d0, d1)>
#mask = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
shapejit.symbol @new {id = 0, min = 1, max = 512}

// CHECK-LABEL: func.func @layers
// CHECK: %[[PS:.*]] = shapejit.loop over [s0]
// CHECK: %[[L:.*]] = shapejit.loop over []
// CHECK-NEXT: ins(%arg3 at
// CHECK-NOT: shapejit.loop
// CHECK: %[[O:.*]] = shapejit.attention
// CHECK: lengths(%[[L]] at
// CHECK: shapejit.attention
// CHECK-NEXT: q(%[[O]] at
// CHECK: lengths(%[[L]] at
// CHECK: return %{{.*}}, %[[PS]]
func.func @layers(%q: !q, %k: !k, %v: !k, %p: !p) -> (!q, !ps) {
  %ps = shapejit.loop over [s0] ins(%p at affine_map<(d0) -> ()> : !p)
      outs(affine_map<(d0) -> (d0)> : !ps) {
  ^bb0(%at: i64):
    %query = shapejit.index 0
    %query_i = arith.index_cast %query : index to i64
    %sum = arith.addi %query_i, %at : i64
    shapejit.yield %sum : i64
  }
  %mask = shapejit.loop over [s0, 512] ins(%ps at affine_map<(d0, d1) -> (d0)> : !ps) outs(#m : !m) {
  ^bb0(%last: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %seen = arith.cmpi sge, %last, %key_i : i64
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [1, 1, s0, 512, 32, 32]
      q(%q at #id : !q) k(%k at #id : !k) v(%v at #id : !k) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  %1 = shapejit.attention over [1, 1, s0, 512, 32, 32]
      q(%0 at #id : !q) k(%k at #id : !k) v(%v at #id : !k) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %1, %ps : !q, !ps
}
