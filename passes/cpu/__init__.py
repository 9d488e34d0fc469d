# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Emitters of CPU kernels.

`kernel` (a function under construction), `indexing` (addresses and loops), `memory`, `scalars` and
`bodies` are what all emitters share. `micro` and `packing` serve `gemm` and `attention`; `loops`,
`rows`, `reduce` and `evaluate` serve everything else. `problems` reads ops into what the emitters
take.
"""
