// RUN: shapejit-opt %s --shapejit-multiply-integers --canonicalize --shapejit-verify-shapes --split-input-file --mlir-print-local-scope | FileCheck %s

// Factors of 8 bits are numbers of bfloat16; sums of 1024 of their products are exact in f32.

// CHECK-LABEL: func.func @product
// CHECK: arith.sitofp {{.*}} : i8 to bf16
// CHECK: arith.sitofp {{.*}} : i8 to bf16
// CHECK: shapejit.gemm over [s0, 8, 1024]
// CHECK: accumulate f32
// CHECK-SAME: tensor<?x8xf32
// CHECK: arith.fptosi {{.*}} : f32 to i32
// CHECK: arith.trunci {{.*}} : i32 to i8
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
!a = tensor<?x1024xi8, #shapejit.shape<[s0, 1024]>>
!b = tensor<1024x8xi8, #shapejit.shape<[1024, 8]>>
!y = tensor<?x8xi8, #shapejit.shape<[s0, 8]>>
module {
  shapejit.symbol @m {id = 0, min = 1, max = 64}
  func.func @product(%a: !a, %b: !b) -> !y {
    %y = shapejit.gemm over [s0, 8, 1024] lhs(%a at #a : !a) rhs(%b at #b : !b) -> !y
    return %y : !y
  }
}

// -----

// Longer sums are pieces, which are added as integers. The factors were widened before.

// CHECK-LABEL: func.func @pieces
// CHECK: shapejit.gemm over [3, s0, 8, 1024]
// CHECK-NEXT: lhs({{.*}} affine_map<(d0, d1, d2, d3) -> (d1, d0 * 1024 + d3)>
// CHECK-NEXT: rhs({{.*}} affine_map<(d0, d1, d2, d3) -> (d0 * 1024 + d3, d2)>
// CHECK: shapejit.loop over [s0, 8, 3]
// CHECK: outs(add affine_map<(d0, d1, d2) -> (d0, d1)> : tensor<?x8xi32
// CHECK: arith.fptosi
#i = affine_map<(m, k) -> (m, k)>
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
!s = tensor<?x3072xi8, #shapejit.shape<[s0, 3072]>>
!w = tensor<3072x8xi8, #shapejit.shape<[3072, 8]>>
!a = tensor<?x3072xi32, #shapejit.shape<[s0, 3072]>>
!b = tensor<3072x8xi32, #shapejit.shape<[3072, 8]>>
!y = tensor<?x8xi32, #shapejit.shape<[s0, 8]>>
module {
  shapejit.symbol @m {id = 0, min = 1, max = 64}
  func.func @pieces(%s: !s, %w: !w) -> !y {
    %a = shapejit.loop over [s0, 3072] ins(%s at #i : !s) outs(#i : !a) {
    ^bb0(%v: i8):
      %x = arith.extsi %v : i8 to i32
      shapejit.yield %x : i32
    }
    %b = shapejit.loop over [3072, 8] ins(%w at #i : !w) outs(#i : !b) {
    ^bb0(%v: i8):
      %x = arith.extsi %v : i8 to i32
      shapejit.yield %x : i32
    }
    %y = shapejit.gemm over [s0, 8, 3072] lhs(%a at #a : !a) rhs(%b at #b : !b) -> !y
    return %y : !y
  }
}

// -----

// Channels are cut into groups: of 9 taps, 113 channels would do, and 64 divide 128.

// CHECK-LABEL: func.func @channels
// CHECK: shapejit.conv over [s0, 2, s1, s2, 8, 64, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
// CHECK: input({{.*}} affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d1 * 64 + d4)>
// CHECK-NEXT: weight({{.*}} affine_map<(d0, d1, d2, d3, d4) -> (d1, d0 * 64 + d2, d3, d4)>
// CHECK: tensor<?x?x?x2x8xf32
// CHECK: outs(add
#x = affine_map<(n, g, p, q, c) -> (n, p, q, c)>
!x = tensor<?x?x?x128xi8, #shapejit.shape<[s0, s1, s2, 128]>>
!w = tensor<8x128x3x3xi8, #shapejit.shape<[8, 128, 3, 3]>>
!y = tensor<?x?x?x8xi8, #shapejit.shape<[s0, s1, s2, 8]>>
module {
  shapejit.symbol @n {id = 0, min = 1, max = 64}
  shapejit.symbol @h {id = 1, min = 1, max = 64}
  shapejit.symbol @w {id = 2, min = 1, max = 64}
  func.func @channels(%x: !x, %w: !w) -> !y {
    %y = shapejit.conv over [s0, 1, s1, s2, 8, 128, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
        input(%x at #x : !x) weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
        -> #x : !y
    return %y : !y
  }
}
