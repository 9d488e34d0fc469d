// RUN: shapejit-opt %s --split-input-file --shapejit-widen-bodies | FileCheck %s

// A rounded value that something else reads stays for it, a comparison too; a chain of roundings
// goes in one go.

// CHECK-LABEL: func.func @other_readers
func.func @other_readers(%x: tensor<8x8xf16, #shapejit.shape<[8, 8]>>) -> tensor<8x8xf16, #shapejit.shape<[8, 8]>> {
  %y = shapejit.gemm over [8, 8, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<8x8xf16, #shapejit.shape<[8, 8]>>)
      rhs(%x at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xf16, #shapejit.shape<[8, 8]>>) epilogue {
  // CHECK: ^bb0(%[[SUM:.*]]: f32):
  // CHECK-NEXT: %[[HALF:.*]] = arith.truncf %[[SUM]] : f32 to f16
  // CHECK-NEXT: %[[ONCE:.*]] = arith.extf %[[HALF]] : f16 to f32
  // CHECK-NEXT: %[[AGAIN:.*]] = arith.truncf %[[SUM]] : f32 to f16
  // CHECK-NEXT: %[[TWICE:.*]] = arith.extf %[[AGAIN]] : f16 to f32
  // CHECK-NEXT: %[[ABOVE:.*]] = arith.cmpf ogt, %[[ONCE]], %[[TWICE]] : f32
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
  // CHECK-NEXT: %[[SQUARE:.*]] = arith.mulf %[[V]], %[[V]] : f32
  // CHECK-NEXT: %[[NEGATED:.*]] = arith.negf %[[SQUARE]] : f32
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
    %square = arith.mulf %v, %v : f32
    %0 = arith.truncf %square : f32 to bf16
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

// -----

// What a rounding decides sees it: a comparison, the rounding to an integer, the conversion to one.

// CHECK-LABEL: func.func @jumps
func.func @jumps(%x: tensor<8xbf16, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> {
  %y = shapejit.loop over [8] ins(%x at affine_map<(d0) -> (d0)> : tensor<8xbf16, #shapejit.shape<[8]>>) outs(affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) {
  // CHECK: %[[SUM:.*]] = arith.addf
  // CHECK-NEXT: %[[HALF:.*]] = arith.truncf %[[SUM]] : f32 to bf16
  // CHECK-NEXT: %[[ROUNDED:.*]] = arith.extf %[[HALF]] : bf16 to f32
  // CHECK-NEXT: %[[FLOOR:.*]] = math.floor %[[ROUNDED]] : f32
  // CHECK-NEXT: arith.fptosi %[[ROUNDED]] : f32 to i32
  // CHECK: %[[SAME:.*]] = arith.cmpf oeq, %[[ROUNDED]], %[[FLOOR]] : f32
  // CHECK-NEXT: arith.mulf %[[SUM]], %[[SUM]] : f32
  ^bb0(%v: bf16):
    %w = arith.extf %v : bf16 to f32
    %s = arith.addf %w, %w : f32
    %h = arith.truncf %s : f32 to bf16
    %a = arith.extf %h : bf16 to f32
    %f = math.floor %a : f32
    %i = arith.fptosi %a : f32 to i32
    %n = arith.sitofp %i : i32 to f32
    %c = arith.cmpf oeq, %a, %f : f32
    %m = arith.mulf %a, %a : f32
    %r = arith.select %c, %m, %n : f32
    shapejit.yield %r : f32
  }
  return %y : tensor<8xf32, #shapejit.shape<[8]>>
}

// -----

// A tensor of f32 that is read through 16 bits was cast by the program: that is kept, also of what
// an epilogue reads beside the sums.

// CHECK-LABEL: func.func @casts
func.func @casts(%x: tensor<8x8xbf16, #shapejit.shape<[8, 8]>>, %b: tensor<8xf32, #shapejit.shape<[8]>>) -> (tensor<8x8xbf16, #shapejit.shape<[8, 8]>>, tensor<8xf32, #shapejit.shape<[8]>>) {
  %y = shapejit.gemm over [8, 8, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>)
      rhs(%x at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>)
      extras(%b at affine_map<(d0, d1) -> (d1)> : tensor<8xf32, #shapejit.shape<[8]>>) epilogue {
  // CHECK: ^bb0(%[[SUM:.*]]: f32, %[[BIAS:.*]]: f32):
  // CHECK-NEXT: %[[CAST:.*]] = arith.truncf %[[BIAS]] : f32 to bf16
  // CHECK-NEXT: %[[WIDE:.*]] = arith.extf %[[CAST]] : bf16 to f32
  // CHECK-NEXT: arith.addf %[[SUM]], %[[WIDE]] : f32
  ^bb0(%sum: f32, %bias: f32):
    %0 = arith.truncf %sum : f32 to bf16
    %1 = arith.extf %0 : bf16 to f32
    %2 = arith.truncf %bias : f32 to bf16
    %3 = arith.extf %2 : bf16 to f32
    %4 = arith.addf %1, %3 : f32
    %5 = arith.truncf %4 : f32 to bf16
    shapejit.yield %5 : bf16
  } -> tensor<8x8xbf16, #shapejit.shape<[8, 8]>>
  %z = shapejit.loop over [8] ins(%b at affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) outs(affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) {
  // CHECK: ^bb0(%[[V:.*]]: f32):
  // CHECK-NEXT: %[[H:.*]] = arith.truncf %[[V]] : f32 to bf16
  // CHECK-NEXT: %[[W:.*]] = arith.extf %[[H]] : bf16 to f32
  // CHECK-NEXT: shapejit.yield %[[W]] : f32
  ^bb0(%v: f32):
    %h = arith.truncf %v : f32 to bf16
    %w = arith.extf %h : bf16 to f32
    shapejit.yield %w : f32
  }
  return %y, %z : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>, tensor<8xf32, #shapejit.shape<[8]>>
}

// -----

// A sum of 16-bit numbers is imported as one in f32 that is rounded: no cast, also through a view.

// CHECK-LABEL: func.func @sums
func.func @sums(%x: tensor<8x8xbf16, #shapejit.shape<[8, 8]>>) -> tensor<2x4xf32, #shapejit.shape<[2, 4]>> {
  %s = shapejit.loop over [8, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>) outs(add affine_map<(d0, d1) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) {
  ^bb0(%v: bf16):
    %w = arith.extf %v : bf16 to f32
    shapejit.yield %w : f32
  }
  %r = shapejit.view %s at affine_map<(d0, d1) -> (d0 * 4 + d1)> : tensor<8xf32, #shapejit.shape<[8]>> -> tensor<2x4xf32, #shapejit.shape<[2, 4]>>
  %y = shapejit.loop over [2, 4] ins(%r at affine_map<(d0, d1) -> (d0, d1)> : tensor<2x4xf32, #shapejit.shape<[2, 4]>>) outs(affine_map<(d0, d1) -> (d0, d1)> : tensor<2x4xf32, #shapejit.shape<[2, 4]>>) {
  // CHECK: ^bb0(%[[SUM:.*]]: f32):
  // CHECK-NEXT: arith.mulf %[[SUM]], %[[SUM]] : f32
  ^bb0(%v: f32):
    %h = arith.truncf %v : f32 to bf16
    %w = arith.extf %h : bf16 to f32
    %m = arith.mulf %w, %w : f32
    shapejit.yield %m : f32
  }
  return %y : tensor<2x4xf32, #shapejit.shape<[2, 4]>>
}
