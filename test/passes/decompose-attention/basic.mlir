// RUN: shapejit-opt %s --shapejit-decompose-attention --split-input-file | FileCheck %s

// Attention of float32 becomes two products with a softmax between them.

// CHECK-LABEL: func.func @plain
// CHECK: %[[S:.*]] = shapejit.gemm over [s0, 12, s1, s2, 32]
// CHECK-NEXT: lhs(%{{.*}} at #[[Q:map[0-9]*]] :
// CHECK-NEXT: rhs(%{{.*}} at #[[K:map[0-9]*]] :
// CHECK: %[[T:.*]] = shapejit.loop over [s0, 12, s1, s2]
// CHECK-NEXT: ins(%[[S]] at
// CHECK: arith.mulf
// CHECK: %[[X:.*]] = shapejit.loop over [s0, 12, s1, s2]
// CHECK: outs(max #{{.*}} : tensor<?x12x?xf32, #shapejit.shape<[s0, 12, s1]>>)
// CHECK: %[[E:.*]] = shapejit.loop over [s0, 12, s1, s2]
// CHECK: math.exp
// CHECK: %[[Z:.*]] = shapejit.loop over [s0, 12, s1, s2]
// CHECK: outs(add
// CHECK: %[[P:.*]] = shapejit.loop over [s0, 12, s1, s2]
// CHECK: arith.divf
// CHECK: %[[O:.*]] = shapejit.gemm over [s0, 12, s1, 32, s2]
// CHECK-NEXT: lhs(%[[P]] at
// CHECK-NEXT: rhs(%arg2 at
// CHECK-NOT: shapejit.attention
// CHECK: return %[[O]]
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
!q = tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s1, 32]>>
!k = tensor<?x12x?x32xf32, #shapejit.shape<[s0, 12, s2, 32]>>
func.func @plain(%q: !q, %k: !k, %v: !k) -> !q {
  %0 = shapejit.attention over [s0, 12, s1, s2, 32, 32]
      q(%q at #id : !q) k(%k at #id : !k) v(%v at #id : !k) {scale = 0.17 : f64} -> #id : !q
  return %0 : !q
}

// -----

// Causal with an offset of symbols, grouped heads, a mask of booleans that heads share.

// CHECK: #[[$END_MAP:map[0-9]*]] = affine_map<()[s0, s1, s2] -> (-s1 + s2)>
// CHECK-LABEL: func.func @masked
// CHECK: %[[S:.*]] = shapejit.gemm over [s0, 8, s1, s2, 64]
// CHECK: ins(%[[S]] at #{{.*}}, %arg3 at
// CHECK: ^bb0(%[[V:.*]]: f32, %[[M:.*]]: i1):
// CHECK-DAG: %[[KEY:.*]] = shapejit.index 3
// CHECK-DAG: %[[QUERY:.*]] = shapejit.index 2
// CHECK-DAG: %[[OFFSET:.*]] = shapejit.size #[[$END_MAP]]
// CHECK: %[[END:.*]] = arith.addi %[[QUERY]], %[[OFFSET]]
// CHECK: %[[SEEN:.*]] = arith.cmpi sle, %[[KEY]], %[[END]]
// CHECK: %[[BOTH:.*]] = arith.andi %[[M]], %[[SEEN]]
// CHECK: arith.select %[[BOTH]]
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#grouped = affine_map<(d0, d1, d2, d3) -> (d0, d1 floordiv 4, d2, d3)>
#shared = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
!q = tensor<?x8x?x64xf32, #shapejit.shape<[s0, 8, s1, 64]>>
!k = tensor<?x2x?x64xf32, #shapejit.shape<[s0, 2, s2, 64]>>
!m = tensor<?x?x?xi1, #shapejit.shape<[s0, s1, s2]>>
func.func @masked(%q: !q, %k: !k, %v: !k, %m: !m) -> !q {
  %0 = shapejit.attention over [s0, 8, s1, s2, 64, 64]
      q(%q at #id : !q) k(%k at #grouped : !k) v(%v at #grouped : !k) mask(%m at #shared : !m)
      {causal = affine_map<()[s0, s1, s2] -> (s2 - s1)>, scale = 0.125 : f64} -> #id : !q
  return %0 : !q
}

// -----

// What has kernels stays.

// CHECK-LABEL: func.func @half
// CHECK: shapejit.attention
// CHECK-NOT: shapejit.gemm
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
!q = tensor<?x12x?x32xf16, #shapejit.shape<[s0, 12, s1, 32]>>
func.func @half(%q: !q) -> !q {
  %0 = shapejit.attention over [s0, 12, s1, s1, 32, 32]
      q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q) {scale = 0.17 : f64} -> #id : !q
  return %0 : !q
}
