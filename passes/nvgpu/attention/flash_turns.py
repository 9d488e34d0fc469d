# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Consumers of a flash kernel that take turns at starting products.

So one has its softmax while the tensor cores work for another. Each has a named barrier of its own
threads and of those of the consumer before it, who arrives there when its products are started. All
have as many turns.
"""

from __future__ import annotations

from mlir.dialects import nvvm

from shapejit.passes.nvgpu.builder import Num, Value, add, compare, select, value, when
from shapejit.passes.nvgpu.target import WARPGROUP

_THREADS = 2 * WARPGROUP
_FIRST = 1  # named barrier; the barrier of the CTA is number 0


class FlashTurns:
    """The turns of consumers; none if there is but one.

    Args:
        me: the thread's warpgroup, uniform.
        consumers: how many there are.
    """

    def __init__(self, me: Value, consumers: int) -> None:
        self._me, self._count = me, consumers
        if consumers > 1:
            after = add(me, 1)
            following = select(compare("eq", after, consumers), 0, after)
            self._mine, self._next = add(me, _FIRST), add(following, _FIRST)

    def begin(self) -> None:
        """Gives the first consumer its first turn; called by all who have a tile."""
        if self._count > 1:
            with when(compare("eq", self._me, self._count - 1)):
                self._arrive(_FIRST)

    def take(self) -> None:
        """Waits until it is this consumer's turn."""
        if self._count > 1:
            nvvm.BarrierOp(None, barrierId=self._mine, numberOfThreads=value(_THREADS))

    def give(self) -> None:
        """Gives the next consumer its turn."""
        if self._count > 1:
            self._arrive(self._next)

    def end(self) -> None:
        """Takes the turn that nobody needs any more, so that no barrier is left half full."""
        if self._count > 1:
            with when(compare("eq", self._me, 0)):
                self.take()

    @staticmethod
    def _arrive(barrier: Num) -> None:
        nvvm.BarrierArriveOp(value(_THREADS), barrierId=value(barrier))
