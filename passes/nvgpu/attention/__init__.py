# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels for NVIDIA GPUs.

From the outside in:

    lowering            a kernel and a variant's name to a gpu module
    choice              which variant serves which sizes; flash_choice, decode_choice: of a kind
    kinds               the kinds of kernels: tiles, flash, split
    problem             what a kernel computes
    schedule            tiles: how attention is cut; what the names of variants say
    emitter             tiles: the kernel, tiles of queries, blocks of keys
      tiles             operands in shared memory: layouts, copies, descriptors
      block             the work on a block of keys: two products, a softmax between them
      masks, softmax    from scores to weights
      exchange          partial results of warpgroups that share the keys
      output            from sums to the result
    flash               long sequences: warps with roles; flash_schedule: its names
      flash_work        which tile when
      flash_producer    loads, and stores of results
      flash_consumer    products and softmaxes, across blocks and tiles
      flash_turns       which consumer's products start when
      flash_masks       what is hidden in which block
      flash_operands    tensor maps
    ptx                 inline assembly that only attention needs
"""
