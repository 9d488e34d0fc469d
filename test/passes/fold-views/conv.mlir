// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-fold-views --mlir-print-local-scope | FileCheck %s

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}

!first = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!flat = tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!turned = tensor<8x6x3xf32, #shapejit.shape<[8, 6, 3]>>
!y = tensor<?x?x6xf32, #shapejit.shape<[s0, s1, 6]>>
!out = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>
!rows = tensor<?x6xf32, #shapejit.shape<[s0 * s1, 6]>>

// Transposes of the image and of the kernel are maps; the result is written where its only reader,
// a transpose, would have read.

// CHECK-LABEL: func.func @transposes
// CHECK-SAME: %[[X:[a-z0-9]*]]: tensor<?x?x8xf32{{[^%]*}}%[[W:[a-z0-9]*]]:
// CHECK-NOT: shapejit.view
// CHECK: shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
// CHECK-NEXT: input(%[[X]] at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> :
// CHECK-NEXT: weight(%[[W]] at affine_map<(d0, d1, d2, d3) -> (d2, d1, d3)> :
// CHECK-SAME: -> affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)> : tensor<?x6x?xf32
// CHECK-NOT: shapejit.view
func.func @transposes(%x: !first, %w: !turned) -> !out {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : !first -> !x
  %1 = shapejit.view %w at affine_map<(d0, d1, d2) -> (d1, d0, d2)> : !turned -> !w
  %2 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%0 at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%1 at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %3 = shapejit.view %2 at affine_map<(d0, d1, d2) -> (d0, d2, d1)> : !y -> !out
  return %3 : !out
}

// A view that only regroups costs nothing where it is, so images keep their dims.

// CHECK-LABEL: func.func @regroups
// CHECK: %[[V:.*]] = shapejit.view
// CHECK: %[[C:.*]] = shapejit.conv
// CHECK-NEXT: input(%[[V]] at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> :
// CHECK: -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x?x6xf32
// CHECK: shapejit.view %[[C]]
func.func @regroups(%x: !flat, %w: !w) -> !rows {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)> : !flat -> !first
  %1 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%0 at affine_map<(n, g, p, c) -> (n, p, c)> : !first)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %2 = shapejit.view %1 at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)> : !y -> !rows
  return %2 : !rows
}

// A slice of an image is an image with its own sizes; one that would divide a pixel's index is not
// folded.

!wide = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1 * 2]>>
// CHECK-LABEL: func.func @slices
// CHECK-SAME: %[[X:[a-z0-9]*]]: tensor<?x8x?xf32{{[^%]*}}%[[P:[a-z0-9]*]]:
// CHECK: shapejit.conv
// CHECK-NEXT: input(%[[X]] at affine_map<(d0, d1, d2, d3)[s0, s1] -> (d0, d3, d2 + s1)> :
// CHECK: %[[V:.*]] = shapejit.view %[[P]]
// CHECK: shapejit.conv
// CHECK-NEXT: input(%[[V]] at
func.func @slices(%x: !wide, %p: tensor<?x2x8x?xf32, #shapejit.shape<[s0, 2, 8, s1]>>, %w: !w) -> (!y, tensor<?x?x6xf32, #shapejit.shape<[s0, s1 * 2, 6]>>) {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2)[s0, s1] -> (d0, d1, d2 + s1)> : !wide -> !x
  %1 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%0 at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %2 = shapejit.view %p at affine_map<(d0, d1, d2) -> (d0, d2 mod 2, d1, d2 floordiv 2)>
      : tensor<?x2x8x?xf32, #shapejit.shape<[s0, 2, 8, s1]>> -> !wide
  %3 = shapejit.conv over [s0, 1, s1 * 2, 6, 8, 3] image [s1 * 2] padding [(1, 1)]
      input(%2 at affine_map<(n, g, p, c) -> (n, c, p)> : !wide)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : tensor<?x?x6xf32, #shapejit.shape<[s0, s1 * 2, 6]>>
  return %1, %3 : !y, tensor<?x?x6xf32, #shapejit.shape<[s0, s1 * 2, 6]>>
}
