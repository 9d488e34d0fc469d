# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the family ``simt`` costs: registers, shared memory, cycles of a stage. Stated, not fitted.

A multiprocessor does 128 multiply-adds a cycle (67 TFLOP/s on an H200 at 1.98 GHz), and moves 128
bytes a cycle out of shared memory. A warp that reads 16 bytes a lane, most of them broadcast, takes
two of these cycles.
"""

from __future__ import annotations

from shapejit.passes.nvgpu.simt.tiling import QUAD, WARP, Tiling

_ELEMENT_BYTES = 4
# Of a CTA, beside its dynamic shared memory: what the system takes, and what is static.
_OTHER_BYTES = 2048

_MULTIPROCESSOR_REGISTERS = 65536
# Of a thread, beside its sums and what it multiplies: addresses, limits, counters.
_OTHER_REGISTERS = 40
# Sums of a thread. Beside more there are no registers for what it multiplies and where that is.
_MOST_SUMS = 64
# More CTAs would not have more bytes on their way.
_MOST_CTAS = 5

_ADDS_A_CYCLE = 128
_READ_CYCLES = 2
# What is left of the peak: barriers, addresses and copies take the rest.
_EFFICIENCY = 0.9
# Of multiply-adds and loads from shared memory, the share of the shorter that is seen in the end.
_INTERFERENCE = 0.3
#: With fewer warps on a multiprocessor multiply-adds wait for loads: so many, and so much longer.
ENOUGH_WARPS, FEW_WARPS_FACTOR = 8, 1.25


def registers(tiling: Tiling, weights: int) -> int | None:
    """Registers of a thread; None if it has more sums than it can have."""
    sums = tiling.sums * weights
    factors = (tiling.thread_rows + tiling.thread_columns) * QUAD
    if sums > _MOST_SUMS:
        return None
    return -(-(sums + factors + _OTHER_REGISTERS) // 8) * 8


def partial_bytes(tiling: Tiling, weights: int, split: int) -> int:
    """Shared memory that partial sums take in a CTA.

    Args:
        tiling: of the CTA.
        weights: that it multiplies by.
        split: CTAs that share K.
    """
    if tiling.parts * split == 1:
        return 0
    return tiling.parts * weights * tiling.rows * tiling.columns * _ELEMENT_BYTES


def stage_bytes(tiling: Tiling, weights: int) -> int:
    """Shared memory of a stage."""
    return (tiling.rows + weights * tiling.columns) * tiling.depth * _ELEMENT_BYTES


def resident_ctas(tiling: Tiling, weights: int, shared_bytes: int, room: int) -> int:
    """CTAs on a multiprocessor, as registers and shared memory allow; 0 if not even one fits.

    Args:
        tiling: of a CTA.
        weights: that it multiplies by.
        shared_bytes: dynamic shared memory of a CTA.
        room: shared memory of a multiprocessor.
    """
    each = registers(tiling, weights)
    if each is None:
        return 0
    most = _MULTIPROCESSOR_REGISTERS // (each * tiling.threads)
    return min(most, room // (shared_bytes + _OTHER_BYTES), _MOST_CTAS)


def stage_cycles(tiling: Tiling, weights: int) -> float:
    """Cycles of a multiprocessor for a stage of one CTA, if enough warps run."""
    adds = tiling.rows * tiling.columns * tiling.depth * weights / _ADDS_A_CYCLE
    # Loads of a warp for each four elements of K.
    loads = tiling.thread_rows + tiling.thread_columns * weights
    reads = float(loads * tiling.steps * (tiling.threads // WARP) * _READ_CYCLES)
    shorter, longer = sorted((adds / _EFFICIENCY, reads))
    return longer + _INTERFERENCE * shorter * shorter / longer
