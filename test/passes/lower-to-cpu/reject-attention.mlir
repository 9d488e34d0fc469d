// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --verify-diagnostics --shapejit-lower-to-cpu

!q = tensor<?x2x?x4xf32, #shapejit.shape<[s0, 2, s1, 4]>>
!starts = tensor<?xi32, #shapejit.shape<[s0 + 1]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
shapejit.kernel @k symbols 2 (%q: !q, %l: !starts) {
  // expected-error @below {{'shapejit.attention' with starts has no lowering to the CPU; give it a batch dim}}
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q)
      starts(%l at affine_map<(d0) -> (d0)> : !starts, %l at affine_map<(d0) -> (d0)> : !starts) {scale = 0.5 : f64} -> #id : !q
  shapejit.yield %0 : !q
}
