// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

// Kernels.

// expected-error @below {{argument 0 has type 'tensor<?xf32>', which carries no symbolic shape}}
shapejit.kernel @plain_argument symbols 0 (%x: tensor<?xf32>) {
  shapejit.yield %x : tensor<?xf32>
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

// expected-error @below {{expects a non-empty block}}
shapejit.kernel @empty symbols 1 (%x: !x) {
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

// expected-error @below {{body must end with shapejit.yield}}
shapejit.kernel @terminator symbols 1 (%x: !x) {
  func.return
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

// expected-error @below {{yields nothing}}
shapejit.kernel @nothing symbols 1 (%x: !x) {
  shapejit.yield
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

// expected-error @below {{result 0 is an argument; a kernel computes its results}}
shapejit.kernel @passes_on symbols 1 (%x: !x) {
  shapejit.yield %x : !x
}

// -----

// expected-error @below {{result 0 has type 'tensor<4xf32>', which carries no symbolic shape}}
shapejit.kernel @plain_result symbols 0 () {
  %0 = arith.constant dense<0.0> : tensor<4xf32>
  shapejit.yield %0 : tensor<4xf32>
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

func.func @outer(%y: !x) {
  // expected-error @below {{expects parent op 'builtin.module'}}
  shapejit.kernel @nested symbols 1 (%x: !x) {
    shapejit.yield %x : !x
  }
  return
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

// expected-error @below {{attribute 'symbols' failed to satisfy constraint}}
shapejit.kernel @symbols symbols -1 (%x: !x) {
  shapejit.yield %x : !x
}

// -----

// Launches.

!x = tensor<?xf32, #shapejit.shape<[s0]>>

shapejit.kernel @k symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x)
      outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

func.func @sizes(%x: !x) -> !x {
  // expected-error @below {{binds sizes to expressions of symbols, got (d0) -> (d0)}}
  %0 = shapejit.launch @k affine_map<(d0) -> (d0)> (%x) : (!x) -> !x
  return %0 : !x
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

shapejit.kernel @k symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x)
      outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

func.func @plain_operand(%x: tensor<?xf32>) -> !x {
  // expected-error @below {{operand 0 has type 'tensor<?xf32>', which carries no symbolic shape}}
  %0 = shapejit.launch @k affine_map<()[s0] -> (s0)> (%x) : (tensor<?xf32>) -> !x
  return %0 : !x
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

shapejit.kernel @k symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x)
      outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

func.func @plain_result(%x: !x) -> tensor<?xf32> {
  // expected-error @below {{result 0 has type 'tensor<?xf32>', which carries no symbolic shape}}
  %0 = shapejit.launch @k affine_map<()[s0] -> (s0)> (%x) : (!x) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

shapejit.kernel @k symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x)
      outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

func.func @buffers(%x: !x) -> !x {
  // expected-error @below {{names 2 buffers for 1 results}}
  %0 = shapejit.launch @k affine_map<()[s0] -> (s0)> (%x)
      {buffers = [#shapejit.buffer<arena 0>, #shapejit.buffer<output 0>]} : (!x) -> !x
  return %0 : !x
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

func.func @missing(%x: !x) -> !x {
  // expected-error @below {{names @k, which does not exist}}
  %0 = shapejit.launch @k affine_map<()[s0] -> (s0)> (%x) : (!x) -> !x
  return %0 : !x
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

func.func private @k(!x)
func.func @function(%x: !x) -> !x {
  // expected-error @below {{names @k, which is not a kernel}}
  %0 = shapejit.launch @k affine_map<()[s0] -> (s0)> (%x) : (!x) -> !x
  return %0 : !x
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

shapejit.kernel @k symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x)
      outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

func.func @symbol_count(%x: !x) -> !x {
  // expected-error @below {{binds 2 sizes but @k has 1 symbols}}
  %0 = shapejit.launch @k affine_map<()[s0] -> (s0, s0)> (%x) : (!x) -> !x
  return %0 : !x
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

shapejit.kernel @k symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x)
      outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

func.func @operand_count(%x: !x) -> !x {
  // expected-error @below {{has 2 operands and 1 results but @k has 1 and 1}}
  %0 = shapejit.launch @k affine_map<()[s0] -> (s0)> (%x, %x) : (!x, !x) -> !x
  return %0 : !x
}

// -----

!x = tensor<?xf32, #shapejit.shape<[s0]>>

!y = tensor<?xf64, #shapejit.shape<[s0]>>
shapejit.kernel @k symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x)
      outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

func.func @element_type(%y: !y) -> !x {
  // expected-error @below {{operand 0 is 'tensor<?xf64, #shapejit.shape<[s0]>>' but the kernel has 'tensor<?xf32, #shapejit.shape<[s0]>>'}}
  %0 = shapejit.launch @k affine_map<()[s0] -> (s0)> (%y) : (!y) -> !x
  return %0 : !x
}

// -----

!x = tensor<4x8xf32, #shapejit.shape<[4, 8]>>
!y = tensor<32xf32, #shapejit.shape<[32]>>
!z = tensor<31xf32, #shapejit.shape<[31]>>

shapejit.kernel @k symbols 0 (%x: !x) {
  %0 = shapejit.loop over [4, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !x)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

func.func @element_count(%y: !y) -> !z {
  // The operand is regrouped, which is fine.
  // expected-error @below {{result 0 has 31 elements but the kernel has 32}}
  %0 = shapejit.launch @k affine_map<() -> ()> (%y) : (!y) -> !z
  return %0 : !z
}
