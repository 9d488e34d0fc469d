# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Along which stages CTAs without a cluster share K: the rule of kernels and of the cost model.

The tiles of the last, partly filled wave are shared, in as many parts as there are CTAs for, up to
what the schedule says. The *owner* of a tile adds up what the others, its *givers*, leave in
scratch memory. So that it need not wait for that, givers have fewer stages, by as many as pass
while sums are on their way.
"""

from __future__ import annotations

from typing import Final

from shapejit.passes.nvgpu.schedule import GemmSchedule

#: Products of tf32 for one of factors in two parts, see `two_parts`.
PRODUCTS: Final = 3

#: A giver has at least so many stages; with fewer a tile takes longer in parts than whole.
LEAST_STAGES: Final = 4

# From a giver's last product until its sums can be read: 2 microseconds, in cycles of tensor cores
# that reach three quarters of their peak.
_ON_THE_WAY = 2600
_WGMMA_ROWS, _WGMMA_BYTES, _ROWS_CYCLES = 64, 32, 16


def lead(schedule: GemmSchedule) -> int:
    """Stages that an owner has more than a giver, before the rest of an equal division."""
    steps = schedule.depth * schedule.element_bytes // _WGMMA_BYTES
    steps *= PRODUCTS if schedule.tf32x3 else 1
    step = max(schedule.columns / 2, _ROWS_CYCLES + schedule.columns / 4)
    return max(round(_ON_THE_WAY / (schedule.rows / _WGMMA_ROWS * steps * step)), 1)


def least_depth(schedule: GemmSchedule, parts: int) -> int:
    """Stages of K from which on tiles are shared in so many parts."""
    return lead(schedule) + LEAST_STAGES * parts
