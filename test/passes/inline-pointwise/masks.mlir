// RUN: shapejit-opt %s --shapejit-inline-pointwise --canonicalize --mlir-print-local-scope --split-input-file | FileCheck %s

// A mask of ones, as models make that are called without one: positions are compared with sizes.

!x = tensor<?x4x?x32xf32, #shapejit.shape<[s0, 4, s1, 32]>>
!m = tensor<?x?xi1, #shapejit.shape<[s0, s1]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0, d1) -> (d0, d1)>
#keys = affine_map<(d0, d1, d2, d3) -> (d0, d3)>
shapejit.symbol @batch {id = 0, min = 1, max = 8}
shapejit.symbol @tokens {id = 1, min = 1, max = 64}

// CHECK-LABEL: func.func @ones
// CHECK-NEXT: shapejit.attention
// CHECK-NOT: mask
// CHECK: {scale = 5.000000e-01 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @ones(%x: !x) -> !x {
  %0 = shapejit.loop over [s0, s1] outs(#m : !m) {
    %i = shapejit.index 1
    %n = shapejit.size affine_map<()[s0, s1] -> (s1)>
    %b = arith.cmpi slt, %i, %n : index
    shapejit.yield %b : i1
  }
  %1 = shapejit.attention over [s0, 4, s1, s1, 32, 32] q(%x at #id : !x) k(%x at #id : !x) v(%x at #id : !x)
      mask(%0 at #keys : !m) {scale = 0.5 : f64} -> #id : !x
  return %1 : !x
}

// -----

// Zeros that would be added. The loop stays for its other reader.

!x = tensor<?x4x8x32xf32, #shapejit.shape<[s0, 4, 8, 32]>>
!m = tensor<8xf32, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0) -> (d0)>
#keys = affine_map<(d0, d1, d2, d3) -> (d3)>
shapejit.symbol @batch {id = 0, min = 1, max = 8}

// CHECK-LABEL: func.func @zeros
// CHECK: shapejit.loop over [8]
// CHECK: shapejit.attention
// CHECK-NOT: mask
// CHECK: {causal = affine_map<() -> (0)>, scale
func.func @zeros(%x: !x) -> (!x, !m) {
  %0 = shapejit.loop over [8] outs(#m : !m) {
    %z = arith.constant -0.0 : f32
    shapejit.yield %z : f32
  }
  %1 = shapejit.attention over [s0, 4, 8, 8, 32, 32] q(%x at #id : !x) k(%x at #id : !x) v(%x at #id : !x)
      mask(%0 at #keys : !m) {scale = 0.5 : f64, causal = affine_map<() -> (0)>} -> #id : !x
  return %1, %0 : !x, !m
}

// -----

// Masks that do something: one that keeps nothing, one that is computed, one that is given.

!x = tensor<?x4x8x32xf32, #shapejit.shape<[s0, 4, 8, 32]>>
!m = tensor<8xi1, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0) -> (d0)>
#keys = affine_map<(d0, d1, d2, d3) -> (d3)>
shapejit.symbol @batch {id = 0, min = 1, max = 8}

// CHECK-LABEL: func.func @kept
// CHECK-COUNT-3: mask(
func.func @kept(%x: !x, %given: !m) -> (!x, !x, !x) {
  %0 = shapejit.loop over [8] outs(#m : !m) {
    %z = arith.constant false
    shapejit.yield %z : i1
  }
  %1 = shapejit.attention over [s0, 4, 8, 8, 32, 32] q(%x at #id : !x) k(%x at #id : !x) v(%x at #id : !x)
      mask(%0 at #keys : !m) {scale = 0.5 : f64} -> #id : !x
  %2 = shapejit.loop over [8] outs(#m : !m) {
    %i = shapejit.index 0
    %c = arith.constant 5 : index
    %b = arith.cmpi slt, %i, %c : index
    shapejit.yield %b : i1
  }
  %3 = shapejit.attention over [s0, 4, 8, 8, 32, 32] q(%x at #id : !x) k(%x at #id : !x) v(%x at #id : !x)
      mask(%2 at #keys : !m) {scale = 0.5 : f64} -> #id : !x
  %4 = shapejit.attention over [s0, 4, 8, 8, 32, 32] q(%x at #id : !x) k(%x at #id : !x) v(%x at #id : !x)
      mask(%given at #keys : !m) {scale = 0.5 : f64} -> #id : !x
  return %1, %3, %4 : !x, !x, !x
}
