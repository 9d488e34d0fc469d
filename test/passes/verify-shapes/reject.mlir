// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --shapejit-verify-shapes --verify-diagnostics

shapejit.symbol @n {id = 0, min = 1, max = 8}
func.func @slice(%x: tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0]>> {
  // expected-error @+1 {{source: index 0 (d0 + 1) is 1 at (0), where s0 = 1; dimension 0 has size s0 = 1}}
  %0 = shapejit.view %x at affine_map<(d0) -> (d0 + 1)>
      : tensor<?xf32, #shapejit.shape<[s0]>> -> tensor<?xf32, #shapejit.shape<[s0]>>
  return %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @m {id = 1, min = 1, max = 8}
func.func @mismatch(%x: tensor<?xf32, #shapejit.shape<[s0]>>, %y: tensor<?xf32, #shapejit.shape<[s1]>>) -> tensor<?xf32, #shapejit.shape<[s0]>> {
  // expected-error @+1 {{input 1: index 0 (d0)}}
  %0 = shapejit.loop over [s0]
      ins(%x at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>, %y at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s1]>>)
      outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    shapejit.yield %s : f32
  }
  return %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
func.func @contraction(%x: tensor<?x4xf32, #shapejit.shape<[s0, 4]>>, %w: tensor<4x?xf32, #shapejit.shape<[4, s0]>>) -> tensor<?x4xf32, #shapejit.shape<[s0, 4]>> {
  // expected-error @+1 {{weight 0: index 1 (d2) is 3 at (0, 0, 3), where s0 = 1; dimension 1 has size s0 = 1}}
  %0 = shapejit.gemm over [s0, 4, 4]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x4xf32, #shapejit.shape<[s0, 4]>>)
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<4x?xf32, #shapejit.shape<[4, s0]>>)
      -> tensor<?x4xf32, #shapejit.shape<[s0, 4]>>
  return %0 : tensor<?x4xf32, #shapejit.shape<[s0, 4]>>
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
func.func @negative(%x: tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0 - 2]>> {
  // expected-error @+1 {{dimension 0 of result 0 has size s0 - 2 = -1 where s0 = 1}}
  %0 = shapejit.view %x at affine_map<(d0) -> (d0 + 2)>
      : tensor<?xf32, #shapejit.shape<[s0]>> -> tensor<?xf32, #shapejit.shape<[s0 - 2]>>
  return %0 : tensor<?xf32, #shapejit.shape<[s0 - 2]>>
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
// expected-error @+1 {{argument 0 uses s1, which the module does not declare; it declares s0}}
func.func @undeclared(%x: tensor<?xf32, #shapejit.shape<[s1]>>) {
  return
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @m {id = 1, min = 1, max = 8}
func.func @undeclared_in_map(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<1xf32, #shapejit.shape<[1]>> {
  // expected-error @+1 {{'map' uses s2, which the module does not declare; it declares s0 to s1}}
  %0 = shapejit.view %x at affine_map<(d0)[s0, s1, s2] -> (s2 - s2 + s2)>
      : tensor<8xf32, #shapejit.shape<[8]>> -> tensor<1xf32, #shapejit.shape<[1]>>
  return %0 : tensor<1xf32, #shapejit.shape<[1]>>
}

// -----

// expected-error @+1 {{argument 0 has type tensor<?xf32>; every ranked tensor carries a #shapejit.shape}}
func.func @plain(%x: tensor<?xf32>) {
  return
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
// expected-error @+1 {{symbol 1 of the module has id 2}}
shapejit.symbol @m {id = 2, min = 1, max = 8}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.kernel @copy symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
  %0 = shapejit.loop over [s0]
      ins(%x at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
      outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  shapejit.yield %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}
func.func @count(%x: tensor<?x4xf32, #shapejit.shape<[s0, 4]>>) -> tensor<?x4xf32, #shapejit.shape<[s0, 4]>> {
  // expected-error @+1 {{operand 0 has 4*s0 = 4 elements but @copy expects s0 = 1, where s0 = 1}}
  %0 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%x)
      : (tensor<?x4xf32, #shapejit.shape<[s0, 4]>>) -> tensor<?x4xf32, #shapejit.shape<[s0, 4]>>
  return %0 : tensor<?x4xf32, #shapejit.shape<[s0, 4]>>
}

// -----

// A kernel is checked with what its launch binds.
shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.kernel @shift symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
  // expected-error @+1 {{input 0: index 0 (d0 + 1) is 2 at (1), where s0 = 1; dimension 0 has size 2*s0 = 2 (in @shift, launched with its s0 = 2*s0)}}
  %0 = shapejit.loop over [s0]
      ins(%x at affine_map<(d0) -> (d0 + 1)> : tensor<?xf32, #shapejit.shape<[s0]>>)
      outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  shapejit.yield %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}
func.func @bound(%x: tensor<?x2xf32, #shapejit.shape<[s0, 2]>>) -> tensor<?x2xf32, #shapejit.shape<[s0, 2]>> {
  %0 = shapejit.launch @shift affine_map<()[s0] -> (s0 * 2)> (%x)
      : (tensor<?x2xf32, #shapejit.shape<[s0, 2]>>) -> tensor<?x2xf32, #shapejit.shape<[s0, 2]>>
  return %0 : tensor<?x2xf32, #shapejit.shape<[s0, 2]>>
}

// -----

shapejit.kernel @local symbols 0 () {
  // expected-error @+1 {{result 0 uses s0, which the kernel does not declare; it declares no symbols (in @local, never launched)}}
  %0 = shapejit.loop over [s0]
      outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
    %c = arith.constant 0.0 : f32
    shapejit.yield %c : f32
  }
  shapejit.yield %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @twice(%q: tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>) -> tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>> {
  // expected-error @+1 {{writes (0, 0, 0, 0) both at (0, 0, 0, 0) and at (0, 1, 0, 0), where s0 = 1; each element is written once}}
  %0 = shapejit.attention over [2, 2, s0, s0, 4, 4]
      q(%q at #id : tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>)
      k(%q at #id : tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>)
      v(%q at #id : tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>)
      {scale = 1.0 : f64} -> affine_map<(d0, d1, d2, d3) -> (d0, 0, d2, d3)> : tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>
  return %0 : tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
func.func @short(%q: tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>) -> tensor<2x3x?x4xf32, #shapejit.shape<[2, 3, s0, 4]>> {
  // expected-error @+1 {{the result has 24*s0 = 24 elements but attention computes 16*s0 = 16, where s0 = 1}}
  %0 = shapejit.attention over [2, 2, s0, s0, 4, 4]
      q(%q at #id : tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>)
      k(%q at #id : tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>)
      v(%q at #id : tensor<2x2x?x4xf32, #shapejit.shape<[2, 2, s0, 4]>>)
      {scale = 1.0 : f64} -> #id : tensor<2x3x?x4xf32, #shapejit.shape<[2, 3, s0, 4]>>
  return %0 : tensor<2x3x?x4xf32, #shapejit.shape<[2, 3, s0, 4]>>
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>
func.func @pixels(%x: !x, %w: !w) -> !y {
  // expected-error @+1 {{has s1 = 64 output pixels in spatial dimension 0 but its window gives (s1 + 1)//2 = 32, where s1 = 64}}
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] stride [2] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1 - 2]>>
func.func @clamp_missing(%x: !x, %w: !w) -> !y {
  // expected-error @+1 {{dimension 2 of result 0 has size s1 - 2 = -1 where s1 = 1}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 6, 8, 3] image [s1] 
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1 + 1]>>
func.func @image_over_tensor(%x: !x, %w: !w) -> !y {
  // expected-error @+1 {{input: index 2 (d2)}}
  %0 = shapejit.conv over [s0, 1, s1 + 1, 6, 8, 3] image [s1 + 1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>
func.func @negative_image(%x: !x, %w: !w) -> !y {
  // expected-error @+1 {{dimension 0 of the image has size s1 - 2 = -1 where s1 = 1}}
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1 - 2] padding [(2, 2)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>
func.func @undeclared_image(%x: !x, %w: !w) -> !y {
  // expected-error @+1 {{the image uses s7, which the module does not declare; it declares s0 to s1}}
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s7] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

shapejit.symbol @n {id = 0, min = 1, max = 8}
shapejit.symbol @h {id = 1, min = 1, max = 64}
!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<6x8x3xf32, #shapejit.shape<[6, 8, 3]>>
!y = tensor<?x6x?xf32, #shapejit.shape<[s0, 6, s1]>>
func.func @written_twice(%x: !x, %w: !w) -> !y {
  // expected-error @+1 {{result: (d0, 0, d2) writes (0, 0, 0) both at}}
  %0 = shapejit.conv over [s0, 1, s1, 6, 8, 3] image [s1] padding [(1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, 0, o)> : !y
  return %0 : !y
}
