# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernel emitters for NVIDIA GPUs on the NVGPU dialect, one module a concern.

From the outside in:

    lowering            a kernel and a schedule to a gpu module; request, errors, target
    schedule            how a product is cut into tiles; what the names of variants say
    problem             what a kernel computes: strides, tensor maps
    persistent, small_m, unaligned      the families
      scheduling, stream, turns         which tile when, and who shares it
      mainloop, operands, gather        tiles into shared memory, products
      cluster, occupancy                partial sums between CTAs; how many CTAs fit
      epilogue, extras, bodies, stores  from sums to the result; depthless where K is 0
    function, shared, ring, tma, wgmma, memory, elementary   what the hardware has
    builder, ptx        MLIR's builders; the inline assembly
    pipeline            to the LLVM and NVVM dialects

Emitters are written as the kernel runs: a function that emits a loop calls what emits its body.
What a kernel needs of its caller (sizes, addresses, tensor maps) is asked for where it is needed,
see `function`.
"""
