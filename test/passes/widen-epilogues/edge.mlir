// RUN: shapejit-opt %s --split-input-file --shapejit-widen-epilogues | FileCheck %s

// A rounded value that something else reads stays for it; a chain of roundings goes in one go.

// CHECK-LABEL: func.func @other_readers
func.func @other_readers(%x: tensor<8x8xf16, #shapejit.shape<[8, 8]>>) -> tensor<8x8xf16, #shapejit.shape<[8, 8]>> {
  %y = shapejit.gemm over [8, 8, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<8x8xf16, #shapejit.shape<[8, 8]>>)
      rhs(%x at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xf16, #shapejit.shape<[8, 8]>>) epilogue {
  // CHECK: ^bb0(%[[SUM:.*]]: f32):
  // CHECK-NEXT: %[[HALF:.*]] = arith.truncf %[[SUM]] : f32 to f16
  // CHECK-NEXT: %[[ABOVE:.*]] = arith.cmpf ogt, %[[SUM]], %[[SUM]] : f32
  // CHECK-NEXT: %[[CHOSEN:.*]] = arith.select %[[ABOVE]], %[[HALF]], %[[HALF]] : f16
  // CHECK-NEXT: shapejit.yield %[[CHOSEN]] : f16
  ^bb0(%sum: f32):
    %0 = arith.truncf %sum : f32 to f16
    %1 = arith.extf %0 : f16 to f32
    %2 = arith.truncf %1 : f32 to f16
    %3 = arith.extf %2 : f16 to f32
    %4 = arith.cmpf ogt, %1, %3 : f32
    %5 = arith.select %4, %0, %0 : f16
    shapejit.yield %5 : f16
  } -> tensor<8x8xf16, #shapejit.shape<[8, 8]>>
  return %y : tensor<8x8xf16, #shapejit.shape<[8, 8]>>
}

// -----

// A type between that is not the one before: rounding to bf16 and widening to f64 is left alone.

// CHECK-LABEL: func.func @other_types
func.func @other_types(%x: tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<8x8xf64, #shapejit.shape<[8, 8]>> {
  %y = shapejit.gemm over [8, 8, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>)
      rhs(%x at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) epilogue {
  // CHECK: %[[HALF:.*]] = arith.truncf %{{.*}} : f32 to bf16
  // CHECK: arith.extf %[[HALF]] : bf16 to f64
  ^bb0(%sum: f32):
    %0 = arith.truncf %sum : f32 to bf16
    %1 = arith.extf %0 : bf16 to f64
    shapejit.yield %1 : f64
  } -> tensor<8x8xf64, #shapejit.shape<[8, 8]>>
  return %y : tensor<8x8xf64, #shapejit.shape<[8, 8]>>
}

// -----

// Loops round as PyTorch does.

// CHECK-LABEL: func.func @loop
func.func @loop(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> {
  %y = shapejit.loop over [8] ins(%x at affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) outs(affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) {
  // CHECK: arith.truncf
  // CHECK: arith.extf
  ^bb0(%v: f32):
    %0 = arith.truncf %v : f32 to bf16
    %1 = arith.extf %0 : bf16 to f32
    shapejit.yield %1 : f32
  }
  return %y : tensor<8xf32, #shapejit.shape<[8]>>
}
