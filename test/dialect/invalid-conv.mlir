// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

// Convolutions: the window.

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @space_rank(%x: !x, %w: !w) -> !y {
  // expected-error @below {{runs over 5 dimensions, expected 6 for an image of rank 1: [n, g, o.., f, c, t..]}}
  %0 = shapejit.conv over [s0, 1, s1, 16, 8] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @image_rank(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has an image of rank 0, expected 1, 2 or 3}}
  %0 = shapejit.conv over [s0, 1, 16, 8] image []
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @image_rank_4(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has an image of rank 4, expected 1, 2 or 3}}
  %0 = shapejit.conv over [s0, 1, s1, 1, 1, 1, 16, 8, 3, 1, 1, 1] image [s1, 1, 1, 1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @stride_count(%x: !x, %w: !w) -> !y {
  // expected-error @below {{stride has 2 entries, expected 1}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1] stride [1, 1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @dilation_count(%x: !x, %w: !w) -> !y {
  // expected-error @below {{dilation has 0 entries, expected 1}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1] dilation []
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @stride_zero(%x: !x, %w: !w) -> !y {
  // expected-error @below {{stride must be at least 1, got 0}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1] stride [0]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @lhs_dilation_negative(%x: !x, %w: !w) -> !y {
  // expected-error @below {{lhs_dilation must be at least 1, got -2}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1] lhs_dilation [-2]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @padding_count(%x: !x, %w: !w) -> !y {
  // expected-error @below {{padding has 4 numbers, expected 2}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1] padding [(1, 1), (1, 1)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @padding_pairs(%x: !x, %w: !w) -> !y {
  // expected-error @below {{expected ','}}
  %0 = shapejit.conv over [s0, 1, s1, 16, 8, 3] image [s1] padding [(1)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<2x8x10xf32, #shapejit.shape<[2, 8, 10]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<2x16x5xf32, #shapejit.shape<[2, 16, 5]>>

func.func @output_pixels(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has 5 output pixels in spatial dimension 0, expected 4}}
  %0 = shapejit.conv over [2, 1, 5, 16, 8, 3] image [10] stride [2]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<2x8x10xf32, #shapejit.shape<[2, 8, 10]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<2x16x5xf32, #shapejit.shape<[2, 16, 5]>>

func.func @output_pixels_transposed(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has 5 output pixels in spatial dimension 0, expected 27}}
  %0 = shapejit.conv over [2, 1, 5, 16, 8, 3] image [10] lhs_dilation [3] padding [(1, 0)]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<2x8x10xf32, #shapejit.shape<[2, 8, 10]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<2x16x5xf32, #shapejit.shape<[2, 16, 5]>>

func.func @no_output_pixels(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has 5 output pixels in spatial dimension 0, expected 0}}
  %0 = shapejit.conv over [2, 1, 5, 16, 8, 3] image [10] dilation [7]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

// Convolutions: operands.

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @two_inputs(%x: !x, %w: !w) -> !y {
  // expected-error @+2 {{expected one input}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x, %x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @two_weights(%x: !x, %w: !w) -> !y {
  // expected-error @+3 {{expected one weight}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w, %w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @maps(%x: !x, %w: !w) -> !y {
  // expected-error @below {{has 2 maps, expected one for each of the 2 operands and one for the result}}
  %0 = "shapejit.conv"(%x, %w) ({}) {space = #shapejit.shape<[s0, 1, s1 - 2, 16, 8, 3]>, image = #shapejit.shape<[s1]>,
      maps = [affine_map<(n, g, p, c) -> (n, c, p)>, affine_map<(g, f, c, t) -> (f, c, t)>],
      strides = array<i64: 1>, dilations = array<i64: 1>, padding = array<i64: 0, 0>,
      lhs_dilations = array<i64: 1>} : (!x, !w) -> !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @plain_weight(%x: !x, %w: tensor<16x8x3xf32>) -> !y {
  // expected-error @below {{the weight has type 'tensor<16x8x3xf32>', which carries no symbolic shape}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : tensor<16x8x3xf32>)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @input_over_all(%x: !x, %w: !w) -> !y {
  // expected-error @below {{the input: the map has 6 dimensions, expected 4}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, o, f, c, t) -> (n, c, o + t)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @input_bounds(%x: !x, %w: !w) -> !y {
  // expected-error @below {{the input: index 1 (d1 * 8 + d3) spans [0, 15], outside of dimension 1 of size 8}}
  %0 = shapejit.conv over [s0, 2, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, g * 8 + c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @weight_bounds(%x: !x, %w: !w) -> !y {
  // expected-error @below {{the weight: index 2 (d3 + 1) spans [1, 3], outside of dimension 2 of size 3}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t + 1)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf64, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @weight_type(%x: !x, %w: !w) -> !y {
  // expected-error @below {{the weight holds 'f64' but the input holds 'f32'}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>
!b = tensor<16xf32, #shapejit.shape<[16]>>

func.func @extra_over_taps(%x: !x, %w: !w, %b: !b) -> !y {
  // expected-error @below {{extra 0: the map has 6 dimensions, expected 4}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      extras(%b at affine_map<(n, g, o, f, c, t) -> (f)> : !b) epilogue {
  ^bb0(%acc: f32, %e: f32):
    shapejit.yield %acc : f32
  } -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

// Convolutions: result and epilogue.

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @plain_result(%x: !x, %w: !w) -> tensor<?x16x?xf32> {
  // expected-error @below {{the result has type 'tensor<?x16x?xf32>', which carries no symbolic shape}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : tensor<?x16x?xf32>
  return %0 : tensor<?x16x?xf32>
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @result_bounds(%x: !x, %w: !w) -> !y {
  // expected-error @below {{the result: index 1 (d3 + 1) spans [1, 16], outside of dimension 1 of size 16}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f + 1, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf64, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @result_type(%x: !x, %w: !w) -> !y {
  // expected-error @below {{without an epilogue gives the accumulate type 'f32' or the operands' 'f32', not 'f64'}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @epilogue_count(%x: !x, %w: !w) -> !y {
  // expected-error @below {{epilogue takes 2 arguments, expected 1 accumulators and 0 extras}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      epilogue {
  ^bb0(%acc: f32, %e: f32):
    shapejit.yield %acc : f32
  } -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>
!b = tensor<16xf32, #shapejit.shape<[16]>>

func.func @extra_type(%x: !x, %w: !w, %b: !b) -> !y {
  // expected-error @below {{epilogue argument 1 is 'i32', expected 'f32'}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      extras(%b at affine_map<(n, g, o, f) -> (f)> : !b) epilogue {
  ^bb0(%acc: f32, %e: i32):
    shapejit.yield %acc : f32
  } -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @accumulator_type(%x: !x, %w: !w) -> !y {
  // expected-error @below {{epilogue argument 0 is 'f32', expected 'f64'}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      accumulate f64 epilogue {
  ^bb0(%acc: f32):
    shapejit.yield %acc : f32
  } -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}

// -----

!x = tensor<?x8x?xf32, #shapejit.shape<[s0, 8, s1]>>
!w = tensor<16x8x3xf32, #shapejit.shape<[16, 8, 3]>>
!y = tensor<?x16x?xf32, #shapejit.shape<[s0, 16, s1 - 2]>>

func.func @epilogue_yield(%x: !x, %w: !w) -> !y {
  // expected-error @below {{epilogue must yield one 'f32'}}
  %0 = shapejit.conv over [s0, 1, s1 - 2, 16, 8, 3] image [s1]
      input(%x at affine_map<(n, g, p, c) -> (n, c, p)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      epilogue {
  ^bb0(%acc: f32):
    %e = arith.extf %acc : f32 to f64
    shapejit.yield %e : f64
  } -> affine_map<(n, g, o, f) -> (n, f, o)> : !y
  return %0 : !y
}
