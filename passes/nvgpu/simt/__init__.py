# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of float32 on the CUDA cores, in IEEE arithmetic: the family ``simt``.

Why: tensor cores take factors of 11 bits (tf32), and as tensor maps can read them. Who asks for
float32 gets fused multiply-adds here where there are no such maps, or so few rows that reading the
weights takes all of the time; else `two_parts`.

    tiling      which thread has which sums of a tile; places: as the kernel computes it
    copies      tiles from global into shared memory, of any strides and alignment
    product     shared memory into registers; multiply-adds
    reduction   partial sums of threads and CTAs that share K
    output      the epilogue and the stores, four columns at a time
    cost        what `shapejit-choose-buckets` knows of the family
    emitter     the kernel
    ptx         the inline assembly
"""
