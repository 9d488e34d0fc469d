// RUN: shapejit-opt %s --shapejit-plan-memory | FileCheck %s

// A chain of launches needs two slots: one to read from, one to write to.

module @a {}
shapejit.symbol @n {id = 0, min = 1, max = 64}

// CHECK-LABEL: func.func @chain
// CHECK-SAME: attributes {shapejit.arena = #shapejit.shape<[s0 * 32, s0 * 32]>}
func.func @chain(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<arena 0>]}
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%x) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<arena 1>]}
  %1 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%0) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  // The first slot is free again.
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<arena 0>]}
  %2 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%1) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  // CHECK: launch @a {{.*}} {buffers = [#shapejit.buffer<output 0>]}
  %3 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%2) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  return %3 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}
