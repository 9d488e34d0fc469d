// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-to-host

// expected-error @below {{has no memory plan; run shapejit-plan-memory first}}
func.func @main(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> {
  return %x : tensor<8xf32, #shapejit.shape<[8]>>
}

// -----

module @a {}
func.func @main(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> attributes {shapejit.arena = #shapejit.shape<[]>} {
  // expected-error @below {{has no buffers; run shapejit-plan-memory first}}
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) : (tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>>
  return %0 : tensor<8xf32, #shapejit.shape<[8]>>
}

// -----

func.func @main(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> attributes {shapejit.arena = #shapejit.shape<[]>} {
  // expected-error @below {{'shapejit.loop' is not part of a launch program; shapejit-form-kernels puts it into a kernel}}
  %0 = shapejit.loop over [8] ins(%x at affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) outs(affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  return %0 : tensor<8xf32, #shapejit.shape<[8]>>
}

// -----

// expected-error @below {{expected one function of launches, got 0}}
module {}
