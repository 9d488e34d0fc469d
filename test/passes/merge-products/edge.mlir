// RUN: shapejit-opt %s --split-input-file --shapejit-merge-products=max-bytes=1024 | FileCheck %s

// Layers that share their weights share the joined ones. What all extras have in common, a scale of
// each row, stays one operand.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
!r = tensor<?xf32, #shapejit.shape<[s0]>>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>

shapejit.symbol @n {id = 0, min = 0, max = 64}

// CHECK-LABEL: func.func @tied_layers
func.func @tied_layers(%x: !x, %r: !r, %w: !w {shapejit.kind = "weight"}, %v: !w {shapejit.kind = "weight"}) -> !x {
  // CHECK: %[[JOINED:.*]] = shapejit.join
  // CHECK-NOT: shapejit.join
  // CHECK: shapejit.gemm over [s0, 16, 8]
  // CHECK: rhs(%[[JOINED]] at
  // CHECK-NEXT: extras(%{{.*}} at #{{.*}} : tensor<?xf32
  %a = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) extras(%r at #row : !r) epilogue {
  ^bb0(%sum: f32, %scale: f32):
    %0 = arith.mulf %sum, %scale : f32
    shapejit.yield %0 : f32
  } -> !x
  %b = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%v at #rhs : !w) extras(%r at #row : !r) epilogue {
  ^bb0(%sum: f32, %scale: f32):
    %0 = arith.mulf %sum, %scale : f32
    shapejit.yield %0 : f32
  } -> !x
  // CHECK: %[[NEXT:.*]] = shapejit.loop
  %c = shapejit.loop over [s0, 8] ins(%a at #id : !x, %b at #id : !x) outs(#id : !x) {
  ^bb0(%p: f32, %q: f32):
    %0 = arith.mulf %p, %q : f32
    shapejit.yield %0 : f32
  }
  // CHECK: shapejit.gemm over [s0, 16, 8]
  // CHECK-NEXT: lhs(%[[NEXT]] at
  // CHECK-NEXT: rhs(%[[JOINED]] at
  %d = shapejit.gemm over [s0, 8, 8] lhs(%c at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  %e = shapejit.gemm over [s0, 8, 8] lhs(%c at #lhs : !x) rhs(%v at #rhs : !w) -> !x
  %f = shapejit.loop over [s0, 8] ins(%d at #id : !x, %e at #id : !x) outs(#id : !x) {
  ^bb0(%p: f32, %q: f32):
    %0 = arith.addf %p, %q : f32
    shapejit.yield %0 : f32
  }
  return %f : !x
}

// -----

// The bound of 1024 bytes allows four weights of 256: five products become one of four and one.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>
#id = affine_map<(d0, d1) -> (d0, d1)>

shapejit.symbol @n {id = 0, min = 1, max = 64}

// CHECK-LABEL: func.func @bound
func.func @bound(%x: !x, %w0: !w {shapejit.kind = "weight"}, %w1: !w {shapejit.kind = "weight"}, %w2: !w {shapejit.kind = "weight"},
                 %w3: !w {shapejit.kind = "weight"}, %w4: !w {shapejit.kind = "weight"}) -> !x {
  // CHECK: shapejit.join %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} along 0
  // CHECK: shapejit.gemm over [s0, 32, 8]
  // CHECK: shapejit.gemm over [s0, 8, 8]
  // CHECK-NOT: shapejit.gemm
  %0 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w0 at #rhs : !w) -> !x
  %1 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w1 at #rhs : !w) -> !x
  %2 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w2 at #rhs : !w) -> !x
  %3 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w3 at #rhs : !w) -> !x
  %4 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w4 at #rhs : !w) -> !x
  %5 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %1 at #id : !x, %2 at #id : !x, %3 at #id : !x, %4 at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32, %c: f32, %d: f32, %e: f32):
    %6 = arith.addf %a, %b : f32
    %7 = arith.addf %6, %c : f32
    %8 = arith.addf %7, %d : f32
    %9 = arith.addf %8, %e : f32
    shapejit.yield %9 : f32
  }
  return %5 : !x
}

// -----

// What is not merged, in pairs: another lhs, another epilogue, a weight that is an input, a bias that
// is none, a part of a weight, rows of 24 bytes, a result of the function, one that only a copy could slice.

!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!w = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
!b = tensor<8xf32, #shapejit.shape<[8]>>
!u = tensor<6x8xf32, #shapejit.shape<[6, 8]>>
!y = tensor<?x6xf32, #shapejit.shape<[s0, 6]>>
!h = tensor<?x4x2xf32, #shapejit.shape<[s0, 4, 2]>>
!f = tensor<?xf32, #shapejit.shape<[s0 * 8]>>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>
#id = affine_map<(d0, d1) -> (d0, d1)>
#n = affine_map<(d0, d1) -> (d1)>

shapejit.symbol @n {id = 0, min = 1, max = 64}

// CHECK-LABEL: func.func @apart
// CHECK-NOT: shapejit.join
func.func @apart(%x: !x, %x2: !x, %given: !w, %bias: !b, %w: !w {shapejit.kind = "weight"}, %v: !w {shapejit.kind = "weight"},
                 %wide: tensor<16x8xf32, #shapejit.shape<[16, 8]>> {shapejit.kind = "weight"},
                 %s: !u {shapejit.kind = "weight"}, %t: !u {shapejit.kind = "weight"}) -> (!x, !y, !x, !f) {
  %0 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  %1 = shapejit.gemm over [s0, 8, 8] lhs(%x2 at #lhs : !x) rhs(%v at #rhs : !w) -> !x
  %2 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%v at #rhs : !w) epilogue {
  ^bb0(%sum: f32):
    %a = math.exp %sum : f32
    shapejit.yield %a : f32
  } -> !x
  %3 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%given at #rhs : !w) -> !x
  %4 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%v at #rhs : !w) extras(%bias at #n : !b) epilogue {
  ^bb0(%sum: f32, %c: f32):
    %a = arith.addf %sum, %c : f32
    shapejit.yield %a : f32
  } -> !x
  %5 = shapejit.gemm over [s0, 8, 8] lhs(%x at #lhs : !x) rhs(%wide at affine_map<(d0, d1, d2) -> (d1 + 8, d2)> : tensor<16x8xf32, #shapejit.shape<[16, 8]>>) -> !x
  %6 = shapejit.gemm over [s0, 6, 8] lhs(%x at #lhs : !x) rhs(%s at #rhs : !u) -> !y
  %7 = shapejit.gemm over [s0, 6, 8] lhs(%x at #lhs : !x) rhs(%t at #rhs : !u) -> !y
  %8 = shapejit.loop over [s0, 6] ins(%6 at #id : !y, %7 at #id : !y) outs(#id : !y) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.addf %a, %b : f32
    shapejit.yield %c : f32
  }
  %9 = shapejit.gemm over [s0, 8, 8] lhs(%x2 at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  %10 = shapejit.view %1 at affine_map<(d0) -> (d0 floordiv 8, d0 mod 8)> : !x -> !f
  %11 = shapejit.loop over [s0, 8] ins(%0 at #id : !x, %2 at #id : !x, %3 at #id : !x, %4 at #id : !x, %5 at #id : !x) outs(#id : !x) {
  ^bb0(%a: f32, %b: f32, %c: f32, %d: f32, %e: f32):
    %12 = arith.addf %a, %b : f32
    %13 = arith.addf %c, %d : f32
    %14 = arith.addf %12, %13 : f32
    %15 = arith.addf %14, %e : f32
    shapejit.yield %15 : f32
  }
  return %11, %8, %9, %10 : !x, !y, !x, !f
}
