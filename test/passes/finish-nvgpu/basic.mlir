// RUN: shapejit-opt %s --shapejit-finish-nvgpu | FileCheck %s

// Dynamic shared memory of every gpu module; nothing else.

// CHECK: gpu.module @a
// CHECK: llvm.mlir.global external @__dynamic_shmem__0() {addr_space = 3 : i32, alignment = 1024 : i64} : !llvm.array<0 x i8>
// CHECK: llvm.mlir.global internal @__mbarrier() {addr_space = 3 : i32} : !llvm.array<4 x i64>
gpu.module @a {
  llvm.mlir.global internal @__dynamic_shmem__0() {addr_space = 3 : i32, alignment = 16 : i64} : !llvm.array<0 x i8>
  llvm.mlir.global internal @__mbarrier() {addr_space = 3 : i32} : !llvm.array<4 x i64>
}

// CHECK: gpu.module @b
// CHECK: llvm.mlir.global external @__dynamic_shmem__3() {addr_space = 3 : i32, alignment = 1024 : i64}
gpu.module @b {
  llvm.mlir.global internal @__dynamic_shmem__3() {addr_space = 3 : i32, alignment = 16 : i64} : !llvm.array<0 x i8>
}

// CHECK: llvm.mlir.global internal @__dynamic_shmem__0() {addr_space = 3 : i32, alignment = 16 : i64}
llvm.mlir.global internal @__dynamic_shmem__0() {addr_space = 3 : i32, alignment = 16 : i64} : !llvm.array<0 x i8>
