// RUN: shapejit-opt %s --split-input-file --shapejit-lower-to-host --canonicalize --cse | FileCheck %s

// Without free sizes there is one bucket, on no axis, and nothing is compared.

module attributes {shapejit.target = "cuda:sm_90a"} {
shapejit.kernel @fixed symbols 0 (%x: tensor<8x8xbf16, #shapejit.shape<[8, 8]>>) {
  %0 = shapejit.gemm over [8, 8, 8]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>)
      rhs(%x at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>)
      -> tensor<8x8xbf16, #shapejit.shape<[8, 8]>>
  shapejit.yield %0 : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>
}
shapejit.dispatch @fixed by affine_map<() -> ()> [#shapejit.bucket<[], [], "only", "the only one">]
gpu.module @fixed__only attributes {shapejit.interface = "{\22entry\22:\22only\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[],\22ctas_per_sm\22:0},\22values\22:[],\22parameters\22:[],\22block\22:false,\22block_bytes\22:0,\22programmatic\22:false}"} {}
func.func @main(%x: tensor<8x8xbf16, #shapejit.shape<[8, 8]>>) -> tensor<8x8xbf16, #shapejit.shape<[8, 8]>> attributes {shapejit.arena = #shapejit.shape<[]>} {
  %0 = shapejit.launch @fixed affine_map<() -> ()> (%x) {buffers = [#shapejit.buffer<output 0>]} : (tensor<8x8xbf16, #shapejit.shape<[8, 8]>>) -> tensor<8x8xbf16, #shapejit.shape<[8, 8]>>
  return %0 : tensor<8x8xbf16, #shapejit.shape<[8, 8]>>
}
}
// CHECK-LABEL: module @shapejit_host attributes {shapejit.kernels = ["fixed__only"]
// CHECK: func.func private @fixed(%{{.*}}: !llvm.ptr, %{{.*}}: !llvm.ptr, %[[TABLE:.*]]: !llvm.ptr, %{{.*}}: !llvm.ptr) -> i32
// CHECK-NOT: arith.cmpi
// CHECK: %[[KERNEL:.*]] = llvm.load %[[TABLE]]
// CHECK: llvm.call @shapejitRtCudaLaunch(%[[KERNEL]],
// CHECK: func.func @shapejit_run

// -----

// Boxes on two axes, expressions of the kernel's symbols; a side without a bound is not compared.

module attributes {shapejit.target = "cuda:sm_90a"} {
shapejit.symbol @batch {id = 0, min = 1}
shapejit.symbol @seq {id = 1, min = 1}
shapejit.kernel @product symbols 2 (%x: tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s1]>>) {
  %0 = shapejit.gemm over [s0 * s1, s0 * s1, s1]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s1]>>)
      rhs(%x at affine_map<(d0, d1, d2) -> (d1, d2)> : tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s1]>>)
      -> tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s0 * s1]>>
  shapejit.yield %0 : tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s0 * s1]>>
}
shapejit.dispatch @product by affine_map<()[s0, s1] -> (s0 * s1, s1)> [
  #shapejit.bucket<[1, 1], [64, ?], "a", "">,
  #shapejit.bucket<[65, 1], [?, 32], "b", "">,
  #shapejit.bucket<[65, 33], [?, ?], "a", "">
]
gpu.module @product__a attributes {shapejit.interface = "{\22entry\22:\22a\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[],\22ctas_per_sm\22:0},\22values\22:[\22s0*s1\22],\22parameters\22:[],\22block\22:false,\22block_bytes\22:0,\22programmatic\22:false}"} {}
gpu.module @product__b attributes {shapejit.interface = "{\22entry\22:\22b\22,\22threads\22:128,\22shared_bytes\22:0,\22cluster\22:1,\22grid\22:{\22tiles\22:[],\22ctas_per_sm\22:0},\22values\22:[\22s1\22],\22parameters\22:[],\22block\22:false,\22block_bytes\22:0,\22programmatic\22:false}"} {}
func.func @main(%x: tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s1]>>) -> tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s0 * s1]>> attributes {shapejit.arena = #shapejit.shape<[]>} {
  %0 = shapejit.launch @product affine_map<()[s0, s1] -> (s0, s1)> (%x) {buffers = [#shapejit.buffer<output 0>]} : (tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s1]>>) -> tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s0 * s1]>>
  return %0 : tensor<?x?xbf16, #shapejit.shape<[s0 * s1, s0 * s1]>>
}
}
// CHECK-LABEL: module @shapejit_host attributes {shapejit.kernels = ["product__a", "product__b"]
// CHECK-LABEL: func.func private @product(
// CHECK: %[[S0:.*]] = arith.index_cast %arg2
// CHECK: %[[S1:.*]] = arith.index_cast %arg3
// CHECK: %[[ROWS:.*]] = arith.muli %[[S0]], %[[S1]]
// CHECK: arith.cmpi sge, %[[ROWS]]
// CHECK: arith.cmpi sge, %[[S1]]
// CHECK: arith.cmpi sle, %[[S1]]
// CHECK: arith.select
// CHECK: arith.cmpi sge, %[[ROWS]]
// CHECK: arith.cmpi sle, %[[ROWS]]
// CHECK-NOT: arith.cmpi sle
// CHECK: arith.select
// CHECK: scf.index_switch
// CHECK-LABEL: func.func @shapejit_run
