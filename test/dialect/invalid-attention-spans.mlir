// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
!lengths = tensor<?xf32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @length_type(%q: !q, %l: !lengths) -> !q {
  // expected-error @below {{lengths holds 'f32', expected i32 or i64}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q)
      lengths(%l at affine_map<(d0, d1) -> (d0)> : !lengths) {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
!lengths = tensor<?xi32, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @length_map(%q: !q, %l: !lengths) -> !q {
  // expected-error @below {{lengths: the map has 1 dimensions, expected 2}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q)
      lengths(%l at affine_map<(d0) -> (d0)> : !lengths) {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
!starts = tensor<?xi32, #shapejit.shape<[s0 + 1]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @one_start(%q: !q, %s: !starts) -> !q {
  // expected-error @+2 {{expected two operands for 'starts'}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q)
      starts(%s at affine_map<(d0) -> (d0)> : !starts) {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @beyond_no_length(%q: !q) -> !q {
  // expected-error @below {{says what lies beyond its lengths, but has none}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q)
      {scale = 0.5 : f64, is_initialized} -> #id : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @from_no_end(%q: !q) -> !q {
  // expected-error @below {{counts a causal offset from the end, but has none}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q)
      {scale = 0.5 : f64, from_end} -> #id : !q
  return %0 : !q
}

// -----

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @missing_starts(%q: !q) -> !q {
  // expected-error @below {{has 1 operands after v, which do not fit its attributes: at most one mask, lengths if has_lengths, two starts if is_ragged}}
  %0 = "shapejit.attention"(%q, %q, %q, %q) {space = #shapejit.shape<[s0, 2, s1, s1, 4, 4]>, maps = [#id, #id, #id, #id, #id], scale = 0.5 : f64, is_ragged} : (!q, !q, !q, !q) -> !q
  return %0 : !q
}
