// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Every op survives its custom form, its generic form and bytecode.

// RUN: shapejit-opt %s | shapejit-opt --mlir-print-local-scope | FileCheck %s
// RUN: shapejit-opt %s --mlir-print-op-generic | shapejit-opt --mlir-print-local-scope | FileCheck %s
// RUN: shapejit-opt %s --emit-bytecode | shapejit-opt --mlir-print-local-scope | FileCheck %s

// CHECK: shapejit.symbol @batch {id = 0, min = 1, max = 64}
shapejit.symbol @batch {id = 0, min = 1, max = 64}
// CHECK: shapejit.symbol @seq {id = 1, min = 0, max = 512, divisor = 8, opt = 128}
shapejit.symbol @seq {max = 512, id = 1, min = 0, divisor = 8, opt = 128}
// CHECK: shapejit.symbol @unbounded {id = 2}
shapejit.symbol @unbounded {id = 2}
// CHECK: shapejit.symbol @same {id = 3, equal_to = 1}
shapejit.symbol @same {id = 3, equal_to = 1}
// CHECK: shapejit.symbol @rest {id = 4, min = 0} = max(s1 - 2, 0)
shapejit.symbol @rest {id = 4, min = 0} = max(s1 - 2, 0)
// CHECK: shapejit.symbol @ratio {id = 5} = ceildiv(s0 * s1, s2 + 1)
shapejit.symbol @ratio {id = 5} = ceildiv(s0 * s1, s2 + 1)
// CHECK: shapejit.constraint affine_set<()[s0, s1] : (s1 - s0 >= 0)>{{$}}
shapejit.constraint affine_set<()[s0, s1] : (s1 - s0 >= 0)>
// CHECK: shapejit.constraint affine_set<()[s0, s1, s2] : (s2 - s1 == 0)> because "the cache covers the keys"
shapejit.constraint affine_set<()[s0, s1, s2] : (s2 - s1 == 0)> because "the cache covers the keys"

!rows = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!flat = tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
!scalars = tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
!weight = tensor<16x8xf32, #shapejit.shape<[16, 8]>>
!packed = tensor<1x8x32xf32, #shapejit.shape<[1, 8, 32]>>
!bias = tensor<16xf32, #shapejit.shape<[16]>>

// CHECK-LABEL: func.func private @shapes
// CHECK-SAME: tensor<?x4x?xbf16, #shapejit.shape<[s0 * 2 + 1, 4, (s1 + 3) floordiv 2]>>
// CHECK-SAME: tensor<f32, #shapejit.shape<[]>>
// CHECK-SAME: tensor<?xi1, #shapejit.shape<[s255]>>
func.func private @shapes(tensor<?x4x?xbf16, #shapejit.shape<[s0 * 2 + 1, 4, (s1 + 3) floordiv 2]>>,
                          tensor<f32, #shapejit.shape<[]>>,
                          tensor<?xi1, #shapejit.shape<[s255]>>)

// CHECK-LABEL: func.func @size
// CHECK: shapejit.size affine_map<()[s0, s1] -> (s0 * s1)>
func.func @size() -> index {
  %0 = shapejit.size affine_map<()[s0, s1] -> (s0 * s1)>
  return %0 : index
}

// CHECK-LABEL: func.func @view
// CHECK: shapejit.view %{{.*}} at affine_map<{{.*}}> : tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>> -> tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>
func.func @view(%x: !rows) -> !flat {
  %0 = shapejit.view %x at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)> : !rows -> !flat
  return %0 : !flat
}

// CHECK-LABEL: func.func @loop
// CHECK: shapejit.loop over [s0, s1, 8]
// CHECK-NEXT: ins(%{{.*}} at affine_map<{{.*}}> : tensor<?x?x8xf32, {{.*}}>, %{{.*}} at affine_map<{{.*}}> : tensor<?x?xf32, {{.*}}>)
// CHECK-NEXT: outs(affine_map<{{.*}}> : tensor<?x?x8xf32, {{.*}}>, add affine_map<{{.*}}> : tensor<?x?xf32, {{.*}}>, max affine_map<{{.*}}> : tensor<?x?xf32, {{.*}}>) {
// CHECK-NEXT: ^bb0(%{{.*}}: f32, %{{.*}}: f32):
// CHECK: shapejit.index 2
// CHECK: shapejit.size affine_map<()[s0, s1] -> (s1)>
// CHECK: tensor.extract
// CHECK: shapejit.yield %{{.*}}, %{{.*}}, %{{.*}} : f32, f32, f32
func.func @loop(%x: !rows, %y: !scalars, %table: !bias) -> (!rows, !scalars, !scalars) {
  %0:3 = shapejit.loop over [s0, s1, 8]
      ins(%x at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !rows,
          %y at affine_map<(d0, d1, d2) -> (d0, d1)> : !scalars)
      outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !rows,
           add affine_map<(d0, d1, d2) -> (d0, d1)> : !scalars,
           max affine_map<(d0, d1, d2) -> (d0, d1)> : !scalars) {
  ^bb0(%a: f32, %b: f32):
    %i = shapejit.index 2
    %n = shapejit.size affine_map<()[s0, s1] -> (s1)>
    %in = arith.cmpi slt, %i, %n : index
    %t = tensor.extract %table[%i] : !bias
    %c = arith.select %in, %t, %b : f32
    shapejit.yield %a, %b, %c : f32, f32, f32
  }
  return %0#0, %0#1, %0#2 : !rows, !scalars, !scalars
}

