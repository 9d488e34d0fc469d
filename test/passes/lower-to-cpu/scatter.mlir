// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-lower-to-cpu=vector-bytes=32 | FileCheck %s

// Positions are read, and compared with the sizes, in the outermost loops that they depend on; rows
// beyond the end are left out. What the scatter writes is computed on the way.

!new = tensor<?x4xf32, #shapejit.shape<[s0, 4]>>
!cache = tensor<8x4xf32, #shapejit.shape<[8, 4]>>
!rows = tensor<?xi64, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1) -> (d0, d1)>

// CHECK-LABEL: func.func private @rows_part(
// CHECK: scf.for %[[ROW:.*]] = %{{.*}} to %{{.*}} step
// CHECK: %[[P:.*]] = memref.load %{{.*}}[%[[ROW]]] : memref<?xi64>
// CHECK: %[[AT:.*]] = arith.index_cast %[[P]] : i64 to index
// CHECK: %[[INSIDE:.*]] = arith.cmpi ult, %[[AT]], %{{.*}} : index
// CHECK: scf.if %[[INSIDE]]
// CHECK: scf.for
// CHECK: %[[V:.*]] = memref.load %{{.*}} : memref<?xf32>
// CHECK: %[[W:.*]] = arith.negf %[[V]] : f32
// CHECK: memref.store %[[W]], %{{.*}} : memref<?xf32>
shapejit.kernel @rows symbols 1 (%x: !new, %p: !rows, %cache: !cache) {
  %k = shapejit.loop over [s0, 4] ins(%x at #id : !new) outs(#id : !new) {
  ^bb0(%v: f32):
    %w = arith.negf %v : f32
    shapejit.yield %w : f32
  }
  %0 = shapejit.scatter over [s0, 4] from(%k at #id : !new)
      by(%p at affine_map<(d0, d1) -> (d0)> : !rows) into(%cache at affine_map<(d0, d1, d2) -> (d2, d1)> : !cache)
  shapejit.yield %0 : !cache
}

// Without positions nothing is compared.

// CHECK-LABEL: func.func private @offset_part(
// CHECK-NOT: scf.if
// CHECK: memref.store
shapejit.kernel @offset symbols 1 (%x: !new, %cache: !cache) {
  %0 = shapejit.scatter over [s0, 4] from(%x at #id : !new)
      into(%cache at affine_map<(d0, d1)[s0] -> (d0 - s0 + 8, d1)> : !cache)
  shapejit.yield %0 : !cache
}
