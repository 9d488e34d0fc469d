// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

// Gemm: operands.

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @two_lhs(%x: !x, %w: !w) -> !y {
  // expected-error @below {{expected one lhs}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x, %x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>

!y = tensor<?xf32, #shapejit.shape<[s0]>>
func.func @rank(%x: !x, %w: !w) -> !y {
  // expected-error @below {{runs over 2 dimensions, expected m, n and k at least}}
  %0 = shapejit.gemm over [s0, 16] lhs(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      rhs(%w at affine_map<(d0, d1) -> (0, d1)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @three_weights(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has 3 weights, expected one, or two for a gated pair}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w,
          %w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w,
          %w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) epilogue {
  ^bb0(%a: f32, %b: f32, %c: f32):
    shapejit.yield %a : f32
  } -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @maps(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has 1 maps for 2 operands}}
  %0 = "shapejit.gemm"(%x, %w) ({}) {space = #shapejit.shape<[s0, 8, 16]>,
      maps = [affine_map<(d0, d1, d2) -> (d0, d2)>],
      operandSegmentSizes = array<i32: 1, 1, 0>} : (!x, !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>

func.func @plain_result(%x: !x, %w: !w) -> tensor<?x8xf32> {
  // expected-error @below {{result has type 'tensor<?x8xf32>', which carries no symbolic shape}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32>
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @plain_operand(%x: !x, %w: tensor<8x16xf32>) -> !y {
  // expected-error @below {{operand 1 has type 'tensor<8x16xf32>', which carries no symbolic shape}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x16xf32>) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @lhs_of_n(%x: !x, %w: !w) -> !y {
  // expected-error @below {{operand 0: the lhs must not depend on n (d1)}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d1)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

!w = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
func.func @weight_of_m(%x: !x, %w: !w) -> !y {
  // expected-error @below {{operand 1: a weight must not depend on m (d0)}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d0, d2)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

!w = tensor<8x16xf64, #shapejit.shape<[8, 16]>>
func.func @mixed(%x: !x, %w: !w) -> !y {
  // expected-error @below {{operand 1 holds 'f64' but the lhs holds 'f32'}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @weight_bounds(%x: !x, %w: !w) -> !y {
  // expected-error @below {{operand 1: index 0 (d2) spans [0, 15], outside of dimension 0 of size 8}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d2, d1)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>

func.func @extra_over_k(%x: !x, %w: !w, %b: !b) -> !y {
  // expected-error @below {{operand 2: the map has 3 dimensions, expected 2}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w)
      extras(%b at affine_map<(d0, d1, d2) -> (d1)> : !b) epilogue {
  ^bb0(%acc: f32, %e: f32):
    shapejit.yield %acc : f32
  } -> !y
  return %0 : !y
}

// -----

// Gemm: result and epilogue.

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>

!y = tensor<?xf32, #shapejit.shape<[s0]>>
func.func @result_rank(%x: !x, %w: !w) -> !y {
  // expected-error @below {{result has rank 1, expected 2}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>

!y = tensor<?x8xf32, #shapejit.shape<[s1, 8]>>
func.func @result_size(%x: !x, %w: !w) -> !y {
  // expected-error @below {{result dimension 0 has size s1 but the space has s0}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @pair_without_epilogue(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has 2 weights and 0 extras, which only an epilogue can combine}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w,
          %w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xbf16, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xbf16, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf64, #shapejit.shape<[s0, 8]>>
func.func @result_type(%x: !x, %w: !w) -> !y {
  // expected-error @below {{without an epilogue gives the accumulate type 'f32' or the operands' 'bf16', not 'f64'}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>

func.func @epilogue_count(%x: !x, %w: !w, %b: !b) -> !y {
  // expected-error @below {{epilogue takes 1 arguments, expected 1 accumulators and 1 extras}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w)
      extras(%b at affine_map<(d0, d1) -> (d1)> : !b) epilogue {
  ^bb0(%acc: f32):
    shapejit.yield %acc : f32
  } -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @accumulator_type(%x: !x, %w: !w) -> !y {
  // expected-error @below {{epilogue argument 0 is 'f32', expected 'f64'}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) accumulate f64 epilogue {
  ^bb0(%acc: f32):
    shapejit.yield %acc : f32
  } -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>

func.func @extra_type(%x: !x, %w: !w, %b: !b) -> !y {
  // expected-error @below {{epilogue argument 1 is 'i32', expected 'f32'}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w)
      extras(%b at affine_map<(d0, d1) -> (d1)> : !b) epilogue {
  ^bb0(%acc: f32, %e: i32):
    shapejit.yield %acc : f32
  } -> !y
  return %0 : !y
}

// -----

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>

func.func @epilogue_yield(%x: !x, %w: !w) -> !y {
  // expected-error @below {{epilogue must yield one 'f32'}}
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) epilogue {
  ^bb0(%acc: f32):
    %e = arith.extf %acc : f32 to f64
    shapejit.yield %e : f64
  } -> !y
  return %0 : !y
}

// -----

// Attention.

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @operand_count(%q: !q) -> !q {
  // expected-error @+2 {{expected one operand for 'q'}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q, %q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @space_rank(%q: !q) -> !q {
  // expected-error @below {{runs over 5 dimensions, expected [batch, heads, m, n, d, dv]}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @attention_maps(%q: !q) -> !q {
  // expected-error @below {{has 3 maps, expected one for each of the 3 operands and one for the result}}
  %0 = "shapejit.attention"(%q, %q, %q) {space = #shapejit.shape<[s0, 2, s1, s1, 4, 4]>, scale = 0.5 : f64,
      maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>,
              affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>]} : (!q, !q, !q) -> !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xi32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @integers(%q: !q) -> !q {
  // expected-error @below {{needs floating-point operands, got 'i32'}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @plain_k(%q: !q, %k: tensor<?x2x?x4xf32>) -> !q {
  // expected-error @below {{k has type 'tensor<?x2x?x4xf32>', which carries no symbolic shape}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%k at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x2x?x4xf32>)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @q_bounds(%q: !q) -> !q {
  // expected-error @below {{q: index 1 (d1 + 1) spans [1, 2], outside of dimension 1 of size 2}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1 + 1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
!v = tensor<?x2x?x4xf64, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @v_type(%q: !q, %v: !v) -> !q {
  // expected-error @below {{v holds 'f64' but q holds 'f32'}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%v at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !v)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
!m = tensor<?x?xi32, #shapejit.shape<[s0, s1]>>

func.func @mask_type(%q: !q, %m: !m) -> !q {
  // expected-error @below {{mask holds 'i32', expected i1 or floating point}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      mask(%m at affine_map<(d0, d1, d2, d3) -> (d0, d3)> : !m)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @plain_attention_result(%q: !q) -> tensor<?x2x?x4xf32> {
  // expected-error @below {{result has type 'tensor<?x2x?x4xf32>', which carries no symbolic shape}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : tensor<?x2x?x4xf32>
  return %0 : tensor<?x2x?x4xf32>
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @result_bounds(%q: !q) -> !q {
  // expected-error @below {{result: index 3 (d3 + 1) spans [1, 4], outside of dimension 3 of size 4}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3 + 1)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
!r = tensor<?x2x?x4xf64, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @attention_result_type(%q: !q) -> !r {
  // expected-error @below {{result holds 'f64' but q holds 'f32'}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !r
  return %0 : !r
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @infinite_scale(%q: !q) -> !q {
  // expected-error @below {{needs a finite scale}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0x7FF0000000000000 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>

func.func @causal_offset(%q: !q) -> !q {
  // expected-error @below {{causal offset must be one expression of symbols, got (d0) -> (d0)}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4]
      q(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      k(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      v(%q at affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q)
      {scale = 0.5 : f64, causal = affine_map<(d0) -> (d0)>} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)> : !q
  return %0 : !q
}

// -----

// Packed weights.

!w = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!p = tensor<?x16x32xf32, #shapejit.shape<[s0, 16, 32]>>
func.func @dynamic(%w: !w) -> !p {
  // expected-error @below {{packs a weight of static shape, got 'tensor<?x16xf32, #shapejit.shape<[s0, 16]>>'}}
  %0 = shapejit.pack %w {dim = 0, panel = 32} : !w -> !p
  return %0 : !p
}

// -----

!w = tensor<40x16xf32, #shapejit.shape<[40, 16]>>
!p = tensor<1x16x32xf32, #shapejit.shape<[1, 16, 32]>>
func.func @panel_count(%w: !w) -> !p {
  // expected-error @below {{gives 'tensor<1x16x32xf32, #shapejit.shape<[1, 16, 32]>>', expected 2x16x32x'f32'}}
  %0 = shapejit.pack %w {dim = 0, panel = 32} : !w -> !p
  return %0 : !p
}

// -----

!w = tensor<40x16xf32, #shapejit.shape<[40, 16]>>
!p = tensor<2x16x32xf32, #shapejit.shape<[2, 16, 32]>>
func.func @pack_dim(%w: !w) -> !p {
  // expected-error @below {{without a space packs dimension 0 or 1 of a matrix, got dimension 2 of 'tensor<40x16xf32, #shapejit.shape<[40, 16]>>'}}
  %0 = shapejit.pack %w {dim = 2, panel = 32} : !w -> !p
  return %0 : !p
}

// -----

!w = tensor<40x16xf32, #shapejit.shape<[40, 16]>>
!p = tensor<2x16x32xf32, #shapejit.shape<[2, 16, 32]>>
func.func @panel(%w: !w) -> !p {
  // expected-error @below {{attribute 'panel' failed to satisfy constraint}}
  %0 = shapejit.pack %w {dim = 0, panel = 0} : !w -> !p
  return %0 : !p
}

// -----

!p = tensor<2x16x32xf32, #shapejit.shape<[2, 16, 32]>>
func.func @plain_weight(%w: tensor<40x16xf32>) -> !p {
  // expected-error @below {{source has type 'tensor<40x16xf32>', which carries no symbolic shape}}
  %0 = shapejit.pack %w {dim = 0, panel = 32} : tensor<40x16xf32> -> !p
  return %0 : !p
}

// -----

!w = tensor<40x16xf32, #shapejit.shape<[40, 16]>>
func.func @plain_panels(%w: !w) -> tensor<2x16x32xf32> {
  // expected-error @below {{result has type 'tensor<2x16x32xf32>', which carries no symbolic shape}}
  %0 = shapejit.pack %w {dim = 0, panel = 32} : !w -> tensor<2x16x32xf32>
  return %0 : tensor<2x16x32xf32>
}

// -----

!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!p = tensor<1x8x32xf32, #shapejit.shape<[1, 8, 32]>>
func.func @pack_rank(%w: !w) -> !p {
  // expected-error @below {{without a space packs dimension 0 or 1 of a matrix, got dimension 0 of 'tensor<16x8x3xf32}}
  %0 = shapejit.pack %w {dim = 0, panel = 32} : !w -> !p
  return %0 : !p
}

// -----

!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!p = tensor<1x3x8x32xf32, #shapejit.shape<[1, 3, 8, 32]>>
func.func @pack_symbol(%w: !w) -> !p {
  // expected-error @below {{packs over constant sizes, got s0}}
  %0 = shapejit.pack %w over [16, s0, 8] at affine_map<(f, t, c) -> (f, c, t)> {dim = 0, panel = 32} : !w -> !p
  return %0 : !p
}

// -----

!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!p = tensor<1x3x8x32xf32, #shapejit.shape<[1, 3, 8, 32]>>
func.func @pack_space_dim(%w: !w) -> !p {
  // expected-error @below {{cuts dimension 3 of a space of rank 3}}
  %0 = shapejit.pack %w over [16, 3, 8] at affine_map<(f, t, c) -> (f, c, t)> {dim = 3, panel = 32} : !w -> !p
  return %0 : !p
}

// -----

!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!p = tensor<1x3x8x32xf32, #shapejit.shape<[1, 3, 8, 32]>>
func.func @pack_bounds(%w: !w) -> !p {
  // expected-error @below {{source: index 2 (d1) spans [0, 7], outside of dimension 2 of size 3}}
  %0 = shapejit.pack %w over [16, 8, 3] at affine_map<(f, t, c) -> (f, c, t)> {dim = 0, panel = 32} : !w -> !p
  return %0 : !p
}

// -----

!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!p = tensor<1x3x8x32xf32, #shapejit.shape<[1, 3, 8, 32]>>
func.func @pack_shape(%w: !w) -> !p {
  // expected-error @below {{gives 'tensor<1x3x8x32xf32, #shapejit.shape<[1, 3, 8, 32]>>', expected 2x3x8x8x'f32'}}
  %0 = shapejit.pack %w over [16, 3, 8] at affine_map<(f, t, c) -> (f, c, t)> {dim = 0, panel = 8} : !w -> !p
  return %0 : !p
}

// -----

!w = tensor<16x8xf32, #shapejit.shape<[16, 8]>>
!p = tensor<1x8x32xf32, #shapejit.shape<[1, 8, 32]>>
func.func @pack_half(%w: !w) -> !p {
  // expected-error @below {{needs both a space and a map, or neither}}
  %0 = "shapejit.pack"(%w) {space = #shapejit.shape<[16, 8]>, dim = 0 : i64, panel = 32 : i64} : (!w) -> !p
  return %0 : !p
}

// -----

// Joined weights.

!w = tensor<4x8xf32, #shapejit.shape<[4, 8]>>
func.func @join_one(%w: !w) -> !w {
  // expected-error @below {{joins 1 weights, expected at least two}}
  %0 = shapejit.join %w along 0 : (!w) -> !w
  return %0 : !w
}

// -----

!w = tensor<4x8xf32, #shapejit.shape<[4, 8]>>
!y = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
func.func @join_dim(%w: !w) -> !y {
  // expected-error @below {{joins along dimension 2 of 'tensor<4x8xf32, #shapejit.shape<[4, 8]>>'}}
  %0 = shapejit.join %w, %w along 2 : (!w, !w) -> !y
  return %0 : !y
}

// -----

!w = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @join_dynamic(%w: !w) -> !w {
  // expected-error @below {{joins weights of static shape, got 'tensor<?x8xf32, #shapejit.shape<[s0, 8]>>'}}
  %0 = shapejit.join %w, %w along 1 : (!w, !w) -> !w
  return %0 : !w
}

// -----

!w = tensor<4x8xf32, #shapejit.shape<[4, 8]>>
!v = tensor<4x9xf32, #shapejit.shape<[4, 9]>>
!y = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
func.func @join_sizes(%w: !w, %v: !v) -> !y {
  // expected-error @below {{source 1 is 'tensor<4x9xf32, #shapejit.shape<[4, 9]>>', which differs from source 0, 'tensor<4x8xf32, #shapejit.shape<[4, 8]>>', in more than dimension 0}}
  %0 = shapejit.join %w, %v along 0 : (!w, !v) -> !y
  return %0 : !y
}

// -----

!w = tensor<4x8xf32, #shapejit.shape<[4, 8]>>
!v = tensor<4x8xbf16, #shapejit.shape<[4, 8]>>
!y = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
func.func @join_elements(%w: !w, %v: !v) -> !y {
  // expected-error @below {{source 1 is 'tensor<4x8xbf16, #shapejit.shape<[4, 8]>>', which differs from source 0}}
  %0 = shapejit.join %w, %v along 0 : (!w, !v) -> !y
  return %0 : !y
}

// -----

!w = tensor<4x8xf32, #shapejit.shape<[4, 8]>>
!y = tensor<9x8xf32, #shapejit.shape<[9, 8]>>
func.func @join_result(%w: !w) -> !y {
  // expected-error @below {{gives 'tensor<9x8xf32, #shapejit.shape<[9, 8]>>', expected 8x8x'f32'}}
  %0 = shapejit.join %w, %w along 0 : (!w, !w) -> !y
  return %0 : !y
}

// -----

!w = tensor<4x8xf32, #shapejit.shape<[4, 8]>>
!y = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
func.func @join_plain(%w: !w, %v: tensor<4x8xf32>) -> !y {
  // expected-error @below {{source 1 has type 'tensor<4x8xf32>', which carries no symbolic shape}}
  %0 = shapejit.join %w, %v along 0 : (!w, tensor<4x8xf32>) -> !y
  return %0 : !y
}
