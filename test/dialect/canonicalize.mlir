// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --canonicalize --mlir-print-local-scope --split-input-file | FileCheck %s

// A view of a view is one view; symbols mean the same in both maps.

!rows = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!flat = tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
!part = tensor<?x4xf32, #shapejit.shape<[s0 * s1, 4]>>
// CHECK-LABEL: func.func @view_of_view
// CHECK-SAME: (%[[X:.*]]: tensor<?x?x8xf32,
// CHECK-NEXT: %[[V:.*]] = shapejit.view %[[X]] at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1 + 4)> : tensor<?x?x8xf32, {{.*}}> -> tensor<?x4xf32, {{.*}}>
// CHECK-NEXT: return %[[V]]
func.func @view_of_view(%x: !rows) -> !part {
  %0 = shapejit.view %x at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)> : !rows -> !flat
  %1 = shapejit.view %0 at affine_map<(d0, d1) -> (d0, d1 + 4)> : !flat -> !part
  return %1 : !part
}

// -----

// Quotients of quotients are merged, so that what there and back cancels does.

!flat = tensor<96000x8xf32, #shapejit.shape<[96000, 8]>>
!deep = tensor<3x160x200x8xf32, #shapejit.shape<[3, 160, 200, 8]>>
// CHECK-LABEL: func.func @there_and_back
// CHECK-SAME: (%[[X:.*]]: tensor<96000x8xf32
// CHECK-NEXT: return %[[X]]
func.func @there_and_back(%x: !flat) -> !flat {
  %0 = shapejit.view %x at affine_map<(d0, d1, d2, d3) -> (d0 * 32000 + d1 * 200 + d2, d3)> : !flat -> !deep
  %1 = shapejit.view %0 at affine_map<(d0, d1) -> (d0 floordiv 32000, (d0 floordiv 200) mod 160, d0 mod 200, d1)> : !deep -> !flat
  return %1 : !flat
}

// -----

// Views that undo each other leave nothing; an identity between different types stays.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s1, 8]>>
!t = tensor<8x?xf32, #shapejit.shape<[8, s0]>>
// CHECK-LABEL: func.func @identity_views
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32,
// CHECK-NEXT: %[[Y:.*]] = shapejit.view %[[X]] at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>> -> tensor<?x8xf32, #shapejit.shape<[s1, 8]>>
// CHECK-NEXT: return %[[X]], %[[X]], %[[Y]]
func.func @identity_views(%x: !x) -> (!x, !x, !y) {
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d0, d1)> : !x -> !x
  %1 = shapejit.view %x at affine_map<(d0, d1) -> (d1, d0)> : !x -> !t
  %2 = shapejit.view %1 at affine_map<(d0, d1) -> (d1, d0)> : !t -> !x
  %3 = shapejit.view %x at affine_map<(d0, d1) -> (d0, d1)> : !x -> !y
  return %0, %2, %3 : !x, !x, !y
}

// -----

// Inputs of a loop: what the body does not read is dropped, equal reads are merged.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>
// CHECK-LABEL: func.func @loop_inputs
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32, {{.*}}>, %[[B:.*]]: tensor<8xf32,
// CHECK: shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(%[[X]] at affine_map<(d0, d1) -> (d0, d1)> : {{.*}}, %[[X]] at affine_map<(d0, d1) -> (0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
// CHECK-NEXT: outs(
// CHECK-NEXT: ^bb0(%[[V:.*]]: f32, %[[F:.*]]: f32):
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[V]], %[[V]] : f32
// CHECK-NEXT: %[[R:.*]] = arith.mulf %[[S]], %[[F]] : f32
// CHECK-NEXT: shapejit.yield %[[R]] : f32
func.func @loop_inputs(%x: !x, %b: !b) -> !x {
  %0 = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x, %b at affine_map<(d0, d1) -> (d1)> : !b,
          %x at affine_map<(d0, d1) -> (d0, d1)> : !x, %x at affine_map<(d0, d1) -> (0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32, %unused: f32, %same: f32, %first: f32):
    %s = arith.addf %v, %same : f32
    %r = arith.mulf %s, %first : f32
    shapejit.yield %r : f32
  }
  return %0 : !x
}

// -----

// Results of a loop that nobody reads are dropped, with their kinds and maps.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
// CHECK-LABEL: func.func @loop_results
// CHECK: %[[R:.*]] = shapejit.loop over [s0, 8]
// CHECK-NEXT: ins(
// CHECK-NEXT: outs(max affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
// CHECK-NEXT: ^bb0(%[[V:.*]]: f32):
// CHECK-NEXT: %[[N:.*]] = arith.negf %[[V]] : f32
// CHECK-NEXT: shapejit.yield %[[N]] : f32
// CHECK: return %[[R]]
func.func @loop_results(%x: !x) -> !r {
  %0:3 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x, max affine_map<(d0, d1) -> (d0)> : !r,
           add affine_map<(d0, d1) -> (d0)> : !r) {
  ^bb0(%v: f32):
    %n = arith.negf %v : f32
    %e = math.exp %v : f32
    shapejit.yield %e, %n, %v : f32, f32, f32
  }
  return %0#1 : !r
}

// -----

// A loop whose results are all unread goes altogether.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
// CHECK-LABEL: func.func @dead_loop
// CHECK-NEXT: return
func.func @dead_loop(%x: !x) {
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return
}

// -----

