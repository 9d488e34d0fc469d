// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-plan-branches

// Every variant has its interface.

!x = tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>
!k = tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>

module attributes {shapejit.target = "cuda:sm_90a:h200"} {
shapejit.symbol @rows {id = 0, min = 1, max = 8388608}

shapejit.kernel @copy symbols 1 (%x: !k) {
  %0 = shapejit.loop over [s0, 64] ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !k)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !k) {
  ^bb0(%v: bf16):
    shapejit.yield %v : bf16
  }
  shapejit.yield %0 : !k
}
shapejit.dispatch @copy by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [256], "loops_v8_w1_k0_t256_c4", "">, #shapejit.bucket<[257], [8388608], "loops_v4_w1_k0_t256_c4", "">]
gpu.module @copy__loops_v8_w1_k0_t256_c4 attributes {shapejit.interface = "{\22entry\22:\22copy_8\22,\22threads\22:256,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[[0,2048]],\22ctas_per_sm\22:4},\22values\22:[\22s0 * 64\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:true,\22block_bytes\22:64,\22programmatic\22:true}"} {}
shapejit.kernel @add symbols 1 (%x: !k, %y: !k) {
  %0 = shapejit.loop over [s0, 64]
      ins(%x at affine_map<(d0, d1) -> (d0, d1)> : !k, %y at affine_map<(d0, d1) -> (d0, d1)> : !k)
      outs(affine_map<(d0, d1) -> (d0, d1)> : !k) {
  ^bb0(%v: bf16, %w: bf16):
    %1 = arith.addf %v, %w : bf16
    shapejit.yield %1 : bf16
  }
  shapejit.yield %0 : !k
}
shapejit.dispatch @add by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [8388608], "loops_v8_w1_k0_t256_c4", "">]
gpu.module @add__loops_v8_w1_k0_t256_c4 attributes {shapejit.interface = "{\22entry\22:\22add\22,\22threads\22:256,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[[0,2048]],\22ctas_per_sm\22:4},\22values\22:[\22s0 * 64\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:true,\22block_bytes\22:64,\22programmatic\22:true}"} {}

func.func @main(%x: !x, %y: !x) -> !x {
  // expected-error @below {{variant loops_v4_w1_k0_t256_c4 of kernel @copy has no gpu.module}}
  %0 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%x) : (!x) -> !x
  %1 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%0) : (!x) -> !x
  %2 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%1) : (!x) -> !x
  %3 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%2) : (!x) -> !x
  %4 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%3) : (!x) -> !x
  %5 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%y) : (!x) -> !x
  %6 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%5) : (!x) -> !x
  %7 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%6) : (!x) -> !x
  %8 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%7) : (!x) -> !x
  %9 = shapejit.launch @copy affine_map<()[s0] -> (s0)> (%8) : (!x) -> !x
  %10 = shapejit.launch @add affine_map<()[s0] -> (s0)> (%4, %9) : (!x, !x) -> !x
  return %10 : !x
}
}

// -----

// An interface is one.

// expected-error @below {{has an interface that cannot be read}}
module {
gpu.module @copy__a attributes {shapejit.interface = "nothing"} {}
}
