// RUN: shapejit-opt %s --shapejit-choose-buckets | FileCheck %s

// Kernels of every family get a dispatch behind them. Those of a product come from the cost model,
// those of loops and attention from their families, for all sizes that launches can bind.

// CHECK: shapejit.kernel @product
// CHECK: shapejit.dispatch @product by #[[ROWS:.*]] [
// CHECK-NEXT: #shapejit.bucket<[1], [{{[0-9]+}}], "small_m_{{[a-z0-9_]+}}", "at {{.*}} us, {{.*}}">
// CHECK: #shapejit.bucket<[{{[0-9]+}}], [6400], "{{[a-z0-9_]+}}", "{{.*}}">
// CHECK-NEXT: ]
// CHECK: shapejit.kernel @norm
// CHECK: shapejit.dispatch @norm by #{{.*}} [
// CHECK-NEXT: #shapejit.bucket<[{{.*}}], [{{.*}}], "loops_{{[a-z0-9_]+}}", "{{.+}}">
// CHECK: shapejit.kernel @attend
// CHECK: shapejit.dispatch @attend by #{{.*}} [
// CHECK-NEXT: #shapejit.bucket<[{{.*}}], [{{.*}}], "{{[a-z0-9_]+}}", "{{.+}}">
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
!x = tensor<?x512xbf16, #shapejit.shape<[s0, 512]>>
!y = tensor<?x512xbf16, #shapejit.shape<[s0 * s1, 512]>>
!s = tensor<?xf32, #shapejit.shape<[s0]>>
!w = tensor<512x512xbf16, #shapejit.shape<[512, 512]>>
shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @tokens {id = 1, min = 1, max = 100}
shapejit.kernel @product symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 512, 512] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  shapejit.yield %0 : !x
}
shapejit.kernel @norm symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0, 512] ins(%x at #id : !x) outs(add #row : !s) {
  ^bb0(%v: bf16):
    %1 = arith.extf %v : bf16 to f32
    %2 = arith.mulf %1, %1 : f32
    shapejit.yield %2 : f32
  }
  %1 = shapejit.loop over [s0, 512] ins(%x at #id : !x, %0 at #row : !s) outs(#id : !x) {
  ^bb0(%v: bf16, %n: f32):
    %2 = arith.extf %v : bf16 to f32
    %3 = math.rsqrt %n : f32
    %4 = arith.mulf %2, %3 : f32
    %5 = arith.truncf %4 : f32 to bf16
    shapejit.yield %5 : bf16
  }
  shapejit.yield %1 : !x
}
shapejit.kernel @attend symbols 2 (%q: !y, %k: !y, %v: !y) {
  %0 = shapejit.attention over [s0, 16, s1, s1, 32, 32]
      q(%q at affine_map<(b, h, m, d)[s0, s1] -> (b * s1 + m, h * 32 + d)> : !y)
      k(%k at affine_map<(b, h, n, d)[s0, s1] -> (b * s1 + n, h * 32 + d)> : !y)
      v(%v at affine_map<(b, h, n, d)[s0, s1] -> (b * s1 + n, h * 32 + d)> : !y)
      {scale = 0.17677669529663689 : f64} -> affine_map<(b, h, m, d)[s0, s1] -> (b * s1 + m, h * 32 + d)> : !y
  shapejit.yield %0 : !y
}
func.func @main(%x: !y, %w: !w) -> !y {
  %0 = shapejit.launch @product affine_map<()[s0, s1] -> (s0 * s1)> (%x, %w) : (!y, !w) -> !y
  %1 = shapejit.launch @norm affine_map<()[s0, s1] -> (s0 * s1)> (%0) : (!y) -> !y
  %2 = shapejit.launch @attend affine_map<()[s0, s1] -> (s0, s1)> (%1, %1, %1) : (!y, !y, !y) -> !y
  return %2 : !y
}
