// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-inline-pointwise --canonicalize --cse --mlir-print-local-scope --split-input-file | FileCheck %s

// Bias, activation and residual: three loops become the epilogue.

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @chain
// CHECK-SAME: (%[[X:.*]]: tensor<?x16xf32, {{.*}}>, %[[W:.*]]: tensor<8x16xf32, {{.*}}>, %[[B:.*]]: tensor<8xf32, {{.*}}>, %[[R:.*]]: tensor<?x8xf32, {{.*}}>) ->
// CHECK-NEXT: %[[G:.*]] = shapejit.gemm over [s0, 8, 16]
// CHECK-NEXT: lhs(%[[X]] at
// CHECK-NEXT: rhs(%[[W]] at
// CHECK-NEXT: extras(%[[B]] at affine_map<(d0, d1) -> (d1)> : {{.*}}, %[[R]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}) epilogue {
// CHECK-NEXT: ^bb0(%[[ACC:.*]]: f32, %[[C:.*]]: f32, %[[D:.*]]: f32):
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[ACC]], %[[C]] : f32
// CHECK-NEXT: %[[T:.*]] = math.tanh %[[S]] : f32
// CHECK-NEXT: %[[U:.*]] = arith.addf %[[D]], %[[T]] : f32
// CHECK-NEXT: shapejit.yield %[[U]] : f32
// CHECK-NEXT: } -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
// CHECK-NEXT: return %[[G]]
func.func @chain(%x: !x, %w: !w, %b: !b, %residual: !y) -> !y {
  %g = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  %0 = shapejit.loop over [s0, 8] ins(%g at #id : !y, %b at affine_map<(d0, d1) -> (d1)> : !b) outs(#id : !y) {
  ^bb0(%v: f32, %c: f32):
    %s = arith.addf %v, %c : f32
    shapejit.yield %s : f32
  }
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !y) outs(#id : !y) {
  ^bb0(%v: f32):
    %t = math.tanh %v : f32
    shapejit.yield %t : f32
  }
  %2 = shapejit.loop over [s0, 8] ins(%residual at #id : !y, %1 at #id : !y) outs(#id : !y) {
  ^bb0(%r: f32, %v: f32):
    %u = arith.addf %r, %v : f32
    shapejit.yield %u : f32
  }
  return %2 : !y
}

// -----

// A loop over [batch, rows, n] that reads a gemm over batch*rows: the residual is read as [batch*rows, n],
// what is read by batch only through a division. What the loop gave is a view.

!x = tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y2 = tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
!y3 = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!b = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @rows {id = 1, min = 1, max = 64}
// CHECK-LABEL: func.func @through_a_reshape
// CHECK-SAME: %[[R:[a-z0-9]*]]: tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %[[B:[a-z0-9]*]]: tensor<?x8xf32,
// CHECK-NEXT: %[[R2:.*]] = shapejit.view %[[R]] at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)>
// CHECK-NEXT: %[[G:.*]] = shapejit.gemm over [s0 * s1, 8, 16]
// CHECK: extras(%[[R2]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %[[B]] at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d1)> : {{.*}}) epilogue {
// CHECK: } -> tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
// CHECK-NEXT: %[[V:.*]] = shapejit.view %[[G]] at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)>
// CHECK-NEXT: return %[[V]]
func.func @through_a_reshape(%x: !x, %w: !w, %residual: !y3, %b: !b) -> !y3 {
  %g = shapejit.gemm over [s0 * s1, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y2
  %0 = shapejit.loop over [s0, s1, 8]
      ins(%g at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)> : !y2, %residual at #id : !y3,
          %b at affine_map<(d0, d1, d2) -> (d0, d2)> : !b) outs(#id : !y3) {
  ^bb0(%v: f32, %r: f32, %c: f32):
    %s = arith.addf %v, %c : f32
    %u = arith.addf %r, %s : f32
    shapejit.yield %u : f32
  }
  return %0 : !y3
}

// The same, where the reshape is an op; the next gemm reads the rows as they are.

