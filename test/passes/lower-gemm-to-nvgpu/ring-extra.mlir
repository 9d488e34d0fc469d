// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=persistent_128x128x64_s4_w2" | FileCheck %s
// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=swapped_128x48x64_s4_w2" | FileCheck %s --check-prefix=SWAPPED
// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=persistent_128x128x64_s4_w2_stream" | FileCheck %s --check-prefix=SHARED

// A bias, and a residual that comes through the stages of the ring.

// CHECK-LABEL: gpu.module @gemm0__persistent_128x128x64_s4_w2
// A box of the residual is 64 rows by 64 columns.
// CHECK-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:3,\22element\22:\22bf16\22,\22dims\22:[2,1],\22strides\22:[2],\22box\22:[64,64],
// The producer.
// CHECK: nvvm.setmaxregister decrease
// CHECK: scf.for
// CHECK: scf.for
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// Two chunks of two consumers are brought to the cache while a stage is loaded ..
// CHECK-COUNT-4: nvvm.cp.async.bulk.tensor.prefetch
// .. and to the slot after the last stage, once that is empty.
// CHECK: nvgpu.mbarrier.try_wait.parity
// CHECK: arith.constant 32768 : index
// CHECK: nvgpu.mbarrier.arrive.expect_tx
// CHECK-COUNT-4: nvgpu.tma.async.load {{.*}} memref<64x64xbf16, 3>
// CHECK-NOT: nvgpu.tma.async.load
// The consumers read the second chunk before the first one is stored, and release the slot after it.
// CHECK: nvvm.setmaxregister increase
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// CHECK: nvgpu.mbarrier.arrive
// CHECK: nvgpu.mbarrier.try_wait.parity
// CHECK-COUNT-8: ldmatrix.sync.aligned.m8n8.x4.shared.b16
// CHECK: nvvm.stmatrix
// CHECK: nvgpu.tma.async.store
// CHECK: nvgpu.mbarrier.arrive
// CHECK: nvgpu.tma.async.store
// CHECK-NOT: ldmatrix

// The rows of tiles are columns of the result: matrices of 8 x 8 are turned as they are loaded.
// SWAPPED-LABEL: gpu.module @gemm0__swapped_128x48x64_s4_w2
// SWAPPED-SAME: {\22kind\22:\22tensor_map\22,\22operand\22:3,\22element\22:\22bf16\22,\22dims\22:[1,2],\22strides\22:[1],\22box\22:[64,32],
// SWAPPED: nvvm.setmaxregister increase
// SWAPPED-COUNT-3: ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16

// Where CTAs share tiles, the consumers load it.
// SHARED-LABEL: gpu.module @gemm0__persistent_128x128x64_s4_w2_stream
// SHARED-NOT: \22kind\22:\22tensor_map\22,\22operand\22:3
// SHARED: llvm.func
// SHARED-NOT: ldmatrix
#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
#n = affine_map<(d0, d1) -> (d1)>
#mn = affine_map<(d0, d1) -> (d0, d1)>
module attributes {shapejit.target = "cuda:sm_90a:h200"} {
  shapejit.kernel @gemm0 symbols 1 (%x: tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>, %w: tensor<1024x4096xbf16, #shapejit.shape<[1024, 4096]>>, %b: tensor<1024xbf16, #shapejit.shape<[1024]>>, %r: tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>) {
    %y = shapejit.gemm over [s0, 1024, 4096]
      lhs(%x at #x : tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>)
      rhs(%w at #w : tensor<1024x4096xbf16, #shapejit.shape<[1024, 4096]>>)
      extras(%b at #n : tensor<1024xbf16, #shapejit.shape<[1024]>>, %r at #mn : tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>)
      epilogue {
      ^bb0(%a: f32, %bias: bf16, %residual: bf16):
        %0 = arith.extf %bias : bf16 to f32
        %1 = arith.addf %a, %0 : f32
        %2 = arith.extf %residual : bf16 to f32
        %3 = arith.addf %1, %2 : f32
        %4 = arith.truncf %3 : f32 to bf16
        shapejit.yield %4 : bf16
      } -> tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>
    shapejit.yield %y : tensor<?x1024xbf16, #shapejit.shape<[s0, 1024]>>
  }
}
