// RUN: shapejit-opt %s --shapejit-add-gpu-head=words=2048 | FileCheck %s

// What the module holds stays, in front; the largest one takes 16 KiB of words by value.
// CHECK: func.func private @other()
// CHECK: gpu.module @head_3_2048
// CHECK: llvm.byval = !llvm.array<2048 x i64>
func.func private @other()
