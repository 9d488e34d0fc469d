// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-to-cpu=vector-bytes=32

#full = affine_map<(d0, d1) -> (d0, d1)>
#column = affine_map<(d0, d1) -> (d1)>
shapejit.kernel @needs_memory symbols 2 (%x: tensor<?x?xf32, #shapejit.shape<[s0, s1]>>) {
  %s = shapejit.loop over [s0, s1] ins(%x at #full : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>) outs(add #column : tensor<?xf32, #shapejit.shape<[s1]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  // expected-error @below {{reads a reduction of shape [s1] of the same kernel at rows other than its own; that requires at most 65536 bytes of known size}}
  %y = shapejit.loop over [s0, s1] ins(%x at #full : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>, %s at #column : tensor<?xf32, #shapejit.shape<[s1]>>) outs(#full : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>) {
  ^bb0(%v: f32, %w: f32):
    %1 = arith.subf %v, %w : f32
    shapejit.yield %1 : f32
  }
  shapejit.yield %y : tensor<?x?xf32, #shapejit.shape<[s0, s1]>>
}

// -----

#id = affine_map<(d0, d1) -> (d0, d1)>
shapejit.kernel @mixed symbols 1 (%x: tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  // expected-error @below {{'shapejit.loop' shares a kernel with 'shapejit.gemm'; a contraction's kernel holds nothing else, pointwise ops go into its epilogue}}
  %0 = shapejit.loop over [s0, 8] ins(%x at #id : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) outs(#id : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.gemm over [s0, s0, 8] lhs(%0 at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) rhs(%0 at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<?x8xf32, #shapejit.shape<[s0, 8]>>) -> tensor<?x?xf32, #shapejit.shape<[s0, s0]>>
  shapejit.yield %1 : tensor<?x?xf32, #shapejit.shape<[s0, s0]>>
}

// -----

shapejit.kernel @two_products symbols 1 (%x: tensor<8x8xf32, #shapejit.shape<[8, 8]>>) {
  %0 = shapejit.gemm over [8, 8, 8] lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) rhs(%x at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<8x8xf32, #shapejit.shape<[8, 8]>>
  // expected-error @below {{reads the result of 'shapejit.gemm'; a kernel holds one contraction, which reads the kernel's arguments}}
  %1 = shapejit.gemm over [8, 8, 8] lhs(%0 at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) rhs(%x at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xf32, #shapejit.shape<[8, 8]>>) -> tensor<8x8xf32, #shapejit.shape<[8, 8]>>
  shapejit.yield %1 : tensor<8x8xf32, #shapejit.shape<[8, 8]>>
}

// -----

#id = affine_map<(d0) -> (d0)>
shapejit.kernel @gathers_own_value symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>, %i: tensor<?xi64, #shapejit.shape<[s0]>>) {
  %0 = shapejit.loop over [s0] ins(%x at #id : tensor<?xf32, #shapejit.shape<[s0]>>) outs(#id : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%v: f32):
    %1 = math.exp %v : f32
    shapejit.yield %1 : f32
  }
  // expected-error @below {{reads by tensor.extract what the same kernel computes}}
  %2 = shapejit.loop over [s0] ins(%i at #id : tensor<?xi64, #shapejit.shape<[s0]>>) outs(#id : tensor<?xf32, #shapejit.shape<[s0]>>) {
  ^bb0(%n: i64):
    %3 = arith.index_cast %n : i64 to index
    %4 = tensor.extract %0[%3] : tensor<?xf32, #shapejit.shape<[s0]>>
    shapejit.yield %4 : f32
  }
  shapejit.yield %2 : tensor<?xf32, #shapejit.shape<[s0]>>
}

// -----

!x = tensor<?x?x8xf32, #shapejit.shape<[s0, s1, 8]>>
!w = tensor<8x8x3xf32, #shapejit.shape<[8, 8, 3]>>
shapejit.kernel @pointwise_before_conv symbols 2 (%x: !x, %w: !w) {
  // expected-error @below {{'shapejit.loop' shares a kernel with 'shapejit.conv'; a contraction's kernel holds nothing else, pointwise ops go into its epilogue}}
  %0 = shapejit.loop over [s0, s1, 8] ins(%x at affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !x) outs(affine_map<(d0, d1, d2) -> (d0, d1, d2)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  %1 = shapejit.conv over [s0, 1, s1, 8, 8, 3] image [s1] padding [(1, 1)]
      input(%0 at affine_map<(n, g, p, c) -> (n, p, c)> : !x)
      weight(%w at affine_map<(g, f, c, t) -> (f, c, t)> : !w)
      -> affine_map<(n, g, o, f) -> (n, o, f)> : !x
  shapejit.yield %1 : !x
}
