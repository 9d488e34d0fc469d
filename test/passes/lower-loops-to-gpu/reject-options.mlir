// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: not shapejit-opt %s --shapejit-lower-loops-to-gpu=parameters=by-name 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=fast 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// RUN: not shapejit-opt %s --shapejit-lower-loops-to-gpu=schedule=loops_v8_w1_k0_t128_c4 2>&1 | FileCheck %s --check-prefix=COLUMNS

// FORM: error: parameters must be one of by-value, block, got 'by-name'
// SCHEDULE: error: this kernel has the variant 'fast', which names no schedule of loops; one is loops_v1_w1_k0_t256_c4
// COLUMNS: error: this kernel reduces blocks of 256 columns with 128 threads; there is at least a thread a column
shapejit.kernel @k symbols 1 (%x: tensor<?x512xf32, #shapejit.shape<[s0, 512]>>) {
  %y = shapejit.loop over [s0, 512]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : tensor<?x512xf32, #shapejit.shape<[s0, 512]>>)
      outs(add affine_map<(d0, d1) -> (d1)> : tensor<512xf32, #shapejit.shape<[512]>>) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %y : tensor<512xf32, #shapejit.shape<[512]>>
}
