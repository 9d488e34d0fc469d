// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-lower-to-cpu=vector-bytes=32 | FileCheck %s

!x = tensor<?x?x?x8xf32, #shapejit.shape<[s0, s1, s2, 8]>>
!y = tensor<?x?x?x16xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, (s2 + 1) floordiv 2, 16]>>
!w = tensor<1x1x3x3x8x16xf32, #shapejit.shape<[1, 1, 3, 3, 8, 16]>>
!b = tensor<16xf32, #shapejit.shape<[16]>>

// A convolution is the blocked product with rows from the image: zeros, a copy of what the taps of a
// line see, zeros. The weight is read where it was packed.

// CHECK: module @strided attributes {shapejit.target = "cpu"}
// CHECK: func.func private @strided_micro_6_16_{{.*}} attributes {llvm.linkage = #llvm.linkage<internal>, passthrough = ["noinline"]}
// CHECK: func.func private @strided_part(
// CHECK-COUNT-2: memref.alloca() {alignment = 64 : i64}
// CHECK-NOT: memref.alloca
// CHECK: %[[ZERO:.*]] = arith.constant 0.000000e+00 : f32
// CHECK: scf.for
// CHECK: memref.store %[[ZERO]], %[[A:.*]][
// CHECK: scf.for
// CHECK-NOT: memref.store
// CHECK: %[[V:.*]] = memref.load
// CHECK: memref.store %[[V]], %[[A]][
// CHECK: scf.for
// CHECK: memref.store %{{.*}}, %[[A]][
// CHECK: call @strided_micro_6_16_
// CHECK: arith.maximumf
shapejit.kernel @strided symbols 3 (%x: !x, %w: !w, %b: !b) {
  %0 = shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, (s2 + 1) floordiv 2, 16, 8, 3, 3] image [s1, s2]
      stride [2, 2] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, c)> : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (g, f floordiv 16, t, u, c, f mod 16)> : !w)
      extras(%b at affine_map<(n, g, o, p, f) -> (f)> : !b) epilogue {
  ^bb0(%acc: f32, %bias: f32):
    %zero = arith.constant 0.0 : f32
    %1 = arith.addf %acc, %bias : f32
    %2 = arith.maximumf %1, %zero : f32
    shapejit.yield %2 : f32
  } -> affine_map<(n, g, o, p, f) -> (n, o, p, f)> : !y
  shapejit.yield %0 : !y
}

!d = tensor<?x?x20xf32, #shapejit.shape<[s0, s1, 20]>>
!k = tensor<3x3x8xf32, #shapejit.shape<[3, 3, 8]>>

// A depthwise one has vectors of channels: four columns at once in the middle, each pixel loaded
// once, single ones at the edges; the last four channels by a mask.

// CHECK: module @depthwise
// CHECK: func.func private @depthwise_part(
// CHECK-NOT: call @
// CHECK: %[[K:.*]] = vector.load %{{.*}} : memref<?xf32>, vector<8xf32>
// CHECK: %[[P:.*]] = vector.load
// CHECK: vector.fma %[[P]], %[[K]], %{{.*}} : vector<8xf32>
// CHECK: vector.fma %{{.*}}, %[[K]], %{{.*}} : vector<8xf32>
// CHECK: vector.fma %{{.*}}, %[[K]], %{{.*}} : vector<8xf32>
// CHECK: vector.fma %{{.*}}, %[[K]], %{{.*}} : vector<8xf32>
// CHECK-COUNT-8: vector.fma
// CHECK: vector.fma
// CHECK: %[[MASK:.*]] = vector.create_mask %{{.*}} : vector<8xi1>
// CHECK: vector.maskedload %{{.*}}, %[[MASK]], %{{.*}} : memref<?xf32>, vector<8xi1>, vector<8xf32> into vector<8xf32>
shapejit.kernel @depthwise symbols 2 (%x: !d, %w: !k) {
  %0 = shapejit.conv over [s0, 20, s1, 1, 1, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, g)> : !d)
      weight(%w at affine_map<(g, f, c, t) -> (g floordiv 8, t, g mod 8)> : !k)
      -> affine_map<(n, g, o, f) -> (n, o, g)> : !d
  shapejit.yield %0 : !d
}
