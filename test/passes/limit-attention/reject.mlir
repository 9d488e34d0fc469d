// RUN: shapejit-opt %s --shapejit-limit-attention --split-input-file | FileCheck %s

// What is no limit, or may not be one, stays a mask.

!q = tensor<1x2x8x32xf32, #shapejit.shape<[1, 2, 8, 32]>>
!m = tensor<8x8xi1, #shapejit.shape<[8, 8]>>
!f = tensor<8x8xf32, #shapejit.shape<[8, 8]>>
!p = tensor<i64, #shapejit.shape<[]>>
!ps = tensor<8xi64, #shapejit.shape<[8]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#m = affine_map<(d0, d1) -> (d0, d1)>
#none = affine_map<(d0, d1) -> ()>
#mask = affine_map<(d0, d1, d2, d3) -> (d2, d3)>

// The first key that is seen, not the last.
// CHECK-LABEL: func.func @from
// CHECK: mask(
// CHECK-NOT: lengths
func.func @from(%q: !q, %p: !p) -> !q {
  %mask = shapejit.loop over [8, 8] ins(%p at #none : !p) outs(#m : !m) {
  ^bb0(%at: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %seen = arith.cmpi sge, %key_i, %at : i64
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [1, 2, 8, 8, 32, 32]
      q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// A limit or something else.
// CHECK-LABEL: func.func @either
// CHECK: mask(
// CHECK-NOT: lengths
func.func @either(%q: !q, %p: !p) -> !q {
  %mask = shapejit.loop over [8, 8] ins(%p at #none : !p) outs(#m : !m) {
  ^bb0(%at: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %seven = arith.constant 7 : i64
    %before = arith.cmpi sle, %key_i, %at : i64
    %last = arith.cmpi eq, %key_i, %seven : i64
    %seen = arith.ori %before, %last : i1
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [1, 2, 8, 8, 32, 32]
      q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// Numbers of keys, not one of queries; an unsigned comparison of a number that may be negative;
// twice the key.
// CHECK-LABEL: func.func @others
// CHECK: mask(
// CHECK-NOT: lengths
func.func @others(%q: !q, %ps: !ps, %p: !p) -> !q {
  %mask = shapejit.loop over [8, 8]
      ins(%ps at affine_map<(d0, d1) -> (d1)> : !ps, %p at #none : !p) outs(#m : !m) {
  ^bb0(%own: i64, %at: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %a = arith.cmpi sle, %key_i, %own : i64
    %b = arith.cmpi ule, %key_i, %at : i64
    %twice = arith.addi %key_i, %key_i : i64
    %c = arith.cmpi sle, %twice, %at : i64
    %ab = arith.andi %a, %b : i1
    %seen = arith.andi %ab, %c : i1
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [1, 2, 8, 8, 32, 32]
      q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}

// Numbers to add: a query without keys gives a mean by them. And a mask that is given.
// CHECK-LABEL: func.func @numbers
// CHECK: mask(
// CHECK: mask(
// CHECK-NOT: lengths
func.func @numbers(%q: !q, %p: !p, %given: !m) -> !q {
  %mask = shapejit.loop over [8, 8] ins(%p at #none : !p) outs(#m : !f) {
  ^bb0(%at: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %zero = arith.constant 0.0 : f32
    %least = arith.constant -3.0e+38 : f32
    %seen = arith.cmpi sle, %key_i, %at : i64
    %added = arith.select %seen, %zero, %least : f32
    shapejit.yield %added : f32
  }
  %0 = shapejit.attention over [1, 2, 8, 8, 32, 32]
      q(%q at #id : !q) k(%q at #id : !q) v(%q at #id : !q) mask(%mask at #mask : !f)
      {scale = 0.5 : f64} -> #id : !q
  %1 = shapejit.attention over [1, 2, 8, 8, 32, 32]
      q(%0 at #id : !q) k(%q at #id : !q) v(%q at #id : !q) mask(%given at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %1 : !q
}

// -----

// Without queries nothing is read at row 0, which need not be there.

!q = tensor<1x2x?x32xf32, #shapejit.shape<[1, 2, s0, 32]>>
!k = tensor<1x2x8x32xf32, #shapejit.shape<[1, 2, 8, 32]>>
!m = tensor<?x8xi1, #shapejit.shape<[s0, 8]>>
!ps = tensor<?xi64, #shapejit.shape<[s0]>>
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#mask = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
shapejit.symbol @new {id = 0, min = 0, max = 8}

// CHECK-LABEL: func.func @empty
// CHECK: mask(
// CHECK-NOT: lengths
func.func @empty(%q: !q, %k: !k, %ps: !ps) -> !q {
  %mask = shapejit.loop over [s0, 8] ins(%ps at affine_map<(d0, d1) -> (0)> : !ps)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !m) {
  ^bb0(%at: i64):
    %key = shapejit.index 1
    %key_i = arith.index_cast %key : index to i64
    %seen = arith.cmpi sle, %key_i, %at : i64
    shapejit.yield %seen : i1
  }
  %0 = shapejit.attention over [1, 2, s0, 8, 32, 32]
      q(%q at #id : !q) k(%k at #id : !k) v(%k at #id : !k) mask(%mask at #mask : !m)
      {scale = 0.5 : f64} -> #id : !q
  return %0 : !q
}
