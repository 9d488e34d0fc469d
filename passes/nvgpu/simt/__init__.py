# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of float32 on the CUDA cores, in IEEE arithmetic: the family ``simt``.

Why: tensor cores round the factors of a float32 product to 11 bits (tf32). Who asks for float32,
and did not allow that, gets fused multiply-adds of float32.

    tiling      which thread has which sums of a tile; places: as the kernel computes it
    copies      tiles from global into shared memory, of any strides and alignment
    product     shared memory into registers; multiply-adds
    reduction   partial sums of threads and CTAs that share K
    output      the epilogue and the stores, four columns at a time
    cost        what `shapejit-choose-buckets` knows of the family
    emitter     the kernel
    ptx         the inline assembly
"""
