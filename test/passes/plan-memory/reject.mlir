// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-plan-memory

func.func @returns_its_argument(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>> {
  // expected-error @below {{result 0 is not written by a launch; run shapejit-form-kernels before shapejit-plan-memory}}
  return %x : tensor<8xf32, #shapejit.shape<[8]>>
}

// -----

module @a {}
func.func @returns_twice(%x: tensor<8xf32, #shapejit.shape<[8]>>) -> (tensor<8xf32, #shapejit.shape<[8]>>, tensor<8xf32, #shapejit.shape<[8]>>) {
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) : (tensor<8xf32, #shapejit.shape<[8]>>) -> tensor<8xf32, #shapejit.shape<[8]>>
  // expected-error @below {{results 0 and 1 are the same memory; shapejit-form-kernels gives each result a launch of its own}}
  return %0, %0 : tensor<8xf32, #shapejit.shape<[8]>>, tensor<8xf32, #shapejit.shape<[8]>>
}
