// RUN: shapejit-opt %s --shapejit-add-gpu-head | FileCheck %s
// RUN: shapejit-opt %s --shapejit-add-gpu-head=words=32 | FileCheck %s --check-prefix=SMALL

// A kernel of one warp for each record of a table; the words of a call come by value.
// CHECK-LABEL: module attributes {shapejit.target = "cuda:sm_90a"}
// CHECK: gpu.module @head_3_128 [#nvvm.target<O = 3, chip = "sm_90a", features = "+ptx83">]
// CHECK-SAME: shapejit.interface = "{{.*}}head_3_128
// CHECK: llvm.func @head_3_128(%{{[a-z0-9]+}}: !llvm.ptr<1>, %{{[a-z0-9]+}}: i64, %[[NOTHING:[a-z0-9]+]]: i64, %[[COUNT:[a-z0-9]+]]: i32,
// CHECK-SAME: %[[WORDS:[a-z0-9]+]]: !llvm.ptr {llvm.align = 8 : i64, llvm.byval = !llvm.array<128 x i64>, nvvm.grid_constant})
// CHECK: %[[INSIDE:.*]] = arith.cmpi ult, %{{.*}}, %[[COUNT]]
// CHECK: scf.if %[[INSIDE]]
// A record: four numbers, and a slot for each lane, which holds a value or the number of a word.
// CHECK: llvm.load %{{.*}} {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xi32>
// CHECK: llvm.load %{{.*}} : !llvm.ptr<1> -> i64
// CHECK: llvm.getelementptr %[[WORDS]]
// Of a tensor map: its address, or that of zeros if it is empty.
// CHECK: %[[EMPTY:.*]] = nvvm.vote.sync any
// CHECK: %[[ADDRESS:.*]] = arith.select %[[EMPTY]], %[[NOTHING]], %{{.*}} : i64
// CHECK: tensormap.replace.tile.global_address{{.*}} %[[ADDRESS]]
// CHECK-COUNT-5: tensormap.replace.tile.global_dim
// Lanes change strides in turn, as they share a word.
// CHECK: tensormap.replace.tile.global_stride{{.*}}, 0, $1
// CHECK: nvvm.bar.warp.sync
// CHECK: tensormap.replace.tile.global_stride{{.*}}, 1, $1
// CHECK: nvvm.bar.warp.sync
// CHECK: tensormap.replace.tile.global_stride{{.*}}, 2, $1
// CHECK: nvvm.bar.warp.sync
// CHECK: tensormap.replace.tile.global_stride{{.*}}, 3, $1
// CHECK: nvvm.fence.proxy.release <gpu>
// Of anything else, 4 or 8 bytes.
// CHECK: llvm.store %{{.*}}, %{{.*}} : i32, !llvm.ptr<1>
// CHECK: llvm.store %{{.*}}, %{{.*}} : i64, !llvm.ptr<1>

// SMALL: llvm.func @head_3_32({{.*}}llvm.byval = !llvm.array<32 x i64>
module attributes {shapejit.target = "cuda:sm_90a"} {
}
