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

// -----

module @a {}
!x = tensor<8xf32, #shapejit.shape<[8]>>
func.func @reads_what_was_there(%x: !x) -> !x {
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) : (!x) -> !x
  %1 = shapejit.launch @a affine_map<() -> ()> (%0) {in_place = array<i64: 0>} : (!x) -> !x
  // expected-error @below {{operand 1 is the value from before an update in place; shapejit-form-kernels lets such readers come first, or copies}}
  %2 = shapejit.launch @a affine_map<() -> ()> (%1, %0) : (!x, !x) -> !x
  return %2 : !x
}

// -----

module @a {}
!x = tensor<8xf32, #shapejit.shape<[8]>>
func.func @writes_an_argument(%x: !x) -> !x {
  // expected-error @below {{writes into argument 0, which is not an input that the function changes}}
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) {in_place = array<i64: 0>} : (!x) -> !x
  %1 = shapejit.launch @a affine_map<() -> ()> (%0) : (!x) -> !x
  return %1 : !x
}

// -----

module @a {}
!x = tensor<8xf32, #shapejit.shape<[8]>>
func.func @writes_elsewhere(%x: !x) -> (!x {shapejit.updates = 0 : i64}) {
  %0 = shapejit.launch @a affine_map<() -> ()> (%x) : (!x) -> !x
  // expected-error @below {{result 0 is the new value of argument 0, but is not written there; shapejit-form-kernels sees to it that launches update in place}}
  return %0 : !x
}
