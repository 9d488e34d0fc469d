// RUN: shapejit-opt %s --shapejit-multiply-integers --canonicalize --shapejit-verify-shapes --split-input-file --mlir-print-local-scope | FileCheck %s

// Factors of unknown size are multiplied as they are.

// CHECK-LABEL: func.func @unknown
// CHECK-NOT: shapejit.gemm
// CHECK: shapejit.loop over [s0, 8, 16]
// CHECK: outs(add
// CHECK: arith.muli {{.*}} : i64
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
!a = tensor<?x16xi64, #shapejit.shape<[s0, 16]>>
!b = tensor<16x8xi64, #shapejit.shape<[16, 8]>>
!y = tensor<?x8xi64, #shapejit.shape<[s0, 8]>>
module {
  shapejit.symbol @m {id = 0, min = 1, max = 64}
  func.func @unknown(%a: !a, %b: !b) -> !y {
    %y = shapejit.gemm over [s0, 8, 16] lhs(%a at #a : !a) rhs(%b at #b : !b) -> !y
    return %y : !y
  }
}

// -----

// A k that varies, one without a divisor, and an empty one.

// CHECK-LABEL: func.func @depths
// CHECK-NOT: shapejit.gemm
// CHECK: shapejit.loop over [8, 8, s0]
// CHECK: shapejit.loop over [8, 8, 1031]
// CHECK: shapejit.gemm over [8, 8, 0]
#a = affine_map<(m, n, k) -> (m, k)>
!s = tensor<8x?xi8, #shapejit.shape<[8, s0]>>
!p = tensor<8x1031xi8, #shapejit.shape<[8, 1031]>>
!e = tensor<8x0xi8, #shapejit.shape<[8, 0]>>
!y = tensor<8x8xi8, #shapejit.shape<[8, 8]>>
module {
  shapejit.symbol @m {id = 0, min = 1, max = 64}
  func.func @depths(%s: !s, %p: !p, %e: !e) -> (!y, !y, !y) {
    %0 = shapejit.gemm over [8, 8, s0] lhs(%s at #a : !s)
        rhs(%s at affine_map<(m, n, k) -> (n, k)> : !s) -> !y
    %1 = shapejit.gemm over [8, 8, 1031] lhs(%p at #a : !p)
        rhs(%p at affine_map<(m, n, k) -> (n, k)> : !p) -> !y
    %2 = shapejit.gemm over [8, 8, 0] lhs(%e at #a : !e)
        rhs(%e at affine_map<(m, n, k) -> (n, k)> : !e) -> !y
    return %0, %1, %2 : !y, !y, !y
  }
}

// -----

// Unsigned factors have twice the size, so that half as many products are exact.

// CHECK-LABEL: func.func @unsigned
// CHECK: shapejit.gemm over [2, s0, 8, 512]
#i = affine_map<(m, k) -> (m, k)>
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
!s = tensor<?x1024xi8, #shapejit.shape<[s0, 1024]>>
!w = tensor<8x1024xi8, #shapejit.shape<[8, 1024]>>
!a = tensor<?x1024xi32, #shapejit.shape<[s0, 1024]>>
!b = tensor<8x1024xi32, #shapejit.shape<[8, 1024]>>
!y = tensor<?x8xi32, #shapejit.shape<[s0, 8]>>
module {
  shapejit.symbol @m {id = 0, min = 1, max = 64}
  func.func @unsigned(%s: !s, %w: !w) -> !y {
    %a = shapejit.loop over [s0, 1024] ins(%s at #i : !s) outs(#i : !a) {
    ^bb0(%v: i8):
      %x = arith.extui %v : i8 to i32
      shapejit.yield %x : i32
    }
    %b = shapejit.loop over [8, 1024] ins(%w at #i : !w) outs(#i : !b) {
    ^bb0(%v: i8):
      %x = arith.extsi %v : i8 to i32
      shapejit.yield %x : i32
    }
    %y = shapejit.gemm over [s0, 8, 1024] lhs(%a at #a : !a) rhs(%b at #b : !b) -> !y
    return %y : !y
  }
}

// -----

// Products of floating-point numbers, and of what something is fused into, stay.

// CHECK-LABEL: func.func @others
// CHECK: shapejit.gemm over [s0, 8, 16]
// CHECK-NOT: accumulate
// CHECK: return
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
!a = tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
!b = tensor<16x8xf32, #shapejit.shape<[16, 8]>>
!y = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
module {
  shapejit.symbol @m {id = 0, min = 1, max = 64}
  func.func @others(%a: !a, %b: !b) -> !y {
    %y = shapejit.gemm over [s0, 8, 16] lhs(%a at #a : !a) rhs(%b at #b : !b) -> !y
    return %y : !y
  }
}

// -----

// Of several groups each is cut: filters are copied into the order of the pieces, which no fixed
// step leads along. A piece's channels follow those of the one before.

// CHECK-LABEL: func.func @groups
// CHECK: shapejit.loop over [4, 3, 64, 3, 3]
// CHECK-NEXT: ins(%arg1 at affine_map<(d0, d1, d2, d3, d4) -> (d1 + (d0 floordiv 2) * 3, d2 + (d0 mod 2) * 64, d3, d4)>
// CHECK: shapejit.conv over [s0, 4, s1, s2, 3, 64, 3, 3]
// CHECK: weight({{.*}} affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3, d4)>
// CHECK: affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d1, d4)> : tensor<?x?x?x4x3xf32
// CHECK: shapejit.loop over [s0, s1, s2, 6, 2]
// CHECK-NEXT: affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4 + (d3 floordiv 3) * 2, d3 mod 3)>
#x = affine_map<(n, g, p, q, c) -> (n, p, q, g * 128 + c)>
!x = tensor<?x?x?x256xi8, #shapejit.shape<[s0, s1, s2, 256]>>
!w = tensor<6x128x3x3xi8, #shapejit.shape<[6, 128, 3, 3]>>
!y = tensor<?x?x?x6xi8, #shapejit.shape<[s0, s1, s2, 6]>>
module {
  shapejit.symbol @n {id = 0, min = 1, max = 64}
  shapejit.symbol @h {id = 1, min = 1, max = 64}
  shapejit.symbol @w {id = 2, min = 1, max = 64}
  func.func @groups(%x: !x, %w: !w) -> !y {
    %y = shapejit.conv over [s0, 2, s1, s2, 3, 128, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
        input(%x at #x : !x)
        weight(%w at affine_map<(g, f, c, t, u) -> (g * 3 + f, c, t, u)> : !w)
        -> affine_map<(n, g, p, q, f) -> (n, p, q, g * 3 + f)> : !y
    return %y : !y
  }
}
