// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --shapejit-inline-pointwise | FileCheck %s
// RUN: not shapejit-opt %s --pass-pipeline='builtin.module(shapejit-inline-pointwise{everything=1})' 2>&1 | FileCheck %s --check-prefix=OPTION

// OPTION: no such option everything

shapejit.symbol @n {id = 0, min = 1, max = 64}

// A value that is dear to compute is not computed twice.
// CHECK-LABEL: func.func @dear_value_with_two_readers
func.func @dear_value_with_two_readers(%x: tensor<?xf32, #shapejit.shape<[s0]>>)
    -> (tensor<?xf32, #shapejit.shape<[s0]>>, tensor<f32, #shapejit.shape<[]>>) {
  // CHECK: %[[T:.*]] = shapejit.loop
  // CHECK: math.tanh
  // CHECK-NOT: math.tanh
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
      outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%a: f32):
    %1 = math.tanh %a : f32
    shapejit.yield %1 : f32
  }
  // CHECK: ins(%[[T]] at
  %2 = shapejit.loop over [s0] ins(%0 at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
      outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%a: f32):
    %1 = arith.negf %a : f32
    shapejit.yield %1 : f32
  }
  // CHECK: ins(%[[T]] at
  %3 = shapejit.loop over [s0] ins(%0 at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
      outs(add affine_map<(d0) -> ()> : tensor<f32, #shapejit.shape<[]>>) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  return %2, %3 : tensor<?xf32, #shapejit.shape<[s0]>>, tensor<f32, #shapejit.shape<[]>>
}

// A reduction is no pointwise value.
// CHECK-LABEL: func.func @reduction
func.func @reduction(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?xf32, #shapejit.shape<[s0]>> {
  // CHECK: outs(add
  %0 = shapejit.loop over [s0, 8] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>)
      outs(add affine_map<(d0, d1) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%a: f32):
    shapejit.yield %a : f32
  }
  // CHECK: shapejit.loop over [s0]
  // CHECK: arith.negf
  %1 = shapejit.loop over [s0] ins(%0 at affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>)
      outs(affine_map<(d0) -> (d0)> : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%a: f32):
    %2 = arith.negf %a : f32
    shapejit.yield %2 : f32
  }
  return %1 : tensor<?xf32, #shapejit.shape<[s0]>>
}
