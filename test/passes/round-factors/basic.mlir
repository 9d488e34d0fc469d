// RUN: shapejit-opt %s --shapejit-round-factors=products=true | FileCheck %s --check-prefixes=BOTH,PRODUCTS
// RUN: shapejit-opt %s --shapejit-round-factors=convolutions=true | FileCheck %s --check-prefixes=BOTH,CONVS
// RUN: shapejit-opt %s --shapejit-round-factors | FileCheck %s --check-prefixes=BOTH,NONE
// RUN: shapejit-opt %s --shapejit-round-factors=convolutions=true --shapejit-canonicalize-shapes | FileCheck %s --check-prefix=LATER

// Products and convolutions are told apart, also a convolution of one tap, which is a product later.
// Products of other types have nothing to be rounded.

// BOTH-LABEL: func.func @network
// NONE-NOT: shapejit.factors
// PRODUCTS: shapejit.conv
// PRODUCTS-NOT: shapejit.factors
// PRODUCTS: shapejit.gemm
// PRODUCTS: {{(rhs|weight)}}({{.*}}) {shapejit.factors = tf32}
// PRODUCTS: shapejit.gemm
// PRODUCTS-NOT: shapejit.factors
// CONVS: shapejit.conv
// CONVS: {{(rhs|weight)}}({{.*}}) {shapejit.factors = tf32}
// CONVS: shapejit.gemm
// CONVS-NOT: shapejit.factors
// BOTH: return

// LATER-LABEL: func.func @network
// LATER-NOT: shapejit.conv
// LATER: shapejit.gemm
// LATER: {{(rhs|weight)}}({{.*}}) {shapejit.factors = tf32}
// LATER: shapejit.gemm
// LATER-NOT: shapejit.factors
#x = affine_map<(n, g, p, q, c) -> (n, p, q, c)>
!x = tensor<?x?x?x32xf32, #shapejit.shape<[s0, s1, s2, 32]>>
!w = tensor<64x32x1x1xf32, #shapejit.shape<[64, 32, 1, 1]>>
!y = tensor<?x?x?x64xf32, #shapejit.shape<[s0, s1, s2, 64]>>
!v = tensor<8x64xf32, #shapejit.shape<[8, 64]>>
!z = tensor<?x?x?x8xf32, #shapejit.shape<[s0, s1, s2, 8]>>
!h = tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
!u = tensor<8x64xbf16, #shapejit.shape<[8, 64]>>
!k = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
func.func @network(%x: !x, %w: !w, %v: !v, %h: !h, %u: !u) -> (!z, !k) {
  %y = shapejit.conv over [s0, 1, s1, s2, 64, 32, 1, 1] image [s1, s2]
      input(%x at #x : !x)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !w)
      -> #x : !y
  %z = shapejit.gemm over [s0, s1, s2, 8, 64]
      lhs(%y at affine_map<(n, p, q, f, c) -> (n, p, q, c)> : !y)
      rhs(%v at affine_map<(n, p, q, f, c) -> (f, c)> : !v)
      -> !z
  %k = shapejit.gemm over [s0, 8, 64]
      lhs(%h at affine_map<(n, f, c) -> (n, c)> : !h)
      rhs(%u at affine_map<(n, f, c) -> (f, c)> : !u)
      -> !k
  return %z, %k : !z, !k
}
