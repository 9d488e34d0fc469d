// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics

// Buckets.

// expected-error @below {{a bucket has a lower corner of rank 1 but an upper one of rank 2}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [2, 3], "v", "r">]

// -----

// expected-error @below {{a bucket is empty on axis 1: 4 to 3}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0, s0)> [#shapejit.bucket<[1, 4], [2, 3], "v", "r">]

// -----

// expected-error @below {{a bucket starts at -1 on axis 0; sizes are not negative}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[-1], [2], "v", "r">]

// -----

// expected-error @below {{a bucket names the variant that serves it}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [2], "", "r">]

// -----

// expected-error @below {{expected integer value}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[?], [2], "v", "r">]

// -----

// Dispatch.

!x = tensor<?xf32, #shapejit.shape<[s0]>>

shapejit.kernel @k symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x)
      outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}

// expected-error @below {{attribute 'buckets' failed to satisfy constraint: array of buckets}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [1 : i64]

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

// expected-error @below {{has no buckets}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0)> []

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

// expected-error @below {{decides by expressions of the kernel's symbols, got (d0) -> (d0)}}
shapejit.dispatch @k by affine_map<(d0) -> (d0)> [#shapejit.bucket<[1], [2], "v", "r">]

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

// expected-error @below {{bucket 1 has rank 2 but there are 1 axes}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [2], "v", "r">, #shapejit.bucket<[3, 1], [3, 1], "w", "r">]

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

// expected-error @below {{buckets 0 ("v") and 2 ("w") overlap}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0, s0 * 2)> [
  #shapejit.bucket<[1, 5], [10, ?], "v", "r">, #shapejit.bucket<[1, 1], [10, 4], "u", "r">,
  #shapejit.bucket<[10, 9], [?, 9], "w", "r">]

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

// expected-error @below {{buckets 0 ("v") and 1 ("w") overlap}}
shapejit.dispatch @k by affine_map<() -> ()> [#shapejit.bucket<[], [], "v", "r">, #shapejit.bucket<[], [], "w", "r">]

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

// expected-error @below {{names @other, which does not exist}}
shapejit.dispatch @other by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [2], "v", "r">]

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

// expected-error @below {{reads s1 but @k has 1 symbols}}
shapejit.dispatch @k by affine_map<()[s0, s1] -> (s1)> [#shapejit.bucket<[1], [2], "v", "r">]

// -----

func.func private @f()

// expected-error @below {{names @f, which is not a kernel}}
shapejit.dispatch @f by affine_map<() -> ()> [#shapejit.bucket<[], [], "v", "r">]

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

shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [?], "v", "r">]

// expected-error @below {{is the second one of @k}}
shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [?], "v", "r">]

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

func.func @inside() {
  // expected-error @below {{expects parent op 'builtin.module'}}
  shapejit.dispatch @k by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [?], "v", "r">]
  return
}
