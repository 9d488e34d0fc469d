// RUN: shapejit-opt %s --split-input-file --verify-diagnostics --shapejit-lower-to-host
!x = tensor<8xf32, #shapejit.shape<[8]>>
// expected-error @below {{some kernels take their parameters by value and some from a block; lower all of them with the same option parameters}}
module attributes {shapejit.target = "cuda:sm_90a"} {
gpu.module @copy__wide attributes {shapejit.interface = "{\22entry\22:\22a\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[],\22ctas_per_sm\22:1},\22values\22:[\228\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:true,\22block_bytes\22:64,\22programmatic\22:true}"} {}
gpu.module @copy__narrow attributes {shapejit.interface = "{\22entry\22:\22b\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[],\22ctas_per_sm\22:1},\22values\22:[\228\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:false,\22block_bytes\22:64,\22programmatic\22:true}"} {}
func.func @main(%x: !x) -> !x attributes {shapejit.arena = #shapejit.shape<[]>} {
  return %x : !x
}
}

// -----

// Three independent sizes with 29 breakpoints each: 30 x 30 x 30 cells.
!x = tensor<?xf32, #shapejit.shape<[s0]>>
!y = tensor<?xf32, #shapejit.shape<[s1]>>
!z = tensor<?xf32, #shapejit.shape<[s2]>>
module attributes {shapejit.target = "cuda:sm_90a"} {
  shapejit.symbol @s0 {id = 0, min = 1, max = 100}
  shapejit.symbol @s1 {id = 1, min = 1, max = 100}
  shapejit.symbol @s2 {id = 2, min = 1, max = 100}
shapejit.kernel @copy symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0] ins(%x at affine_map<(d0) -> (d0)> : !x) outs(affine_map<(d0) -> (d0)> : !x) {
  ^bb0(%v: f32):
    shapejit.yield %v : f32
  }
  shapejit.yield %0 : !x
}
shapejit.dispatch @copy by affine_map<()[s0] -> (s0)> [#shapejit.bucket<[1], [1], "wide", "">, #shapejit.bucket<[2], [2], "wide", "">, #shapejit.bucket<[3], [3], "wide", "">, #shapejit.bucket<[4], [4], "wide", "">, #shapejit.bucket<[5], [5], "wide", "">, #shapejit.bucket<[6], [6], "wide", "">, #shapejit.bucket<[7], [7], "wide", "">, #shapejit.bucket<[8], [8], "wide", "">, #shapejit.bucket<[9], [9], "wide", "">, #shapejit.bucket<[10], [10], "wide", "">, #shapejit.bucket<[11], [11], "wide", "">, #shapejit.bucket<[12], [12], "wide", "">, #shapejit.bucket<[13], [13], "wide", "">, #shapejit.bucket<[14], [14], "wide", "">, #shapejit.bucket<[15], [15], "wide", "">, #shapejit.bucket<[16], [16], "wide", "">, #shapejit.bucket<[17], [17], "wide", "">, #shapejit.bucket<[18], [18], "wide", "">, #shapejit.bucket<[19], [19], "wide", "">, #shapejit.bucket<[20], [20], "wide", "">, #shapejit.bucket<[21], [21], "wide", "">, #shapejit.bucket<[22], [22], "wide", "">, #shapejit.bucket<[23], [23], "wide", "">, #shapejit.bucket<[24], [24], "wide", "">, #shapejit.bucket<[25], [25], "wide", "">, #shapejit.bucket<[26], [26], "wide", "">, #shapejit.bucket<[27], [27], "wide", "">, #shapejit.bucket<[28], [28], "wide", "">, #shapejit.bucket<[29], [29], "wide", "">, #shapejit.bucket<[30], [30], "wide", "">]
gpu.module @copy__wide attributes {shapejit.interface = "{\22entry\22:\22copy\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[],\22ctas_per_sm\22:1},\22values\22:[\22s0\22],\22parameters\22:[{\22kind\22:\22pointer\22,\22operand\22:0,\22offset\22:0}],\22block\22:true,\22block_bytes\22:64,\22programmatic\22:true}"} {}
// expected-error @below {{this program has buckets that cut its sizes into 27000 cells, of which there may be 16384; give shapejit-choose-buckets a smaller max-regions}}
func.func @main(%x: !x, %y: !y, %z: !z) -> (!x, !y, !z) attributes {shapejit.arena = #shapejit.shape<[]>} {
  %0 = shapejit.launch @copy affine_map<()[s0, s1, s2] -> (s0)> (%x) {buffers = [#shapejit.buffer<output 0>]} : (!x) -> !x
  %1 = shapejit.launch @copy affine_map<()[s0, s1, s2] -> (s1)> (%y) {buffers = [#shapejit.buffer<output 1>]} : (!y) -> !y
  %2 = shapejit.launch @copy affine_map<()[s0, s1, s2] -> (s2)> (%z) {buffers = [#shapejit.buffer<output 2>]} : (!z) -> !z
  return %0, %1, %2 : !x, !y, !z
}
}