// A loop without inputs, one over no dims, and attributes that no op defines.

// CHECK-LABEL: func.func @no_inputs
// CHECK: shapejit.loop over [s0, s1]
// CHECK-NEXT: outs(affine_map<{{.*}}> : tensor<?x?xf32, {{.*}}>) {
// CHECK: } {note = "ones"}
// CHECK: shapejit.loop over []
// CHECK-NEXT: ins(%{{.*}} at affine_map<{{.*}}> : tensor<f32, #shapejit.shape<[]>>)
func.func @no_inputs(%x: tensor<f32, #shapejit.shape<[]>>) -> (!scalars, tensor<f32, #shapejit.shape<[]>>) {
  %0 = shapejit.loop over [s0, s1] outs(affine_map<(d0, d1) -> (d0, d1)> : !scalars) {
    %one = arith.constant 1.0 : f32
    shapejit.yield %one : f32
  } {note = "ones"}
  %1 = shapejit.loop over [] ins(%x at affine_map<() -> ()> : tensor<f32, #shapejit.shape<[]>>)
      outs(affine_map<() -> ()> : tensor<f32, #shapejit.shape<[]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0, %1 : !scalars, tensor<f32, #shapejit.shape<[]>>
}

// CHECK-LABEL: func.func @combines
// CHECK: outs(mul affine_map<{{.*}}> : {{.*}}, min affine_map<{{.*}}> : {{.*}}, and affine_map<{{.*}}> : {{.*}}, or affine_map<{{.*}}> : {{.*}}) {
func.func @combines(%x: tensor<?xi32, #shapejit.shape<[s0]>>)
    -> (tensor<i32, #shapejit.shape<[]>>, tensor<i32, #shapejit.shape<[]>>,
        tensor<i32, #shapejit.shape<[]>>, tensor<i32, #shapejit.shape<[]>>) {
  %0:4 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : tensor<?xi32, #shapejit.shape<[s0]>>)
      outs(mul affine_map<(d0) -> ()> : tensor<i32, #shapejit.shape<[]>>,
           min affine_map<(d0) -> ()> : tensor<i32, #shapejit.shape<[]>>,
           and affine_map<(d0) -> ()> : tensor<i32, #shapejit.shape<[]>>,
           or affine_map<(d0) -> ()> : tensor<i32, #shapejit.shape<[]>>) {
  ^bb0(%v: i32):
    shapejit.yield %v, %v, %v, %v : i32, i32, i32, i32
  }
  return %0#0, %0#1, %0#2, %0#3 : tensor<i32, #shapejit.shape<[]>>, tensor<i32, #shapejit.shape<[]>>,
      tensor<i32, #shapejit.shape<[]>>, tensor<i32, #shapejit.shape<[]>>
}

// CHECK-LABEL: func.func @gemm
// CHECK: shapejit.gemm over [s0 * s1, 16, 8]
// CHECK-NEXT: lhs(%{{.*}} at affine_map<{{.*}}> : tensor<?x8xf32, #shapejit.shape<[s0 * s1, 8]>>)
// CHECK-NEXT: rhs(%{{.*}} at affine_map<{{.*}}> : tensor<16x8xf32, #shapejit.shape<[16, 8]>>) -> tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>
// CHECK: shapejit.gemm over [s0 * s1, 16, 8]
// CHECK-NEXT: lhs(
// CHECK-NEXT: rhs(%{{.*}} at affine_map<{{.*}}>, %{{.*}} at affine_map<{{.*}}>)
// CHECK-NEXT: extras(%{{.*}} at affine_map<{{.*}}> : tensor<16xf32, {{.*}}>) accumulate f64 epilogue {
// CHECK-NEXT: ^bb0(%{{.*}}: f64, %{{.*}}: f64, %{{.*}}: f32):
// CHECK: shapejit.yield %{{.*}} : f32
// CHECK-NEXT: } {note = "gated"} -> tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>
func.func @gemm(%x: !flat, %w: !weight, %v: !weight, %b: !bias)
    -> (tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>, tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>) {
  %0 = shapejit.gemm over [s0 * s1, 16, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !flat)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !weight) -> tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>
  %1 = shapejit.gemm over [s0 * s1, 16, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : !flat)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : !weight, %v at affine_map<(d0, d1, d2) -> (d1, d2)> : !weight)
      extras(%b at affine_map<(d0, d1) -> (d1)> : !bias) accumulate f64 epilogue {
  ^bb0(%a: f64, %g: f64, %e: f32):
    %2 = arith.mulf %a, %g : f64
    %3 = arith.truncf %2 : f64 to f32
    %4 = arith.addf %3, %e : f32
    shapejit.yield %4 : f32
  } {note = "gated"} -> tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>
  return %0, %1 : tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>, tensor<?x16xf32, #shapejit.shape<[s0 * s1, 16]>>
}

// CHECK-LABEL: func.func @conv
// CHECK: shapejit.conv over [s0, 1, (s1 - 1) floordiv 2 + 1, s2, 16, 8, 3, 3] image [s1, s2] stride [2, 1] dilation [1, 2] padding [(1, 1), (2, 2)]
// CHECK-NEXT: input(%{{.*}} at affine_map<(d0, d1, d2, d3, d4) -> (d0, d4, d2, d3)> : tensor<?x8x?x?xf32, {{.*}}>)
// CHECK-NEXT: weight(%{{.*}} at affine_map<(d0, d1, d2, d3, d4) -> (d1, d2, d3, d4)> : tensor<16x8x3x3xf32, {{.*}}>)
// CHECK-NEXT: extras(%{{.*}} at affine_map<(d0, d1, d2, d3, d4) -> (d4)> : tensor<16xf32, {{.*}}>) accumulate f64 epilogue {
// CHECK-NEXT: ^bb0(%{{.*}}: f64, %{{.*}}: f32):
// CHECK: shapejit.yield %{{.*}} : f32
// CHECK-NEXT: } {note = "strided"} -> affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d3, d4)> : tensor<?x?x?x16xf32, {{.*}}>
// CHECK: shapejit.conv over [s0, 2, s1 * 3 - 2, 4, 8, 3] image [s1] lhs_dilation [3] padding [(2, -1)]
// CHECK-NEXT: input(
// CHECK-NEXT: weight(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0 * 8 + d2, d1, -d3 + 2)> : {{.*}}) -> affine_map<(d0, d1, d2, d3) -> (d0, d1 * 4 + d3, d2)> : tensor<?x8x?xf32, {{.*}}>
// CHECK: shapejit.conv over [1, 1, 1, 1, 1, 1, 1, 2, 2, 2] image [2, 2, 2]
// CHECK-NEXT: input(
!image = tensor<?x8x?x?xf32, #shapejit.shape<[s0, 8, s1, s2]>>
!filter = tensor<16x8x3x3xf32, #shapejit.shape<[16, 8, 3, 3]>>
!strided = tensor<?x?x?x16xf32, #shapejit.shape<[s0, (s1 - 1) floordiv 2 + 1, s2, 16]>>
!signal = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1]>>
!filter1 = tensor<16x4x3xf32, #shapejit.shape<[16, 4, 3]>>
!transposed = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1 * 3 - 2]>>
!cube = tensor<2x2x2xf32, #shapejit.shape<[2, 2, 2]>>
func.func @conv(%x: !image, %w: !filter, %b: !bias, %y: !signal, %v: !filter1, %c: !cube)
    -> (!strided, !transposed, tensor<f32, #shapejit.shape<[]>>) {
  %0 = shapejit.conv over [s0, 1, (s1 - 1) floordiv 2 + 1, s2, 16, 8, 3, 3] image [s1, s2]
      stride [2, 1] dilation [1, 2] lhs_dilation [1, 1] padding [(1, 1), (2, 2)]
      input(%x at affine_map<(n, g, p, q, c) -> (n, c, p, q)> : !image)
      weight(%w at affine_map<(g, f, c, t, u) -> (f, c, t, u)> : !filter)
      extras(%b at affine_map<(n, g, o, p, f) -> (f)> : !bias) accumulate f64 epilogue {
  ^bb0(%acc: f64, %e: f32):
    %1 = arith.truncf %acc : f64 to f32
    %2 = arith.addf %1, %e : f32
    shapejit.yield %2 : f32
  } {note = "strided"} -> affine_map<(n, g, o, p, f) -> (n, o, p, f)> : !strided
  %3 = shapejit.conv over [s0, 2, s1 * 3 - 2, 4, 8, 3] image [s1] lhs_dilation [3] padding [(2, -1)]
      input(%y at affine_map<(n, g, p, c) -> (n, g * 8 + c, p)> : !signal)
      weight(%v at affine_map<(g, f, c, t) -> (g * 8 + c, f, 2 - t)> : !filter1)
      -> affine_map<(n, g, o, f) -> (n, g * 4 + f, o)> : !transposed
  %4 = shapejit.conv over [1, 1, 1, 1, 1, 1, 1, 2, 2, 2] image [2, 2, 2]
      input(%c at affine_map<(n, g, o, p, q, c) -> (o, p, q)> : !cube)
      weight(%c at affine_map<(g, f, c, t, u, v) -> (t, u, v)> : !cube)
      -> affine_map<(n, g, o, p, q, f) -> ()> : tensor<f32, #shapejit.shape<[]>>
  return %0, %3, %4 : !strided, !transposed, tensor<f32, #shapejit.shape<[]>>
}

