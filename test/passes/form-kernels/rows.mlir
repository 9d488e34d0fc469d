// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-form-kernels --mlir-print-local-scope --split-input-file | FileCheck %s

// A sort is a kernel of its own, which yields both of its results even if one is not read.

#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!i = tensor<?x?xi64, #shapejit.shape<[s0, s1]>>
shapejit.symbol @batch {id = 0, min = 0, max = 64}
shapejit.symbol @n {id = 1, min = 0, max = 512}

// CHECK: shapejit.kernel @sort0 symbols 2
// CHECK-NEXT: %[[V:.*]], %[[I:.*]] = shapejit.sort over [s0, s1]
// CHECK: shapejit.yield %[[V]], %[[I]]
// CHECK: shapejit.kernel @scan0 symbols 2
// CHECK-NEXT: %[[Y:.*]] = shapejit.scan add over [s0, s1]
// CHECK: shapejit.yield %[[Y]]
// CHECK-LABEL: func.func @main(
// CHECK: %[[S:.*]]:2 = shapejit.launch @sort0
// CHECK: %[[R:.*]] = shapejit.launch @scan0 {{.*}}(%[[S]]#0)
// CHECK: return %[[R]]
func.func @main(%x: !x) -> !x {
  %v, %i = shapejit.sort over [s0, s1] ins(%x at #id : !x) {descending} -> !x, !i
  %y = shapejit.scan add over [s0, s1] ins(%v at #id : !x) -> !x
  return %y : !x
}