// CHECK-LABEL: func.func @view_between
// CHECK: %[[G:.*]] = shapejit.gemm over [s0 * s1, 8, 16]
// CHECK: math.tanh
// CHECK: %[[H:.*]] = shapejit.gemm over [s0 * s1, 8, 8]
// CHECK-NEXT: lhs(%[[G]] at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>)
// CHECK: %[[I:.*]] = shapejit.gemm over [s0 * s1, 8, 8]
// CHECK-NEXT: lhs(%[[G]] at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>)
// CHECK: return %[[H]], %[[I]]
func.func @view_between(%x: !x, %w: !w, %w2: tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> (!y2, !y2) {
  %g = shapejit.gemm over [s0 * s1, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y2
  %v = shapejit.view %g at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)> : !y2 -> !y3
  %0 = shapejit.loop over [s0, s1, 8] ins(%v at #id : !y3) outs(#id : !y3) {
  ^bb0(%a: f32):
    %t = math.tanh %a : f32
    shapejit.yield %t : f32
  }
  %r = shapejit.view %0 at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)> : !y3 -> !y2
  %1 = shapejit.gemm over [s0 * s1, 8, 8] lhs(%r at affine_map<(d0, d1, d2) -> (d0, d2)> : !y2)
      rhs(%w2 at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> !y2
  %2 = shapejit.gemm over [s0 * s1, 8, 8]
      lhs(%0 at affine_map<(d0, d1, d2)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d2)> : !y3)
      rhs(%w2 at affine_map<(d0, d1, d2) -> (d2, d1)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> !y2
  return %1, %2 : !y2, !y2
}

// -----

// A gemm without an epilogue rounds its accumulator to its result's type; the epilogue does so, too.

!x = tensor<?x16xbf16, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xbf16, #shapejit.shape<[8, 16]>>
!h = tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @rounding
// CHECK: shapejit.gemm
// CHECK: ^bb0(%[[ACC:.*]]: f32):
// CHECK-NEXT: %[[H:.*]] = arith.truncf %[[ACC]] : f32 to bf16
// CHECK-NEXT: %[[F:.*]] = arith.extf %[[H]] : bf16 to f32
// CHECK-NEXT: %[[T:.*]] = math.tanh %[[F]] : f32
// CHECK-NEXT: shapejit.yield %[[T]] : f32
// CHECK-NEXT: } -> tensor<?x8xf32,
func.func @rounding(%x: !x, %w: !w) -> !y {
  %g = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !h
  %0 = shapejit.loop over [s0, 8] ins(%g at #id : !h) outs(#id : !y) {
  ^bb0(%v: bf16):
    %f = arith.extf %v : bf16 to f32
    %t = math.tanh %f : f32
    shapejit.yield %t : f32
  }
  return %0 : !y
}

// -----

// Batches are dims like others.

!x = tensor<?x4x16xf32, #shapejit.shape<[s0, 4, 16]>>
!w = tensor<?x8x16xf32, #shapejit.shape<[s0, 8, 16]>>
!y = tensor<?x4x8xf32, #shapejit.shape<[s0, 4, 8]>>
!m = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @batched
// CHECK: shapejit.gemm over [s0, 4, 8, 16]
// CHECK: extras(%{{.*}} at affine_map<(d0, d1, d2) -> (d0, d2)> : {{.*}}) epilogue {
// CHECK-NOT: shapejit.loop
func.func @batched(%x: !x, %w: !w, %mask: !m) -> !y {
  %g = shapejit.gemm over [s0, 4, 8, 16] lhs(%x at affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)> : !x)
      rhs(%w at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : !w) -> !y
  %0 = shapejit.loop over [s0, 4, 8] ins(%g at #id : !y, %mask at affine_map<(d0, d1, d2) -> (d0, d2)> : !m) outs(#id : !y) {
  ^bb0(%v: f32, %c: f32):
    %scale = arith.constant 0.125 : f32
    %s = arith.mulf %v, %scale : f32
    %a = arith.addf %s, %c : f32
    shapejit.yield %a : f32
  }
  return %0 : !y
}

// -----

