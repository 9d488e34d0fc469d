// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Scans and sorts survive their custom form, the generic form and bytecode.

// RUN: shapejit-opt %s | shapejit-opt --mlir-print-local-scope | FileCheck %s
// RUN: shapejit-opt %s --mlir-print-op-generic | shapejit-opt --mlir-print-local-scope | FileCheck %s
// RUN: shapejit-opt %s --emit-bytecode | shapejit-opt --mlir-print-local-scope | FileCheck %s

#id = affine_map<(d0, d1) -> (d0, d1)>
#t = affine_map<(d0, d1) -> (d1, d0)>
!x = tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
!i = tensor<?x384xi64, #shapejit.shape<[s0, 384]>>
!v5 = tensor<?x5xf32, #shapejit.shape<[s0, 5]>>
!i5 = tensor<?x5xi64, #shapejit.shape<[s0, 5]>>
!xt = tensor<384x?xf32, #shapejit.shape<[384, s0]>>

shapejit.symbol @n {id = 0}

// CHECK-LABEL: func.func @scans
func.func @scans(%x: !x, %t: !xt) -> (!x, !x, !i, !x) {
  // CHECK: shapejit.scan add over [s0, 384]
  // CHECK-NEXT: ins(%{{.*}} at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x384xf32, #shapejit.shape<[s0, 384]>>)
  // CHECK-NEXT: -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
  %0 = shapejit.scan add over [s0, 384] ins(%x at #id : !x) -> !x
  // CHECK: %{{.*}}, %{{.*}} = shapejit.scan max over [s0, 384]
  // CHECK: -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>>, tensor<?x384xi64, #shapejit.shape<[s0, 384]>>
  %1, %2 = shapejit.scan max over [s0, 384] ins(%x at #id : !x) -> !x, !i
  // CHECK: shapejit.scan logaddexp over [s0, 384]
  // CHECK-NEXT: ins(%{{.*}} at affine_map<(d0, d1) -> (d1, d0)>
  %3 = shapejit.scan logaddexp over [s0, 384] ins(%t at #t : !xt) -> !x
  return %0, %1, %2, %3 : !x, !x, !i, !x
}

// CHECK-LABEL: func.func @sorts
func.func @sorts(%x: !x) -> (!x, !i, !v5, !i5) {
  // CHECK: shapejit.sort over [s0, 384]
  // CHECK-NEXT: ins(
  // CHECK-NEXT: -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>>, tensor<?x384xi64, #shapejit.shape<[s0, 384]>>
  %0, %1 = shapejit.sort over [s0, 384] ins(%x at #id : !x) -> !x, !i
  // CHECK: shapejit.sort over [s0, 384]
  // CHECK: {descending} -> tensor<?x5xf32, #shapejit.shape<[s0, 5]>>, tensor<?x5xi64, #shapejit.shape<[s0, 5]>>
  %2, %3 = shapejit.sort over [s0, 384] ins(%x at #id : !x) {descending} -> !v5, !i5
  return %0, %1, %2, %3 : !x, !i, !v5, !i5
}
