// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=simt_8x64x32_s3_w1_k2_p4" | FileCheck %s
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=simt_64x64x32_s1_w1" 2>&1 | FileCheck %s --check-prefixes=STAGES
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=persistent_128x64x64_s3_w2" 2>&1 | FileCheck %s --check-prefixes=TYPE

// float32 in IEEE arithmetic: no tensor maps, no tensor cores. All threads copy; 16 bytes at once
// where address and stride allow it, else element by element.

// CHECK-LABEL: gpu.module @gemm0__simt_8x64x32_s3_w1_k2_p4
// CHECK-SAME: \22threads\22:128,
// CHECK: llvm.func @{{.*}}(%{{.*}}: !llvm.ptr<1>,
// CHECK-NOT: nvgpu.
// The first stages of a tile.
// CHECK: scf.for
// CHECK: scf.for
// CHECK: scf.if
// CHECK: cp.async.cg.shared.global [$0+0], [$1], 16, $2;
// CHECK: } else {
// CHECK: cp.async.ca.shared.global [$0+0], [$1], 4, $2;
// CHECK: cp.async.commit_group;
// A stage: await it, start a later one, multiply and add.
// CHECK: scf.for
// CHECK: cp.async.wait_group 1;
// CHECK-NEXT: gpu.barrier
// CHECK: cp.async.cg.shared.global
// CHECK: cp.async.commit_group;
// CHECK: llvm.load %{{.*}} : !llvm.ptr<3> -> vector<4xf32>
// CHECK-COUNT-128: llvm.intr.fma
// CHECK-NOT: llvm.intr.fma
// Partial sums of four parts of two CTAs meet in shared memory.
// CHECK: llvm.store %{{.*}} : vector<4xf32>, !llvm.ptr<3>
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK-COUNT-8: llvm.load %{{.*}} : !llvm.ptr<7> -> vector<4xf32>
// CHECK: st.global.v4.b32
// CHECK: nvvm.cluster.arrive

// STAGES: error: {{.*}} simt kernels have 2 stages or more
// TYPE: error: {{.*}} multiplies f32 by the schedule persistent_128x64x64_s3_w2; simt, tf32 and tf32x3 are for f32

#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
module attributes {shapejit.target = "cuda:sm_90a"} {
  shapejit.kernel @gemm0 symbols 1 (%x: tensor<?x333xf32, #shapejit.shape<[s0, 333]>>, %w: tensor<100x333xf32, #shapejit.shape<[100, 333]>>) {
    %y = shapejit.gemm over [s0, 100, 333]
        lhs(%x at #x : tensor<?x333xf32, #shapejit.shape<[s0, 333]>>)
        rhs(%w at #w : tensor<100x333xf32, #shapejit.shape<[100, 333]>>)
        -> tensor<?x100xf32, #shapejit.shape<[s0, 100]>>
    shapejit.yield %y : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>
  }
}
