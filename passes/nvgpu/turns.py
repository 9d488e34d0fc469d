# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Two consumer warpgroups that take turns at multiplying.

Each has a named barrier of both warpgroups' threads: the owner waits at it, the other one arrives
when it has seen all stages of its own tile. Who has the last tile gives no turn, so that no barrier
is left half full.
"""

from __future__ import annotations

from mlir.dialects import nvvm

from shapejit.passes.nvgpu.builder import Num, Value, add, compare, sub, value, when
from shapejit.passes.nvgpu.target import WARPGROUP

_THREADS = 2 * WARPGROUP


class Turns:
    """The turns of two warpgroups, 0 and 1.

    Args:
        me: the thread's warpgroup, uniform.
        first: number of the first of two named barriers that nobody else uses.
    """

    def __init__(self, me: Value, first: int) -> None:
        self._me = me
        self._mine, self._other = add(me, first), sub(first + 1, me)

    def _arrive(self, barrier: Num) -> None:
        nvvm.BarrierArriveOp(value(_THREADS), barrierId=value(barrier))

    def begin(self) -> None:
        """Gives warpgroup 0 the first turn; called by both, if there is a tile."""
        with when(compare("eq", self._me, 1)):
            self._arrive(self._other)

    def take(self) -> None:
        """Waits until it is this warpgroup's turn."""
        nvvm.BarrierOp(None, barrierId=value(self._mine), numberOfThreads=value(_THREADS))

    def give(self) -> None:
        """Gives the other warpgroup the turn, if it has a tile to come."""
        self._arrive(self._other)
