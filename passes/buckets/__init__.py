# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule serves which sizes: the cost model, partitions of sizes, lookup tables."""
