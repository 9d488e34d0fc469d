// RUN: shapejit-opt %s --shapejit-widen-bodies | FileCheck %s

// A linear layer in bf16 with gelu: the product, the sum with the bias and each step after it would
// be rounded. Only what is stored is.

shapejit.symbol @tokens {id = 0, min = 1}

// CHECK-LABEL: func.func @linear
func.func @linear(%x: tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>, %w: tensor<8x8xbf16, #shapejit.shape<[8, 8]>>,
                  %b: tensor<8xbf16, #shapejit.shape<[8]>>) -> tensor<?x8xbf16, #shapejit.shape<[s0, 8]>> {
  %y = shapejit.gemm over [s0, 8, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>)
      extras(%b at affine_map<(d0, d1) -> (d1)> : tensor<8xbf16, #shapejit.shape<[8]>>) epilogue {
  // CHECK: ^bb0(%[[SUM:.*]]: f32, %[[BIAS:.*]]: bf16):
  // CHECK-NEXT: %[[WIDE:.*]] = arith.extf %[[BIAS]] : bf16 to f32
  // CHECK-NEXT: %[[SHIFTED:.*]] = arith.addf %[[SUM]], %[[WIDE]] : f32
  // CHECK-NEXT: %[[ERF:.*]] = math.erf %[[SHIFTED]] : f32
  // CHECK-NEXT: %[[PRODUCT:.*]] = arith.mulf %[[SHIFTED]], %[[ERF]] : f32
  // CHECK-NEXT: %[[STORED:.*]] = arith.truncf %[[PRODUCT]] : f32 to bf16
  // CHECK-NEXT: shapejit.yield %[[STORED]] : bf16
  ^bb0(%sum: f32, %bias: bf16):
    %0 = arith.truncf %sum : f32 to bf16
    %1 = arith.extf %0 : bf16 to f32
    %2 = arith.extf %bias : bf16 to f32
    %3 = arith.addf %1, %2 : f32
    %4 = arith.truncf %3 : f32 to bf16
    // Two readers of one rounded value.
    %5 = arith.extf %4 : bf16 to f32
    %6 = arith.extf %4 : bf16 to f32
    %7 = math.erf %5 : f32
    %8 = arith.mulf %6, %7 : f32
    %9 = arith.truncf %8 : f32 to bf16
    shapejit.yield %9 : bf16
  } -> tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>
  return %y : tensor<?x8xbf16, #shapejit.shape<[s0, 8]>>
}
