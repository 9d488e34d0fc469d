// RUN: shapejit-opt %s --shapejit-pack-weights='panel=1 products=false' --shapejit-verify-shapes --mlir-print-local-scope | FileCheck %s

// As for a GPU: filters with their channels last, one in a panel; weights of products stay.
shapejit.symbol @s0 {id = 0, min = 0}
// CHECK-LABEL: func.func @main
// CHECK: shapejit.pack %{{.*}} over [1, 16, 3, 8] at affine_map<(d0, d1, d2, d3) -> (d1, d3, d2)> {dim = 1 : i64, panel = 1 : i64}
// CHECK-SAME: -> tensor<1x16x3x8x1xbf16
// CHECK: shapejit.conv
// CHECK: weight(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0, d1, d3, d2, 0)>
// CHECK-NOT: shapejit.pack
func.func @main(%x: tensor<?x8x8xbf16, #shapejit.shape<[s0, 8, 8]>>, %w: tensor<16x8x3xbf16, #shapejit.shape<[16, 8, 3]>> {shapejit.kind = "weight"}, %v: tensor<16x16xbf16, #shapejit.shape<[16, 16]>> {shapejit.kind = "weight"}) -> tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>> {
  %y = shapejit.conv over [s0, 1, 8, 16, 8, 3] image [8] padding [(1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x8x8xbf16, #shapejit.shape<[s0, 8, 8]>>)
    weight(%w at affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)> : tensor<16x8x3xbf16, #shapejit.shape<[16, 8, 3]>>)
    -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>>
  %z = shapejit.gemm over [s0, 8, 16, 16]
    lhs(%y at affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)> : tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>>)
    rhs(%v at affine_map<(d0, d1, d2, d3) -> (d2, d3)> : tensor<16x16xbf16, #shapejit.shape<[16, 16]>>)
    -> tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>>
  return %z : tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>>
}

// A depthwise one has its channels last, too.
// CHECK-LABEL: func.func @depthwise
// CHECK: shapejit.pack %{{.*}} over [3, 16] at affine_map<(d0, d1) -> (d1, 0, d0)> {dim = 1 : i64, panel = 1 : i64}
// CHECK-SAME: -> tensor<3x16x1xbf16
func.func @depthwise(%x: tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>>, %w: tensor<16x1x3xbf16, #shapejit.shape<[16, 1, 3]>> {shapejit.kind = "weight"}) -> tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>> {
  %y = shapejit.conv over [s0, 16, 8, 1, 1, 3] image [8] padding [(1, 1)]
    input(%x at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1)> : tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>>)
    weight(%w at affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)> : tensor<16x1x3xbf16, #shapejit.shape<[16, 1, 3]>>)
    -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d1)> : tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>>
  return %y : tensor<?x8x16xbf16, #shapejit.shape<[s0, 8, 16]>>
}
