// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-loops-to-gpu=schedule=loops_v1_w1_k2_t64_c1

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!i = tensor<?x?xi64, #shapejit.shape<[s0, s1]>>
// A sort needs the memory of both results.
// expected-error@+1 {{this kernel yields but one result of its sort, which works in the memory of both}}
shapejit.kernel @k symbols 2 (%x: !x) {
  %v, %i = shapejit.sort over [s0, s1] ins(%x at #id : !x) -> !x, !i
  shapejit.yield %v : !x
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
// Something beside a scan.
// expected-error@+1 {{this kernel holds 'shapejit.view' beside 'shapejit.scan', which stands alone}}
shapejit.kernel @k symbols 2 (%x: !x) {
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d1, d0)> : !x -> tensor<?x?xf32, #shapejit.shape<[s1, s0]>>
  %y = shapejit.scan add over [s0, s1] ins(%x at #id : !x) -> !x
  shapejit.yield %y : !x
}