// Extras of a gemm: unread ones are dropped, equal reads merged; operands stay, used or not.

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>
// CHECK-LABEL: func.func @gemm_extras
// CHECK-SAME: %[[B:[a-z0-9]*]]: tensor<8xf32, #shapejit.shape<[8]>>, %{{[a-z0-9]*}}: tensor<8xf32, #shapejit.shape<[8]>>)
// CHECK: shapejit.gemm over [s0, 8, 16]
// CHECK-NEXT: lhs(
// CHECK-NEXT: rhs(
// CHECK-NEXT: extras(%[[B]] at affine_map<(d0, d1) -> (d1)> : tensor<8xf32, #shapejit.shape<[8]>>) epilogue {
// CHECK-NEXT: ^bb0(%[[ACC:.*]]: f32, %[[E:.*]]: f32):
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[E]], %[[E]] : f32
// CHECK-NEXT: shapejit.yield %[[S]] : f32
func.func @gemm_extras(%x: !x, %w: !w, %b: !b, %c: !b) -> !y {
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w)
      extras(%b at affine_map<(d0, d1) -> (d1)> : !b, %c at affine_map<(d0, d1) -> (d1)> : !b,
             %b at affine_map<(d0, d1) -> (d1)> : !b) epilogue {
  ^bb0(%acc: f32, %p: f32, %q: f32, %r: f32):
    %s = arith.addf %p, %r : f32
    shapejit.yield %s : f32
  } -> !y
  return %0 : !y
}

// -----

// Extras of a convolution likewise; the result's map stays last.

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>
!b = tensor<16xf32, #shapejit.shape<[16]>>
// CHECK-LABEL: func.func @conv_extras
// CHECK-SAME: %[[C:[a-z0-9]*]]: tensor<16xf32, #shapejit.shape<[16]>>)
// CHECK: shapejit.conv over
// CHECK-NEXT: input(
// CHECK-NEXT: weight(
// CHECK-NEXT: extras(%[[C]] at affine_map<(d0, d1, d2, d3) -> (d3)> : tensor<16xf32, #shapejit.shape<[16]>>) epilogue {
// CHECK-NEXT: ^bb0(%[[ACC:.*]]: f32, %[[E:.*]]: f32):
// CHECK-NEXT: %[[T:.*]] = arith.constant 4.000000e+00 : f32
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[E]], %[[E]] : f32
// CHECK-NEXT: %[[U:.*]] = arith.addf %[[S]], %[[T]] : f32
// CHECK-NEXT: shapejit.yield %[[U]] : f32
// CHECK-NEXT: } -> affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)> : tensor<?x16x?xf32
func.func @conv_extras(%x: !x, %w: !w, %b: !b, %c: !b) -> !y {
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      extras(%b at affine_map<(n, g, o, f) -> (f)> : !b, %c at affine_map<(n, g, o, f) -> (f)> : !b,
             %c at affine_map<(n, g, o, f) -> (f)> : !b) epilogue {
  ^bb0(%acc: f32, %p: f32, %q: f32, %r: f32):
    %s = arith.addf %q, %r : f32
    %two = arith.constant 2.0 : f32
    %four = arith.addf %two, %two : f32
    %t = arith.addf %s, %four : f32
    shapejit.yield %t : f32
  } -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

// A size that is a number is a constant.

// CHECK-LABEL: func.func @size
// CHECK-DAG: %[[C:.*]] = arith.constant 12 : index
// CHECK-DAG: %[[S:.*]] = shapejit.size affine_map<()[s0] -> (s0)>
// CHECK: return %[[C]], %[[S]]
func.func @size() -> (index, index) {
  %0 = shapejit.size affine_map<()[s0] -> (12)>
  %1 = shapejit.size affine_map<()[s0] -> (s0)>
  return %0, %1 : index, index
}

// -----

// Constants that folding makes stay in bodies, so that bodies can be outlined as they are.

!x = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!w = tensor<8x16xf32, #shapejit.shape<[8, 16]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
// CHECK-LABEL: func.func @constants
// CHECK-NEXT: shapejit.gemm
// CHECK: ^bb0(%{{.*}}: f32):
// CHECK-NEXT: arith.constant 3.000000e+00 : f32
// CHECK: shapejit.loop
// CHECK: ^bb0(%{{.*}}: f32):
// CHECK-NEXT: arith.constant 3.000000e+00 : f32
func.func @constants(%x: !x, %w: !w) -> !y {
  %0 = shapejit.gemm over [s0, 8, 16] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !x)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !w) epilogue {
  ^bb0(%acc: f32):
    %one = arith.constant 1.0 : f32
    %two = arith.constant 2.0 : f32
    %three = arith.addf %one, %two : f32
    %r = arith.mulf %acc, %three : f32
    shapejit.yield %r : f32
  } -> !y
  %1 = shapejit.loop over [s0, 8] ins(%0 at affine_map<(d0, d1) -> (d0, d1)> : !y)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !y) {
  ^bb0(%v: f32):
    %one = arith.constant 1.0 : f32
    %two = arith.constant 2.0 : f32
    %three = arith.addf %one, %two : f32
    %r = arith.mulf %v, %three : f32
    shapejit.yield %r : f32
  }
  return %1 : !y
}

// -----

// In a kernel, too; and a kernel's ops are simplified like those of a function.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
// CHECK-LABEL: shapejit.kernel @kernel symbols 1
// CHECK-NEXT: shapejit.loop over [s0, 8]
// CHECK: arith.constant 8 : index
// CHECK-NOT: shapejit.size
shapejit.kernel @kernel symbols 1 (%x: !x) {
  %0 = shapejit.view %x at affine_map<(d0, d1) -> (d0, d1)> : !x -> !x
  %1 = shapejit.loop over [s0, 8] ins(%0 at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    %i = shapejit.index 1
    %n = shapejit.size affine_map<() -> (8)>
    %c = arith.cmpi slt, %i, %n : index
    %z = arith.negf %v : f32
    %r = arith.select %c, %v, %z : f32
    shapejit.yield %r : f32
  }
  shapejit.yield %1 : !x
}

