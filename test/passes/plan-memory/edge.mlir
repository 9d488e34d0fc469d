// RUN: shapejit-opt %s --split-input-file --shapejit-plan-memory | FileCheck %s

// Slots are compared by their symbolic sizes within the symbols' ranges: a free slot that
// is provably large enough is reused as it is.

module @a {}
shapejit.symbol @n {id = 0, min = 1, max = 64}

// CHECK-LABEL: func.func @larger_slot
// CHECK-SAME: #shapejit.shape<[s0 * 64, s0 * 32]>
func.func @larger_slot(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%x) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
  %1 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%0) : (tensor<?x16xf32, #shapejit.shape<[s0, 16]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  // CHECK: launch {{.*}}<arena 0>
  // CHECK: launch {{.*}}<arena 1>
  // CHECK: launch {{.*}}<arena 0>
  %2 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%1) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  %3 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%2) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  return %3 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// -----

// A free slot that is provably smaller grows.

module @a {}
shapejit.symbol @n {id = 0, min = 1, max = 64}

// CHECK-LABEL: func.func @growing_slot
// CHECK-SAME: #shapejit.shape<[s0 * 64, s0 * 32]>
func.func @growing_slot(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%x) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  %1 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%0) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  // CHECK: launch {{.*}}<arena 0>
  // CHECK: launch {{.*}}<arena 1>
  // CHECK: launch {{.*}}<arena 0>
  %2 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%1) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x16xf32, #shapejit.shape<[s0, 16]>>
  %3 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%2) : (tensor<?x16xf32, #shapejit.shape<[s0, 16]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  return %3 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// -----

// Sizes that cannot be compared (n * 32 and m * 64) share a slot if they are about as large at sizes
// within the ranges. The host program takes the larger one.

module @a {}
shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}

// CHECK-LABEL: func.func @incomparable
// CHECK-SAME: shapejit.arena = [#shapejit.shape<[s0 * 32, s1 * 64]>, #shapejit.shape<[s0 * 32]>]
func.func @incomparable(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%x) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  %1 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%0) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  %2 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%1) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x16xf32, #shapejit.shape<[s1, 16]>>
  %3 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%2) : (tensor<?x16xf32, #shapejit.shape<[s1, 16]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  return %3 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// -----

// Of sizes that differ by more, a value gets a slot of its own: it would keep the large one out.

module @a {}
shapejit.symbol @n {id = 0, min = 1, max = 64}
shapejit.symbol @m {id = 1, min = 1, max = 64}

// CHECK-LABEL: func.func @unlike
// CHECK-SAME: #shapejit.shape<[s0 * 32, s0 * 32, s1 * 1024]>
func.func @unlike(%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>> {
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%x) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  %1 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%0) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  %2 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%1) : (tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x256xf32, #shapejit.shape<[s1, 256]>>
  %3 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%2) : (tensor<?x256xf32, #shapejit.shape<[s1, 256]>>) -> tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
  return %3 : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>
}

// -----

// A view is the memory of its source: it keeps the source alive, and a returned view is
// an output written by the source's launch. Bools take a byte; an unread result still
// gets a slot; inputs, weights and packed weights take none.

module @a {}
shapejit.symbol @n {id = 0, min = 0}

// CHECK-LABEL: func.func @views
// CHECK-SAME: #shapejit.shape<[s0 * 8, s0 * 8]>
func.func @views(%x: tensor<?x8xi1, #shapejit.shape<[s0, 8]>>, %w: tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<?xi1, #shapejit.shape<[s0 * 8]>> {
  %p = shapejit.pack %w {dim = 0, panel = 8} : tensor<8x8xf32, #shapejit.shape<[8, 8]>> -> tensor<1x8x8xf32, #shapejit.shape<[1, 8, 8]>>
  // CHECK: launch {{.*}}<arena 0>
  %0 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%x, %p) : (tensor<?x8xi1, #shapejit.shape<[s0, 8]>>, tensor<1x8x8xf32, #shapejit.shape<[1, 8, 8]>>) -> tensor<?x8xi1, #shapejit.shape<[s0, 8]>>
  %v = shapejit.view %0 at affine_map<(d0) -> (d0 floordiv 8, d0 mod 8)> : tensor<?x8xi1, #shapejit.shape<[s0, 8]>> -> tensor<?xi1, #shapejit.shape<[s0 * 8]>>
  // CHECK: launch {{.*}}<arena 1>
  %1 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%x) : (tensor<?x8xi1, #shapejit.shape<[s0, 8]>>) -> tensor<?x8xi1, #shapejit.shape<[s0, 8]>>
  // CHECK: launch {{.*}}<output 0>
  %2 = shapejit.launch @a affine_map<()[s0] -> (s0)> (%v) : (tensor<?xi1, #shapejit.shape<[s0 * 8]>>) -> tensor<?x8xi1, #shapejit.shape<[s0, 8]>>
  %r = shapejit.view %2 at affine_map<(d0) -> (d0 floordiv 8, d0 mod 8)> : tensor<?x8xi1, #shapejit.shape<[s0, 8]>> -> tensor<?xi1, #shapejit.shape<[s0 * 8]>>
  return %r : tensor<?xi1, #shapejit.shape<[s0 * 8]>>
}
