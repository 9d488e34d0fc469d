// RUN: shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=persistent_64x64x32_s4_w1_tf32x3" | FileCheck %s
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=persistent_64x64x16_s4_w1_tf32x3" 2>&1 | FileCheck %s --check-prefixes=DEPTH
// RUN: not shapejit-opt %s --shapejit-lower-gemm-to-nvgpu="schedule=persistent_128x64x32_s4_w2_turns_tf32x3" 2>&1 | FileCheck %s --check-prefixes=TURNS

// float32 in two parts of tf32. All bits are loaded: TMA does not round.

// CHECK-LABEL: gpu.module @gemm0__persistent_64x64x32_s4_w1_tf32x3
// CHECK-COUNT-2: \22element\22:\22f32\22
// CHECK-NOT: \22element\22:\22tf32\22
// The first stage: consumers round its columns, and write what is left beside them.
// CHECK: nvgpu.mbarrier.try_wait.parity
// CHECK: nvgpu.mbarrier.try_wait.parity
// CHECK: ld.shared.v4.b32
// CHECK: arith.subf
// CHECK: st.shared.v4.b32
// CHECK: st.shared.v4.b32
// CHECK: nvvm.fence.proxy
// CHECK: nvvm.barrier
// Its rows.
// CHECK-COUNT-16: ld.shared.b32
// A stage: start its products, part the one after it, await them, add them up.
// CHECK: scf.for
// CHECK: wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32
// CHECK-NOT: wgmma.wait_group
// CHECK: st.shared.v4.b32
// CHECK: nvvm.fence.proxy
// CHECK-COUNT-16: ld.shared.b32
// CHECK: wgmma.wait_group.sync.aligned 0;
// CHECK: nvvm.barrier
// CHECK-COUNT-32: arith.addf
// CHECK: scf.yield
// The last one.
// CHECK: wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32
// CHECK: wgmma.wait_group.sync.aligned 0;
// CHECK-COUNT-32: arith.addf

// DEPTH: error: {{.*}} factors in two parts are 32 deep
// TURNS: error: {{.*}} takes turns, which consumers of factors in two parts do not

#x = affine_map<(d0, d1, d2) -> (d0, d2)>
#w = affine_map<(d0, d1, d2) -> (d1, d2)>
module attributes {shapejit.target = "cuda:sm_90a"} {
  shapejit.kernel @gemm0 symbols 1 (%x: tensor<?x320xf32, #shapejit.shape<[s0, 320]>>, %w: tensor<100x320xf32, #shapejit.shape<[100, 320]>>) {
    %y = shapejit.gemm over [s0, 100, 320]
        lhs(%x at #x : tensor<?x320xf32, #shapejit.shape<[s0, 320]>>)
        rhs(%w at #w : tensor<100x320xf32, #shapejit.shape<[100, 320]>>)
        -> tensor<?x100xf32, #shapejit.shape<[s0, 100]>>
    shapejit.yield %y : tensor<?x100xf32, #shapejit.shape<[s0, 100]>>
  }
}
