// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --shapejit-verify-shapes --verify-diagnostics

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!v = tensor<?x5xf32, #shapejit.shape<[s0, 5]>>
!i = tensor<?x5xi64, #shapejit.shape<[s0, 5]>>
shapejit.symbol @batch {id = 0, min = 0, max = 64}
shapejit.symbol @n {id = 1, min = 5, max = 512}
func.func @fits(%x: !x) -> !v {
  %v, %i = shapejit.sort over [s0, s1] ins(%x at #id : !x) -> !v, !i
  return %v : !v
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!v = tensor<?x5xf32, #shapejit.shape<[s0, 5]>>
!i = tensor<?x5xi64, #shapejit.shape<[s0, 5]>>
shapejit.symbol @batch {id = 0, min = 0, max = 64}
shapejit.symbol @n {id = 1, min = 4, max = 512}
func.func @too_long(%x: !x) -> !v {
  // expected-error @+1 {{gives the first 5 = 5 elements of rows of s1 = 4}}
  %v, %i = shapejit.sort over [s0, s1] ins(%x at #id : !x) -> !v, !i
  return %v : !v
}
