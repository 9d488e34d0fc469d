# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums of shared tiles on their way from cluster to cluster, through scratch memory.

See `scheduling.SharedTiles` for who computes what. A CTA writes at most one partial sum a launch,
so a slot a CTA is enough; the flag of each consumer warpgroup says that its part is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir.dialects import arith, llvm, nvvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    i64,
    loop,
    mul,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.function import KernelFunction, Threads, Units
from shapejit.passes.nvgpu.scheduling import Segment, SharedTiles
from shapejit.passes.nvgpu.target import WARPGROUP

# Flags, one for each consumer of each CTA, at the start of scratch memory: enough for 340 CTAs of
# three consumers, one CTA a multiprocessor.
_FLAG_BYTES = 4096
_QUAD_BYTES = 16 * WARPGROUP  # four f32 of every thread


class PartialSums:
    """The exchange.

    Args:
        function: the kernel.
        threads, units: where the thread and its CTA are.
        work: how tiles are shared.
        consumers: warpgroups of a CTA with sums.
        registers: sums of a thread, a multiple of 4.
    """

    def __init__(
        self,
        function: KernelFunction,
        threads: Threads,
        units: Units,
        work: SharedTiles,
        consumers: int,
        registers: int,
    ) -> None:
        self._threads, self._units, self._work = threads, units, work
        self._consumers, self._cluster = consumers, function.cluster
        self._part_bytes = registers * 4 * WARPGROUP
        memory = function.workspace(consumers * self._part_bytes, _FLAG_BYTES)
        self._flags = llvm.ptrtoint(i64(), memory)
        self._leader = compare("eq", and_(threads.thread, WARPGROUP - 1), 0)

    def _part(self, unit: Num) -> Num:
        """The number of a consumer's part, among those of all CTAs."""
        cta = add(mul(unit, self._cluster), self._units.rank)
        return add(mul(cta, self._consumers), self._threads.warpgroup)

    def _flag(self, unit: Num) -> Value:
        return add(self._flags, wide(mul(self._part(unit), 4)))

    def _sums(self, unit: Num) -> Value:
        """The address of this thread's first four sums; those of its neighbours come first."""
        lane = wide(mul(and_(self._threads.thread, WARPGROUP - 1), 16))
        part = mul(wide(self._part(unit)), self._part_bytes)
        return add(self._flags, add(add(part, lane), _FLAG_BYTES))

    def _synchronize(self) -> None:
        nvvm.BarrierOp(
            None, barrierId=add(self._threads.warpgroup, 1), numberOfThreads=value(WARPGROUP)
        )

    def give(self, sums: Sequence[Value]) -> None:
        """Leaves the sums of a later part of a tile for the cluster that has its start."""
        address = self._sums(self._units.unit)
        for number in range(len(sums) // 4):
            ptx.store_quad(address, number * _QUAD_BYTES, sums[4 * number : 4 * number + 4])
        self._synchronize()
        with when(self._leader):
            ptx.raise_flag(self._flag(self._units.unit))

    def gather(self, segment: Segment, sums: Sequence[Value]) -> list[Value]:
        """Adds the sums of all later parts of a tile, in order."""
        first = add(self._units.unit, 1)
        with loop(first, self._work.end_of(segment), 1, list(sums)) as parts:
            with when(self._leader):
                ptx.await_flag(self._flag(parts.index))
            self._synchronize()
            totals: list[Value] = []
            address = self._sums(parts.index)
            for number in range(len(sums) // 4):
                quad = parts.carried[4 * number : 4 * number + 4]
                totals += map(arith.addf, quad, ptx.load_quad(address, number * _QUAD_BYTES))
            self._synchronize()
            with when(self._leader):
                ptx.lower_flag(self._flag(parts.index))
            parts.next = totals
        return parts.results