// Two products of one tensor that meet in a loop are a gated pair, each with its own bias.

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @gated
// CHECK-SAME: (%[[X:[a-z0-9]*]]: {{.*}}, %[[UP:[a-z0-9]*]]: tensor<8x16xf32, {{.*}}>, %[[GATE:[a-z0-9]*]]: tensor<8x16xf32, {{.*}}>, %[[B:[a-z0-9]*]]: tensor<8xf32, {{.*}}>, %[[C:[a-z0-9]*]]: tensor<8xf32, {{.*}}>)
// CHECK-NEXT: %[[R:.*]] = shapejit.gemm over [s0, 8, 16]
// CHECK-NEXT: lhs(%[[X]] at
// CHECK-NEXT: rhs(%[[GATE]] at {{.*}}, %[[UP]] at {{.*}})
// CHECK-NEXT: extras(%[[C]] at {{.*}}, %[[B]] at {{.*}}) epilogue {
// CHECK-NEXT: ^bb0(%[[G:.*]]: f32, %[[U:.*]]: f32, %[[BG:.*]]: f32, %[[BU:.*]]: f32):
// CHECK-NEXT: %[[G1:.*]] = arith.addf %[[G]], %[[BG]]
// CHECK-NEXT: %[[T:.*]] = math.tanh %[[G1]]
// CHECK-NEXT: %[[U1:.*]] = arith.addf %[[U]], %[[BU]]
// CHECK-NEXT: %[[M:.*]] = arith.mulf %[[T]], %[[U1]]
// CHECK-NEXT: shapejit.yield %[[M]]
// CHECK: return %[[R]]
func.func @gated(%x: !x, %up: !w, %gate: !w, %b: !b, %c: !b) -> !y {
  %u = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%up at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  %u1 = shapejit.loop over [s0, 8] ins(%u at #id : !y, %b at affine_map<(d0, d1) -> (d1)> : !b) outs(#id : !y) {
  ^bb0(%v: f32, %d: f32):
    %s = arith.addf %v, %d : f32
    shapejit.yield %s : f32
  }
  %g = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%gate at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  %g1 = shapejit.loop over [s0, 8] ins(%g at #id : !y, %c at affine_map<(d0, d1) -> (d1)> : !b) outs(#id : !y) {
  ^bb0(%v: f32, %d: f32):
    %s = arith.addf %v, %d : f32
    shapejit.yield %s : f32
  }
  %t = shapejit.loop over [s0, 8] ins(%g1 at #id : !y) outs(#id : !y) {
  ^bb0(%v: f32):
    %s = math.tanh %v : f32
    shapejit.yield %s : f32
  }
  %0 = shapejit.loop over [s0, 8] ins(%t at #id : !y, %u1 at #id : !y) outs(#id : !y) {
  ^bb0(%v: f32, %d: f32):
    %s = arith.mulf %v, %d : f32
    shapejit.yield %s : f32
  }
  return %0 : !y
}

// -----