// CHECK-LABEL: func.func @attention
// CHECK: shapejit.attention over [s0, 2, s1, s1, 4, 4]
// CHECK-NEXT: q(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 4 + d3)> : tensor<?x?x8xf32, {{.*}}>)
// CHECK-NEXT: k(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 4 + d3)> : {{.*}})
// CHECK-NEXT: v(%{{.*}} at affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 4 + d3)> : {{.*}})
// CHECK-NEXT: {scale = 5.000000e-01 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 4 + d3)> : tensor<?x?x8xf32, {{.*}}>
// CHECK: shapejit.attention over [s0, 2, s1, s1, 4, 4]
// CHECK: mask(%{{.*}} at affine_map<{{.*}}> : tensor<?x?xf32, {{.*}}>)
// CHECK-NEXT: {causal = affine_map<()[s0, s1] -> (s1 - 1)>, scale = 5.000000e-01 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 4 + d3)> : tensor<?x?x8xf32, {{.*}}>
#heads = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 * 4 + d3)>
func.func @attention(%q: !rows, %k: !rows, %v: !rows, %m: !scalars) -> (!rows, !rows) {
  %0 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #heads : !rows) k(%k at #heads : !rows)
      v(%v at #heads : !rows) {scale = 0.5 : f64} -> #heads : !rows
  %1 = shapejit.attention over [s0, 2, s1, s1, 4, 4] q(%q at #heads : !rows) k(%k at #heads : !rows)
      v(%v at #heads : !rows) mask(%m at affine_map<(d0, d1, d2, d3) -> (d0, d3)> : !scalars)
      {scale = 0.5 : f64, causal = affine_map<()[s0, s1] -> (s1 - 1)>} -> #heads : !rows
  return %0, %1 : !rows, !rows
}

// CHECK-LABEL: func.func @pack
// CHECK: shapejit.pack %{{.*}} {dim = 0 : i64, panel = 32 : i64} : tensor<16x8xf32, {{.*}}> -> tensor<1x8x32xf32, {{.*}}>
// CHECK: shapejit.pack %{{.*}} over [2, 8, 3, 3, 8] at affine_map<(d0, d1, d2, d3, d4) -> (d0 * 8 + d1, d4, d2, -d3 + 2)> {dim = 1 : i64, panel = 4 : i64} : tensor<16x8x3x3xf32, {{.*}}> -> tensor<2x2x3x3x8x4xf32, {{.*}}>
!filters = tensor<2x2x3x3x8x4xf32, #shapejit.shape<[2, 2, 3, 3, 8, 4]>>
func.func @pack(%w: !weight, %v: !filter) -> (!packed, !filters) {
  %0 = shapejit.pack %w {dim = 0, panel = 32} : !weight -> !packed
  %1 = shapejit.pack %v over [2, 8, 3, 3, 8] at affine_map<(g, f, t, u, c) -> (g * 8 + f, c, t, 2 - u)>
      {dim = 1, panel = 4} : !filter -> !filters
  return %0, %1 : !packed, !filters
}

// CHECK-LABEL: func.func @join
// CHECK: shapejit.join %{{.*}}, %{{.*}} along 0 : (tensor<16x8xf32, {{.*}}>, tensor<16x8xf32, {{.*}}>) -> tensor<32x8xf32, {{.*}}>
// CHECK: shapejit.join %{{.*}}, %{{.*}}, %{{.*}} along 1 {note = "widths differ"} : {{.*}} -> tensor<16x48xf32, {{.*}}>
!twice = tensor<32x8xf32, #shapejit.shape<[32, 8]>>
!wide = tensor<16x32xf32, #shapejit.shape<[16, 32]>>
!joined = tensor<16x48xf32, #shapejit.shape<[16, 48]>>
func.func @join(%w: !weight, %v: !wide) -> (!twice, !joined) {
  %0 = shapejit.join %w, %w along 0 : (!weight, !weight) -> !twice
  %1 = shapejit.join %w, %v, %w along 1 {note = "widths differ"} : (!weight, !wide, !weight) -> !joined
  return %0, %1 : !twice, !joined
}

// CHECK-LABEL: shapejit.kernel @rows symbols 1 (%{{.*}}: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) attributes {note = "local symbols"} {
// CHECK: shapejit.yield %{{.*}} : tensor<?xf32, #shapejit.shape<[s0]>>
shapejit.kernel @rows symbols 1 (%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) attributes {note = "local symbols"} {
  %0 = shapejit.loop over [s0, 8]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
      outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}

// CHECK-LABEL: shapejit.kernel @nothing_in symbols 0 () {
shapejit.kernel @nothing_in symbols 0 () {
  %0 = shapejit.loop over [4] outs(affine_map<(d0) -> (d0)> : tensor<4xf32, #shapejit.shape<[4]>>) {
    %one = arith.constant 1.0 : f32
    shapejit.yield %one : f32
  }
  shapejit.yield %0 : tensor<4xf32, #shapejit.shape<[4]>>
}

// CHECK-LABEL: func.func @launch
// CHECK: shapejit.launch @rows affine_map<()[s0, s1] -> (s0 * s1)>(%{{.*}}) : (tensor<?x?x8xf32, {{.*}}>) -> tensor<?x?xf32, {{.*}}>
// CHECK: shapejit.launch @nothing_in affine_map<() -> ()>() {buffers = [#shapejit.buffer<arena 3>]} : () -> tensor<4xf32, {{.*}}>
func.func @launch(%x: !rows) -> (!scalars, tensor<4xf32, #shapejit.shape<[4]>>) {
  %0 = shapejit.launch @rows affine_map<()[s0, s1] -> (s0 * s1)> (%x) : (!rows) -> !scalars
  %1 = shapejit.launch @nothing_in affine_map<() -> ()> () {buffers = [#shapejit.buffer<arena 3>]}
      : () -> tensor<4xf32, #shapejit.shape<[4]>>
  return %0, %1 : !scalars, tensor<4xf32, #shapejit.shape<[4]>>
}

// CHECK-LABEL: shapejit.dispatch @rows by affine_map<()[s0] -> (s0)> [
// CHECK-NEXT: #shapejit.bucket<[1], [16], "small", "3.2 us, bound by bytes; next \22wide\22 3.4 us">,
// CHECK-NEXT: #shapejit.bucket<[17], [?], "wide", "">
// CHECK-NEXT: ] {note = "by rows"}
shapejit.dispatch @rows by affine_map<()[s0] -> (s0)> [
  #shapejit.bucket<[1], [16], "small", "3.2 us, bound by bytes; next \22wide\22 3.4 us">,
  #shapejit.bucket<[17], [?], "wide", "">
] {note = "by rows"}

// CHECK: shapejit.dispatch @nothing_in by affine_map<() -> ()> [
// CHECK-NEXT: #shapejit.bucket<[], [], "only", "sizes are constant">
// CHECK-NEXT: ]
shapejit.dispatch @nothing_in by affine_map<() -> ()> [#shapejit.bucket<[], [], "only", "sizes are constant">]

// A kernel whose code is made is a module; its dispatch stays.

module @lowered {
}

// CHECK: shapejit.dispatch @lowered by affine_map<()[s0, s1, s2] -> (s0 * s1, s2)> [
// CHECK-NEXT: #shapejit.bucket<[0, 5], [?, 5], "a", "r">,
// CHECK-NEXT: #shapejit.bucket<[0, 6], [?, ?], "b", "r">
shapejit.dispatch @lowered by affine_map<()[s0, s1, s2] -> (s0 * s1, s2)> [
  #shapejit.bucket<[0, 5], [?, 5], "a", "r">, #shapejit.bucket<[0, 6], [?, ?], "b", "r">]
