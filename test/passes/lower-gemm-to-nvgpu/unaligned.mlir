// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=unaligned_64x64x64_s3_w1" | FileCheck %s
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=unaligned_64x64x64_s2_w1" 2>&1 | FileCheck %s --check-prefixes=STAGES
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=unaligned_64x64x64_s3_w1_c2" 2>&1 | FileCheck %s --check-prefixes=CLUSTER
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=persistent_128x64x64_s3_w2" 2>&1 | FileCheck %s --check-prefixes=MAPS

// Rows of 333 elements: no tensor map describes them. All four warps load, by address; how wide is
// decided for each tile, from its address, its stride and the rows' length.

// CHECK-LABEL: gpu.module @gemm0__unaligned_64x64x64_s3_w1
// CHECK-SAME: \22threads\22:128,
// CHECK: llvm.func @{{.*}}(%{{.*}}: !llvm.ptr<1>,
// CHECK-NOT: nvgpu.
// CHECK: scf.for
// CHECK: scf.if
// CHECK: ld.global.v2.b32
// CHECK: } else {
// CHECK: scf.if
// CHECK: ld.global.b32
// CHECK: } else {
// CHECK: ld.global.b16
// CHECK: mov.b32 $0, {$1, $2};
// Registers to the first stage, a fence for the tensor cores, a barrier; the next tile is on its way
// when the product starts.
// CHECK: llvm.store %{{.*}} : vector<2xi32>, !llvm.ptr<3>
// CHECK: nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>
// CHECK-NEXT: gpu.barrier
// CHECK: ld.global.v2.b32
// CHECK-COUNT-4: nvvm.wgmma.mma_async
// CHECK: scf.for
// CHECK: nvvm.wgmma.wait.group.sync.aligned 1
// CHECK: llvm.store %{{.*}} : vector<2xi32>, !llvm.ptr<3>
// CHECK: nvvm.fence.proxy
// CHECK-NEXT: gpu.barrier
// CHECK: ld.global.v2.b32
// CHECK-COUNT-4: nvvm.wgmma.mma_async
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// CHECK-NEXT: gpu.barrier
// Nothing is known of the result's address either: one element a store.
// CHECK: llvm.store %{{.*}} {alignment = 2 : i64} : i16, !llvm.ptr<1>
// CHECK-NOT: nvgpu.
// CHECK: llvm.return

// STAGES: error: {{.*}} 3 stages or more, 64 deep
// CLUSTER: error: {{.*}} unaligned kernels share no tiles
// MAPS: error: {{.*}} stride of 333 elements; TMA needs multiples of 8. Use a schedule of the family unaligned

#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d1, d2)>
shapejit.kernel @gemm0 symbols 1 (%x: tensor<?x333xbf16, #shapejit.shape<[s0, 333]>>, %w: tensor<77x333xbf16, #shapejit.shape<[77, 333]>>) {
  %y = shapejit.gemm over [s0, 77, 333]
      lhs(%x at #lhs : tensor<?x333xbf16, #shapejit.shape<[s0, 333]>>)
      rhs(%w at #rhs : tensor<77x333xbf16, #shapejit.shape<[77, 333]>>)
      -> tensor<?x77xbf16, #shapejit.shape<[s0, 77]>>
  shapejit.yield %y : tensor<?x77xbf16, #shapejit.shape<[s0, 77]>>
}
