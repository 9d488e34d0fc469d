// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-to-host

module attributes {shapejit.target = "cuda:sm_90a"} {
module @a {}
func.func @main(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> attributes {shapejit.arena = #shapejit.shape<[]>} {
  // expected-error @below {{kernel @a has no dispatch; run shapejit-choose-buckets before shapejit-lower-to-host}}
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) {buffers = [#shapejit.buffer<output 0>]} : (tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>>
  return %0 : tensor<8xf32, #shapejit.shape<[8]>>
}
}

// -----

module attributes {shapejit.target = "cuda:sm_90a"} {
shapejit.kernel @copy symbols 0 (%x: tensor<8xf32, #shapejit.shape<[8]>>) {
  %0 = shapejit.loop over [8] ins(%x at affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) outs(affine_map<(d0) -> (d0)> : tensor<8xf32, #shapejit.shape<[8]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : tensor<8xf32, #shapejit.shape<[8]>>
}
shapejit.dispatch @copy by affine_map<() -> ()> [#shapejit.bucket<[], [], "wide", "">]
gpu.module @copy__narrow {}
func.func @main(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> attributes {shapejit.arena = #shapejit.shape<[]>} {
  // expected-error @below {{variant wide of kernel @copy has no gpu.module @copy__wide with an interface; run the pass that lowers such kernels before shapejit-lower-to-host}}
  %0 = shapejit.launch @copy affine_map<() -> ()> (%x) {buffers = [#shapejit.buffer<output 0>]} : (tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>>
  return %0 : tensor<8xf32, #shapejit.shape<[8]>>
}
}

// -----

// expected-error @below {{not the record of a kernel's interface}}
module attributes {shapejit.target = "cuda:sm_90a"} {
gpu.module @copy__wide attributes {shapejit.interface = "{}"} {}
func.func @main(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> attributes {shapejit.arena = #shapejit.shape<[]>} {
  return %x : tensor<8xf32, #shapejit.shape<[8]>>
}
}
