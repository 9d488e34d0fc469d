// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-form-kernels --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
shapejit.symbol @w {id = 2, min = 1, max = 64}

!x = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!z = tensor<?x?x8xf32, #shapejit.shape<[s0, s2 * 2, 8]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x?x6xf32, #shapejit.shape<[s0, (s1 + 1) floordiv 2, 6]>>
!v = tensor<?x?x6xf32, #shapejit.shape<[s0, s2, 6]>>

// A convolution is a kernel of its own, whose image has sizes in the kernel's symbols. Its dims
// keep their places, so none collapse. One that pads otherwise is another kernel.

// CHECK: shapejit.kernel @conv0 symbols 2 (%[[X:.*]]: tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %{{.*}}) {
// CHECK-NEXT: shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, 6, 8, 3] image [s1] stride [2] padding [(1, 1)]
// CHECK: shapejit.kernel @conv1 symbols 2
// CHECK-NEXT: shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1 * 2] stride [2] padding [(1, 0)]
// CHECK-NOT: shapejit.kernel
// CHECK-LABEL: func.func @main
// CHECK: shapejit.launch @conv0 affine_map<()[s0, s1] -> (s0, s1)>
// CHECK: shapejit.launch @conv0 affine_map<()[s0, s1] -> (s0, s1)>
// CHECK: shapejit.launch @conv1 affine_map<()[s0, s1, s2] -> (s0, s2)>
func.func @main(%x: !x, %z: !z, %w: !w, %u: !w) -> (!y, !y, !v) {
  %0 = shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, 6, 8, 3] image [s1] stride [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %1 = shapejit.conv over [s0, 1, (s1 + 1) floordiv 2, 6, 8, 3] image [s1] stride [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%u at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !y
  %2 = shapejit.conv over [s0, 1, s2, 6, 8, 3] image [s2 * 2] stride [2] padding [(1, 0)]
      input(%z at affine_map<(n, g, p, c) -> (n, p, c)> : !z)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !v
  return %0, %1, %2 : !y, !y, !v
}
