// Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// C++ cannot call a function with a number of arguments that is known at run time only, hence the
// assembly (System V calling convention of x86-64).

#include "Microtask.h"

#ifndef __x86_64__
#error "the call of a microtask is written for x86-64"
#endif

using namespace shapejit::rt;

// void shapejitRtInvoke(Microtask, int32_t *, int32_t *, int64_t count, void *const *arguments)
// Arguments beyond the fourth go to the stack, at its 16-byte aligned end.
asm(R"(
  .text
  .p2align 4
  .hidden shapejitRtInvoke
  .globl shapejitRtInvoke
  .type shapejitRtInvoke, @function
shapejitRtInvoke:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  movq %rdi, %r11
  movq %rsi, %rdi
  movq %rdx, %rsi
  movq %r8, %r10
  subq $4, %rcx
  jle 2f
  leaq (,%rcx,8), %rax
  subq %rax, %rsp
  andq $-16, %rsp
1:
  movq 24(%r10,%rcx,8), %rax
  movq %rax, -8(%rsp,%rcx,8)
  decq %rcx
  jnz 1b
2:
  movq (%r10), %rdx
  movq 8(%r10), %rcx
  movq 16(%r10), %r8
  movq 24(%r10), %r9
  callq *%r11
  leave
  .cfi_def_cfa %rsp, 8
  retq
  .cfi_endproc
  .size shapejitRtInvoke, . - shapejitRtInvoke
)");

extern "C" void shapejitRtInvoke(Microtask, int32_t *, int32_t *, int64_t, void *const *);

void Task::operator()(int32_t thread) const {
  int32_t globalId = thread, boundId = thread;
  shapejitRtInvoke(function, &globalId, &boundId, count, arguments);
}
