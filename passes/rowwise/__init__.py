# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scans and sorts, as far as they are the same on all targets.

`problem` is what is asked for, `combine` are the monoids of scans, `keys` how elements are ordered.
Everything here emits ops of ``arith`` on scalars and vectors alike; how rows are spread over
threads is a matter of `shapejit.passes.cpu` and `shapejit.passes.gpu_loops`.
"""
