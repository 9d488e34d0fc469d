// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-loops-to-gpu=schedule=loops_v1_w1_k0_t64_c4

#id = affine_map<(d0) -> (d0)>
!x = tensor<?xf64, #shapejit.shape<[s0]>>
// A function that f64 does not have.
// expected-error@+1 {{this kernel computes 'math.erf' of f64, for which there is no GPU code; compute it in f32, or ask for a function that has f64: absf, ceil, copysign, cosh, exp, exp2, expm1, floor, fma, log, log10, log1p, log2, roundeven, rsqrt, sinh, sqrt, tanh, trunc}}
shapejit.kernel @k symbols 1 (%x: !x) {
  %y = shapejit.loop over [s0] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f64):
    %1 = math.erf %v : f64
    shapejit.yield %1 : f64
  }
  shapejit.yield %y : !x
}

// -----

#id = affine_map<(d0) -> (d0)>
!x = tensor<?xf32, #shapejit.shape<[s0]>>
// An op that is none of arith or math.
// expected-error@+1 {{this kernel computes 'arith.addui_extended' of i32, for which there is no GPU code; ops of arith and math may be in loops}}
shapejit.kernel @k symbols 1 (%x: tensor<?xi32, #shapejit.shape<[s0]>>) {
  %y = shapejit.loop over [s0] ins(%x at #id : tensor<?xi32, #shapejit.shape<[s0]>>) outs(#id : tensor<?xi32, #shapejit.shape<[s0]>>) {
  ^bb0(%v: i32):
    %1, %2 = arith.addui_extended %v, %v : i32, i1
    shapejit.yield %1 : i32
  }
  shapejit.yield %y : tensor<?xi32, #shapejit.shape<[s0]>>
}

// -----

#id = affine_map<(d0) -> (d0)>
!x = tensor<?xf8E4M3FN, #shapejit.shape<[s0]>>
// An element type without code.
// expected-error@+1 {{this kernel has tensors of f8E4M3FN, for which there is no GPU code}}
shapejit.kernel @k symbols 1 (%x: !x) {
  %y = shapejit.loop over [s0] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f8E4M3FN):
    shapejit.yield %v : f8E4M3FN
  }
  shapejit.yield %y : !x
}

// -----

#full = affine_map<(d0, d1) -> (d0, d1)>
#column = affine_map<(d0, d1) -> (d1)>
!x = tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
!c = tensor<8xf32, #shapejit.shape<[8]>>
// A reduction that every element needs: other threads make it.
// expected-error@+1 {{this kernel reads a reduction that it makes itself, and not only at the row that it is at; such a reduction has to be a kernel of its own}}
shapejit.kernel @k symbols 1 (%x: !x) {
  %s = shapejit.loop over [s0, 8] ins(%x at #full : !x) outs(add #column : !c) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %y = shapejit.loop over [s0, 8] ins(%x at #full : !x, %s at #column : !c) outs(#full : !x) {
  ^bb0(%v: f32, %t: f32):
    %1 = arith.subf %v, %t : f32
    shapejit.yield %1 : f32
  }
  shapejit.yield %y : !x
}

// -----

#id = affine_map<(d0) -> (d0)>
!x = tensor<?xf32, #shapejit.shape<[s0]>>
!i = tensor<?xi64, #shapejit.shape<[s0]>>
// A computed read of what the kernel makes.
// expected-error@+1 {{this kernel reads by 'tensor.extract' what it makes itself; that has to be a kernel of its own}}
shapejit.kernel @k symbols 1 (%x: !x, %i: !i) {
  %e = shapejit.loop over [s0] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: f32):
    %1 = math.exp %v : f32
    shapejit.yield %1 : f32
  }
  %y = shapejit.loop over [s0] ins(%i at #id : !i) outs(#id : !x) {
  ^bb0(%n: i64):
    %1 = arith.index_cast %n : i64 to index
    %2 = tensor.extract %e[%1] : !x
    shapejit.yield %2 : f32
  }
  shapejit.yield %y : !x
}

// -----

#id = affine_map<(d0) -> (d0)>
!x = tensor<?xf32, #shapejit.shape<[s0]>>
// An architecture without kernels.
// expected-error@+1 {{this module has the target "cuda:sm_80"}}
module attributes {shapejit.target = "cuda:sm_80"} {
  shapejit.kernel @k symbols 1 (%x: !x) {
    %y = shapejit.loop over [s0] ins(%x at #id : !x) outs(#id : !x) {
    ^bb0(%v: f32):
      shapejit.yield %v : f32
    }
    shapejit.yield %y : !x
  }
}
