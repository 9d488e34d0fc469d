// RUN: shapejit-opt %s --split-input-file --shapejit-widen-bodies | FileCheck %s

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

// Single and double precision are rounded where the program says so.

// CHECK-LABEL: func.func @wide_types
func.func @wide_types(%x: tensor<8xf64, #shapejit.shape<[8]>>) -> tensor<8xf64, #shapejit.shape<[8]>> {
  %y = shapejit.loop over [8] ins(%x at affine_map<(d0) -> (d0)> : tensor<8xf64, #shapejit.shape<[8]>>) outs(affine_map<(d0) -> (d0)> : tensor<8xf64, #shapejit.shape<[8]>>) {
  // CHECK: arith.truncf %{{.*}} : f64 to f32
  // CHECK: arith.extf %{{.*}} : f32 to f64
  ^bb0(%v: f64):
    %0 = arith.truncf %v : f64 to f32
    %1 = arith.extf %0 : f32 to f64
    shapejit.yield %1 : f64
  }
  return %y : tensor<8xf64, #shapejit.shape<[8]>>
}

// -----

// A choice, an extremum and a sign commute with rounding; an operand of theirs that was not rounded
// is widened. An integer is not rounded on its way to f32. A sum of 16-bit numbers rounds.

// CHECK-LABEL: func.func @through
func.func @through(%x: tensor<8xf32, #shapejit.shape<[8]>>, %h: tensor<8xbf16, #shapejit.shape<[8]>>,
                   %n: tensor<8xi64, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> {
  %y = shapejit.loop over [8] ins(%x at affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>,
      %h at affine_map<(d0) -> (d0)> : tensor<8xbf16, #shapejit.shape<[8]>>, %n at affine_map<(d0) -> (d0)> : tensor<8xi64, #shapejit.shape<[8]>>)
      outs(affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) {
  // CHECK: ^bb0(%[[V:.*]]: f32, %[[H:.*]]: bf16, %[[N:.*]]: i64):
  // CHECK-NEXT: %[[NEGATED:.*]] = arith.negf %[[V]] : f32
  // CHECK-NEXT: %[[WIDE:.*]] = arith.extf %[[H]] : bf16 to f32
  // CHECK-NEXT: %[[MOST:.*]] = arith.maximumf %[[NEGATED]], %[[WIDE]] : f32
  // CHECK-NEXT: %[[IS:.*]] = arith.cmpi
  // CHECK-NEXT: %[[NUMBER:.*]] = arith.sitofp %[[N]] : i64 to f32
  // CHECK-NEXT: %[[CHOSEN:.*]] = arith.select %[[IS]], %[[MOST]], %[[NUMBER]] : f32
  // CHECK-NEXT: %[[HALF:.*]] = arith.truncf %[[CHOSEN]] : f32 to bf16
  // CHECK-NEXT: %[[SUM:.*]] = arith.addf %[[HALF]], %[[H]] : bf16
  // CHECK-NEXT: %[[LAST:.*]] = arith.extf %[[SUM]] : bf16 to f32
  // CHECK-NEXT: %[[OUT:.*]] = arith.mulf %[[LAST]], %[[CHOSEN]] : f32
  // CHECK-NEXT: shapejit.yield %[[OUT]] : f32
  ^bb0(%v: f32, %half: bf16, %number: i64):
    %0 = arith.truncf %v : f32 to bf16
    %1 = arith.negf %0 : bf16
    %2 = arith.maximumf %1, %half : bf16
    %3 = arith.cmpi eq, %number, %number : i64
    %4 = arith.sitofp %number : i64 to bf16
    %5 = arith.select %3, %2, %4 : bf16
    %6 = arith.extf %5 : bf16 to f32
    %7 = arith.truncf %6 : f32 to bf16
    %8 = arith.addf %7, %half : bf16
    %9 = arith.extf %8 : bf16 to f32
    %10 = arith.mulf %9, %6 : f32
    shapejit.yield %10 : f32
  }
  return %y : tensor<8xf32, #shapejit.shape<[8]>>
}
