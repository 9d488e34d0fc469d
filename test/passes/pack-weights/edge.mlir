// RUN: shapejit-opt %s --split-input-file --shapejit-pack-weights=panel=16 --mlir-print-local-scope | FileCheck %s

#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#nk = affine_map<(d0, d1, d2) -> (d1, d2)>

shapejit.symbol @n {id = 0, min = 1, max = 64}

// Two products with the same weight share its packed copy; both weights of a gated pair are packed.

// CHECK-LABEL: func.func @shared_and_paired
// CHECK-SAME: %[[W:[a-z0-9]*]]: tensor<16x8xf32{{[^%]*}}%[[V:[a-z0-9]*]]:
func.func @shared_and_paired(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %w: tensor<16x8xf32, #shapejit.shape<[16, 8]>> {shapejit.kind = "weight"}, %v: tensor<16x8xf32, #shapejit.shape<[16, 8]>> {shapejit.kind = "weight"}) -> (tensor<?x16xf32, #shapejit.shape<[s0, 16]>>, tensor<?x16xf32, #shapejit.shape<[s0, 16]>>) {
  // CHECK: %[[PW:.*]] = shapejit.pack %[[W]]
  // CHECK: shapejit.gemm
  // CHECK: rhs(%[[PW]] at
  %0 = shapejit.gemm over [s0, 16, 8] lhs(%x at #lhs : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) rhs(%w at #nk : tensor<16x8xf32, #shapejit.shape<[16, 8]>>) -> tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
  // CHECK: %[[PV:.*]] = shapejit.pack %[[V]]
  // CHECK: shapejit.gemm
  // CHECK: rhs(%[[PW]] at {{.*}}, %[[PV]] at
  // CHECK-NOT: shapejit.pack
  %1 = shapejit.gemm over [s0, 16, 8] lhs(%x at #lhs : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) rhs(%w at #nk : tensor<16x8xf32, #shapejit.shape<[16, 8]>>, %v at #nk : tensor<16x8xf32, #shapejit.shape<[16, 8]>>) epilogue {
  ^bb0(%a: f32, %b: f32):
    %2 = arith.mulf %a, %b : f32
    shapejit.yield %2 : f32
  } -> tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
  return %0, %1 : tensor<?x16xf32, #shapejit.shape<[s0, 16]>>, tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
}

// -----

#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#nk = affine_map<(d0, d1, d2) -> (d1, d2)>

shapejit.symbol @n {id = 0, min = 1, max = 64}

// An input is not a weight: its values change from call to call.

// CHECK-LABEL: func.func @input
// CHECK-NOT: shapejit.pack
func.func @input(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %w: tensor<16x8xf32, #shapejit.shape<[16, 8]>> {shapejit.kind = "input"}) -> tensor<?x16xf32, #shapejit.shape<[s0, 16]>> {
  %0 = shapejit.gemm over [s0, 16, 8] lhs(%x at #lhs : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) rhs(%w at #nk : tensor<16x8xf32, #shapejit.shape<[16, 8]>>) -> tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
  return %0 : tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
}

// -----

#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rows = affine_map<(d0, d1, d2) -> (d1 + 4, d2)>

shapejit.symbol @n {id = 0, min = 1, max = 64}

// Part of a weight is read: a packed copy of all of it would be read at other places.

// CHECK-LABEL: func.func @slice
// CHECK-NOT: shapejit.pack
func.func @slice(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %w: tensor<16x8xf32, #shapejit.shape<[16, 8]>> {shapejit.kind = "weight"}) -> tensor<?x12xf32, #shapejit.shape<[s0, 12]>> {
  %0 = shapejit.gemm over [s0, 12, 8] lhs(%x at #lhs : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) rhs(%w at #rows : tensor<16x8xf32, #shapejit.shape<[16, 8]>>) -> tensor<?x12xf32, #shapejit.shape<[s0, 12]>>
  return %0 : tensor<?x12xf32, #shapejit.shape<[s0, 12]>>
}

// -----

#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#first = affine_map<(d0, d1, d2) -> (d1, d2)>

shapejit.symbol @n {id = 0, min = 1, max = 64}

// The first rows of a weight through a plain map: still only a part of it.

// CHECK-LABEL: func.func @first_rows
// CHECK-NOT: shapejit.pack
func.func @first_rows(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %w: tensor<16x8xf32, #shapejit.shape<[16, 8]>> {shapejit.kind = "weight"}) -> tensor<?x12xf32, #shapejit.shape<[s0, 12]>> {
  %0 = shapejit.gemm over [s0, 12, 8] lhs(%x at #lhs : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) rhs(%w at #first : tensor<16x8xf32, #shapejit.shape<[16, 8]>>) -> tensor<?x12xf32, #shapejit.shape<[s0, 12]>>
  return %0 : tensor<?x12xf32, #shapejit.shape<[s0, 12]>>
}

// -----

shapejit.symbol @h {id = 0, min = 1, max = 64}
shapejit.symbol @w {id = 1, min = 1, max = 64}

// A batch of weights, read by some of the batch dims.

// CHECK-LABEL: func.func @batch
// CHECK: %[[P:.*]] = shapejit.pack %{{.*}} over [2, 20, 8] at {{.*}} {dim = 1 : i64, panel = 16 : i64} : {{.*}} -> tensor<2x2x8x16xf32,
// CHECK: rhs(%[[P]] at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3 floordiv 16, d4, d3 mod 16)> :
func.func @batch(%x: tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>, %w: tensor<2x20x8xf32, #shapejit.shape<[2, 20, 8]>> {shapejit.kind = "weight"}) -> tensor<?x2x?x20xf32, #shapejit.shape<[s0, 2, s1, 20]>> {
  %0 = shapejit.gemm over [s0, 2, s1, 20, 8]
      lhs(%x at affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d4)> : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>)
      rhs(%w at affine_map<(d0, d1, d2, d3, d4) -> (d1, d3, d4)> : tensor<2x20x8xf32, #shapejit.shape<[2, 20, 8]>>)
      -> tensor<?x2x?x20xf32, #shapejit.shape<[s0, 2, s1, 20]>>
  return %0 : tensor<?x2x?x20xf32, #shapejit.shape<[s0, 2, s1, 20]>>
}
