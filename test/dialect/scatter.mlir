// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s | shapejit-opt --mlir-print-local-scope | FileCheck %s
// RUN: shapejit-opt %s --mlir-print-op-generic | shapejit-opt --mlir-print-local-scope | FileCheck %s
// RUN: shapejit-opt %s --emit-bytecode | shapejit-opt --mlir-print-local-scope | FileCheck %s

// Scatters survive their custom form, their generic form and bytecode; launches say what they write
// in place, and buffers may be inputs.

shapejit.symbol @n {id = 0, min = 1, max = 8}
!new = tensor<2x?x4xf32, #shapejit.shape<[2, s0, 4]>>
!cache = tensor<2x8x4xf32, #shapejit.shape<[2, 8, 4]>>
!rows = tensor<?xi64, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>

// CHECK-LABEL: func.func @at_positions
func.func @at_positions(%x: !new, %rows: !rows, %cache: !cache) -> !cache {
  // CHECK: shapejit.scatter over [2, s0, 4]
  // CHECK-NEXT: from(%{{.*}} at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : tensor<2x?x4xf32, #shapejit.shape<[2, s0, 4]>>)
  // CHECK-NEXT: by(%{{.*}} at affine_map<(d0, d1, d2) -> (d1)> : tensor<?xi64, #shapejit.shape<[s0]>>)
  // CHECK-NEXT: into(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)> : tensor<2x8x4xf32, #shapejit.shape<[2, 8, 4]>>)
  %0 = shapejit.scatter over [2, s0, 4] from(%x at #id : !new)
      by(%rows at affine_map<(d0, d1, d2) -> (d1)> : !rows)
      into(%cache at affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)> : !cache)
  return %0 : !cache
}

// CHECK-LABEL: func.func @at_an_offset
func.func @at_an_offset(%x: !new, %cache: !cache) -> !cache {
  // CHECK: shapejit.scatter over [2, s0, 4]
  // CHECK-NEXT: from(
  // CHECK-NEXT: into(%{{.*}} at affine_map<(d0, d1, d2)[s0] -> (d0, d1 - s0 + 8, d2)> : tensor<2x8x4xf32, #shapejit.shape<[2, 8, 4]>>)
  %0 = shapejit.scatter over [2, s0, 4] from(%x at #id : !new)
      into(%cache at affine_map<(d0, d1, d2)[s0] -> (d0, d1 - s0 + 8, d2)> : !cache)
  return %0 : !cache
}

shapejit.kernel @k symbols 0 (%x: !cache) {
  %0 = shapejit.scatter over [2, 8, 4] from(%x at #id : !cache) into(%x at #id : !cache)
  shapejit.yield %0 : !cache
}
// CHECK-LABEL: func.func @in_place
func.func @in_place(%cache: !cache) -> !cache {
  // CHECK: shapejit.launch @k affine_map<() -> ()>(%{{.*}}) {buffers = [#shapejit.buffer<input 0>], in_place = array<i64: 0>}
  %0 = shapejit.launch @k affine_map<() -> ()> (%cache)
      {in_place = array<i64: 0>, buffers = [#shapejit.buffer<input 0>]} : (!cache) -> !cache
  return %0 : !cache
}