// Two products of different tensors: the later one takes the loop, the other is an extra.

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @two_tensors
// CHECK-SAME: (%[[X:[a-z0-9]*]]: {{.*}}, %[[Z:[a-z0-9]*]]: tensor<?x16xf32, {{.*}}>, %[[W:[a-z0-9]*]]: tensor<8x16xf32,
// CHECK-NEXT: %[[A:.*]] = shapejit.gemm over [s0, 8, 16]
// CHECK-NEXT: lhs(%[[X]] at
// CHECK: %[[B:.*]] = shapejit.gemm over [s0, 8, 16]
// CHECK-NEXT: lhs(%[[Z]] at
// CHECK: extras(%[[A]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}) epilogue {
// CHECK: return %[[B]]
func.func @two_tensors(%x: !x, %z: !x, %w: !w) -> !y {
  %a = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  %b = shapejit.gemm over [s0, 8, 16] lhs(%z at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  %0 = shapejit.loop over [s0, 8] ins(%b at #id : !y, %a at #id : !y) outs(#id : !y) {
  ^bb0(%v: f32, %d: f32):
    %s = arith.addf %v, %d : f32
    shapejit.yield %s : f32
  }
  return %0 : !y
}

// -----

// A cast that only loops read is theirs: the product stores 16 bits. One that leaves the function is
// an epilogue.

!x = tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>
!w = tensor<8x8xbf16, #shapejit.shape<[8, 8]>>
!f = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>
#rhs_t = affine_map<(d0, d1, d2) -> (d2, d1)>
shapejit.symbol @n {id = 0, min = 1, max = 64}
// CHECK-LABEL: func.func @casts
func.func @casts(%x: !x, %w: !w) -> (!r, !f, !f) {
  // CHECK: shapejit.gemm
  // CHECK-NOT: epilogue
  // CHECK: rhs({{.*}} -> tensor<?x8xbf16
  %0 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  %1 = shapejit.loop over [s0, 8] ins(%0 at #id : !x) outs(#id : !f) {
  ^bb0(%v: bf16):
    %a = arith.extf %v : bf16 to f32
    shapejit.yield %a : f32
  }
  // CHECK: shapejit.loop
  // CHECK: outs(add
  // CHECK: ^bb0(%{{.*}}: bf16):
  %2 = shapejit.loop over [s0, 8] ins(%1 at #id : !f) outs(add #row : !r) {
  ^bb0(%v: f32):
    %a = arith.mulf %v, %v : f32
    shapejit.yield %a : f32
  }
  // CHECK: shapejit.loop
  // CHECK: ^bb0(%{{.*}}: f32, %{{.*}}: bf16):
  %3 = shapejit.loop over [s0, 8] ins(%1 at #id : !f, %2 at #row : !r) outs(#id : !f) {
  ^bb0(%v: f32, %s: f32):
    %a = math.rsqrt %s : f32
    %b = arith.mulf %v, %a : f32
    shapejit.yield %b : f32
  }
  // CHECK: shapejit.gemm
  // CHECK: epilogue
  // CHECK: -> tensor<?x8xf32
  %4 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w at #rhs_t : !w) -> !x
  %5 = shapejit.loop over [s0, 8] ins(%4 at #id : !x) outs(#id : !f) {
  ^bb0(%v: bf16):
    %a = arith.extf %v : bf16 to f32
    shapejit.yield %a : f32
  }
  return %2, %3, %5 : !r, !f, !f
}

// -----

// A vector that is read again and again along n, through the shuffle of a transposed convolution, is
// repeated first, and so is one that is divided. A residual is read as it lies in memory.

!x = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!w = tensor<2x12x8xf32, #shapejit.shape<[2, 12, 8]>>
!g = tensor<?x2x?x12xf32, #shapejit.shape<[s0, 2, s1, 12]>>
!y = tensor<?x?x4xf32, #shapejit.shape<[s0 * 2, s1 * 3, 4]>>
!b = tensor<4xf32, #shapejit.shape<[4]>>
!half = tensor<2xf32, #shapejit.shape<[2]>>
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
shapejit.symbol @h {id = 0, min = 1, max = 64}
shapejit.symbol @w {id = 1, min = 1, max = 64}
// CHECK-LABEL: func.func @repeated
// CHECK-SAME: %[[R:[a-z0-9]*]]: tensor<?x?x4xf32, {{[^%]*}}%[[B:[a-z0-9]*]]: {{[^%]*}}%[[H:[a-z0-9]*]]:
// CHECK: %[[R2:.*]] = shapejit.view %[[R]] at
// CHECK: %[[RB:.*]] = shapejit.loop over [12]
// CHECK-NEXT: ins(%[[B]] at affine_map<(d0) -> (d0 mod 4)> : {{.*}})
// CHECK: %[[RH:.*]] = shapejit.loop over [12]
// CHECK-NEXT: ins(%[[H]] at affine_map<(d0) -> ((d0 floordiv 2) mod 2)> : {{.*}})
// CHECK: %[[G:.*]] = shapejit.gemm over [s0, 2, s1, 12, 8]
// CHECK: extras(%[[R2]] at affine_map<(d0, d1, d2, d3) -> ({{[^>]*}})> : {{.*}}, %[[RB]] at affine_map<(d0, d1, d2, d3) -> (d3)> : {{.*}}, %[[RH]] at affine_map<(d0, d1, d2, d3) -> (d3)> : {{.*}}) epilogue {
// CHECK: shapejit.view %[[G]]
// CHECK-NOT: shapejit.loop
func.func @repeated(%x: !x, %w: !w, %residual: !y, %b: !b, %h: !half) -> !y {
  %g = shapejit.gemm over [s0, 2, s1, 12, 8] lhs(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d4)> : !x)
      rhs(%w at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3, d4)> : !w) -> !g
  %0 = shapejit.view %g at affine_map<(d0, d1, d2) -> (d0 floordiv 2, d0 mod 2, d1 floordiv 3, d1 mod 3 * 4 + d2)> : !g -> !y
  %1 = shapejit.loop over [s0 * 2, s1 * 3, 4]
      ins(%0 at #id : !y, %residual at #id : !y, %b at affine_map<(d0, d1, d2) -> (d2)> : !b,
          %h at affine_map<(d0, d1, d2) -> (d2 floordiv 2)> : !half) outs(#id : !y) {
  ^bb0(%v: f32, %r: f32, %c: f32, %d: f32):
    %s = arith.addf %v, %c : f32
    %t = arith.mulf %s, %d : f32
    %u = arith.addf %r, %t : f32
    shapejit.yield %u : f32
  }
  return %1 : !y
}
