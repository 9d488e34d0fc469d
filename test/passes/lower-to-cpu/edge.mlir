// RUN: shapejit-opt %s --split-input-file --shapejit-lower-to-cpu=vector-bytes=32 | FileCheck %s

// Bools are bytes in memory and i1 in bodies.

#id = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func private @not_part(
// CHECK: %[[B:.*]] = memref.load %{{.*}} : memref<?xi8>
// CHECK-NEXT: %[[ZERO:.*]] = arith.constant 0 : i8
// CHECK-NEXT: %[[V:.*]] = arith.cmpi ne, %[[B]], %[[ZERO]] : i8
// CHECK: %[[R:.*]] = arith.xori %[[V]], %{{.*}} : i1
// CHECK-NEXT: %[[S:.*]] = arith.extui %[[R]] : i1 to i8
// CHECK-NEXT: memref.store %[[S]], %{{.*}} : memref<?xi8>
shapejit.kernel @not symbols 1 (%x: tensor<?xi1, #shapejit.shape<[s0]>>) {
  %0 = shapejit.loop over [s0] ins(%x at #id : tensor<?xi1, #shapejit.shape<[s0]>>) outs(#id : tensor<?xi1, #shapejit.shape<[s0]>>) {
  ^bb0(%v: i1):
    %true = arith.constant true
    %1 = arith.xori %v, %true : i1
    shapejit.yield %1 : i1
  }
  shapejit.yield %0 : tensor<?xi1, #shapejit.shape<[s0]>>
}

// -----

// f16 is computed in f32.

#id = affine_map<(d0) -> (d0)>
// CHECK-LABEL: func.func private @half_part(
// CHECK: memref.load %{{.*}} : memref<?xf16>
// CHECK-NEXT: arith.extf %{{.*}} : f16 to f32
// CHECK: arith.mulf %{{.*}} : f32
// CHECK-NEXT: arith.truncf %{{.*}} : f32 to f16
shapejit.kernel @half symbols 1 (%x: tensor<?xf16, #shapejit.shape<[s0]>>) {
  %0 = shapejit.loop over [s0] ins(%x at #id : tensor<?xf16, #shapejit.shape<[s0]>>) outs(#id : tensor<?xf16, #shapejit.shape<[s0]>>) {
  ^bb0(%v: f16):
    %c = arith.constant 2.0 : f16
    %1 = arith.mulf %v, %c : f16
    shapejit.yield %1 : f16
  }
  shapejit.yield %0 : tensor<?xf16, #shapejit.shape<[s0]>>
}

// -----

// Dims of size 1 need no loop, and leave nothing to share; a size that may be 0 never divides.

// CHECK-LABEL: func.func @flatten(
// CHECK-NOT: omp.parallel
// CHECK: %[[DIVISOR:.*]] = arith.maxui %{{.*}}, %c1
// CHECK: scf.for
// CHECK-NOT: scf.for
// CHECK: arith.divui %{{.*}}, %[[DIVISOR]]
#flat = affine_map<(d0, d1)[s0, s1] -> (d1 mod s1, d1 floordiv s1)>
#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.kernel @flatten symbols 2 (%x: tensor<?x?xf32, #shapejit.shape<[s1, s0]>>) {
  %0 = shapejit.loop over [1, s0 * s1] ins(%x at #flat : tensor<?x?xf32, #shapejit.shape<[s1, s0]>>) outs(#id : tensor<1x?xf32, #shapejit.shape<[1, s0 * s1]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : tensor<1x?xf32, #shapejit.shape<[1, s0 * s1]>>
}

// -----

// A view that was not folded is a copy.

// CHECK-LABEL: func.func private @transpose_part(
// CHECK: %[[V:.*]] = memref.load
// CHECK-NEXT: arith.addi
// CHECK-NEXT: memref.store %[[V]]
shapejit.kernel @transpose symbols 1 (%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d1, d0)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>> -> tensor<8x?xf32, #shapejit.shape<[8, s0]>>
  shapejit.yield %0 : tensor<8x?xf32, #shapejit.shape<[8, s0]>>
}

// -----

// Operands in no panels are packed on the fly: a transposed rhs by squares in registers.

// CHECK-LABEL: func.func private @scores_part(
// CHECK: vector.shuffle
// CHECK: call @scores_micro
shapejit.kernel @scores symbols 2 (%a: tensor<?x64xf32, #shapejit.shape<[s0, 64]>>, %b: tensor<?x64xf32, #shapejit.shape<[s1, 64]>>) {
  %0 = shapejit.gemm over [s0, s1, 64] lhs(%a at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x64xf32, #shapejit.shape<[s0, 64]>>) rhs(%b at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<?x64xf32, #shapejit.shape<[s1, 64]>>) -> tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
  shapejit.yield %0 : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
}
