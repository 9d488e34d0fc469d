// RUN: shapejit-opt %s --split-input-file --shapejit-pack-weights=panel=32 | FileCheck %s

// The weight of a linear layer, [n, k], becomes panels of 32 columns.

#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#nk = affine_map<(d0, d1, d2) -> (d1, d2)>

// CHECK-DAG: #[[$LHS:.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK-DAG: #[[$PANELS:.*]] = affine_map<(d0, d1, d2) -> (d1 floordiv 32, d2, d1 mod 32)>

shapejit.symbol @n {id = 0, min = 1, max = 64}

// CHECK-LABEL: func.func @linear
// CHECK-SAME: %[[X:.*]]: tensor<?x1536xf32
// CHECK-SAME: %[[W:.*]]: tensor<384x1536xf32
func.func @linear(%x: tensor<?x1536xf32, #shapejit.shape<[s0, 1536]>> {shapejit.kind = "input"}, %w: tensor<384x1536xf32, #shapejit.shape<[384, 1536]>> {shapejit.kind = "weight"}) -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>> {
  // CHECK: %[[P:.*]] = shapejit.pack %[[W]] {dim = 0 : i64, panel = 32 : i64} : tensor<384x1536xf32, #shapejit.shape<[384, 1536]>> -> tensor<12x1536x32xf32, #shapejit.shape<[12, 1536, 32]>>
  // CHECK: shapejit.gemm over [s0, 384, 1536]
  // CHECK: lhs(%[[X]] at #[[$LHS]] :
  // CHECK: rhs(%[[P]] at #[[$PANELS]] : tensor<12x1536x32xf32
  %0 = shapejit.gemm over [s0, 384, 1536] lhs(%x at #lhs : tensor<?x1536xf32, #shapejit.shape<[s0, 1536]>>) rhs(%w at #nk : tensor<384x1536xf32, #shapejit.shape<[384, 1536]>>) -> tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
  return %0 : tensor<?x384xf32, #shapejit.shape<[s0, 384]>>
}

// -----

// A weight stored as [k, n] is packed along its other dim.

#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#kn = affine_map<(d0, d1, d2) -> (d2, d1)>

shapejit.symbol @n {id = 0, min = 1, max = 64}

// CHECK-LABEL: func.func @matmul
func.func @matmul(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>, %w: tensor<8x70xf32, #shapejit.shape<[8, 70]>> {shapejit.kind = "weight"}) -> tensor<?x70xf32, #shapejit.shape<[s0, 70]>> {
  // The last of the three panels is padded.
  // CHECK: shapejit.pack %{{.*}} {dim = 1 : i64, panel = 32 : i64} : {{.*}} -> tensor<3x8x32xf32, #shapejit.shape<[3, 8, 32]>>
  %0 = shapejit.gemm over [s0, 70, 8] lhs(%x at #lhs : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) rhs(%w at #kn : tensor<8x70xf32, #shapejit.shape<[8, 70]>>) -> tensor<?x70xf32, #shapejit.shape<[s0, 70]>>
  return %0 : tensor<?x70xf32, #shapejit.shape<[s0, 70]>>
}
