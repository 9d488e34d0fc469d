# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels for NVIDIA GPUs.

From the outside in:

    lowering            a kernel and a variant's name to a gpu module
    choice              which variant serves which sizes
    schedule            how attention is cut into tiles; what the names of variants say
    problem             what a kernel computes
    emitter             the kernel: tiles of queries, blocks of keys
      tiles             operands in shared memory: layouts, copies, descriptors
      block             the work on a block of keys: two products, a softmax between them
      masks, softmax    from scores to weights
      exchange          partial results of warpgroups that share the keys
      output            from sums to the result
    ptx                 inline assembly that only attention needs
"""
