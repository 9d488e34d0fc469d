# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A simulated Hopper GPU: runs emitted kernels with no device, slowly, checking what they do.

It executes a ``gpu.module`` as the passes leave it, before LLVM. It knows the memory model well
enough to tell a missing wait, fence or barrier (in some of the random orders it tries), not timing.
"""
