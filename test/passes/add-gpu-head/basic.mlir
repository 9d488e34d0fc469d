// RUN: shapejit-opt %s --shapejit-add-gpu-head | FileCheck %s
// RUN: shapejit-opt %s --shapejit-add-gpu-head=words=32 | FileCheck %s --check-prefix=SMALL

// A kernel of one thread for each record of a table; the words of a call come by value.
// CHECK-LABEL: module attributes {shapejit.target = "cuda:sm_90a"}
// CHECK: gpu.module @head_128 [#nvvm.target<O = 3, chip = "sm_90a", features = "+ptx83">]
// CHECK-SAME: shapejit.interface = "{{.*}}head_128
// CHECK: llvm.func @head_128(%{{[a-z0-9]+}}: !llvm.ptr<1>, %{{[a-z0-9]+}}: i64, %[[NOTHING:[a-z0-9]+]]: i64, %[[COUNT:[a-z0-9]+]]: i32,
// CHECK-SAME: %[[WORDS:[a-z0-9]+]]: !llvm.ptr {llvm.align = 8 : i64, llvm.byval = !llvm.array<128 x i64>, nvvm.grid_constant})
// CHECK: %[[INSIDE:.*]] = arith.cmpi ult, %{{.*}}, %[[COUNT]]
// CHECK: scf.if %[[INSIDE]]
// A record: four numbers, then what each slot stands for.
// CHECK: llvm.load %{{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xi32>
// CHECK: llvm.load %{{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<2xi64>
// CHECK: llvm.getelementptr %[[WORDS]]
// Of a tensor map: its address, or that of zeros if it is empty.
// CHECK: %[[ADDRESS:.*]] = arith.select %{{.*}}, %[[NOTHING]], %{{.*}} : i64
// CHECK: tensormap.replace.tile.global_address{{.*}} %[[ADDRESS]]
// CHECK-COUNT-5: tensormap.replace.tile.global_dim
// CHECK-COUNT-4: tensormap.replace.tile.global_stride
// CHECK: nvvm.fence.proxy.release <gpu>
// Of anything else, 4 or 8 bytes.
// CHECK: llvm.store %{{.*}}, %{{.*}} : i32, !llvm.ptr<1>
// CHECK: llvm.store %{{.*}}, %{{.*}} : i64, !llvm.ptr<1>

// SMALL: llvm.func @head_32({{.*}}llvm.byval = !llvm.array<32 x i64>
module attributes {shapejit.target = "cuda:sm_90a"} {
}
