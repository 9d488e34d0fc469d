# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums of shared tiles on their way from cluster to cluster, through scratch memory.

See `scheduling.SharedTiles` and `splitting.SplitTiles` for who computes what. A CTA writes at most
one partial sum a launch, so a slot a CTA is enough; the flag of each consumer warpgroup says that
its part is there. For the same reason a flag can be lowered as soon as it was seen.
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
        consumers: warpgroups of a CTA with sums.
        registers: sums of a thread, a multiple of 4.
        spare: registers of a thread beside its sums, for those that are being read.
    """

    def __init__(
        self,
        function: KernelFunction,
        threads: Threads,
        units: Units,
        consumers: int,
        registers: int,
        spare: int,
    ) -> None:
        self._threads, self._units, self._spare = threads, units, spare
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

    def _await(self, units: Sequence[Num]) -> None:
        """Waits until the sums of some clusters are there; their flags are down again then."""
        with when(self._leader):
            for flag in map(self._flag, units):
                ptx.await_flag(flag)
                ptx.lower_flag(flag)
        self._synchronize()

    def gather(self, units: Sequence[Num], sums: Sequence[Value]) -> list[Value]:
        """Adds the sums of some clusters, in their order.

        While a group of them is added, the next one is on its way.
        """
        self._await(units)
        addresses = [self._sums(unit) for unit in units]
        quads = range(len(sums) // 4)
        each = max(self._spare // (2 * 4 * len(units)), 1)
        groups = [quads[first : first + each] for first in quads[::each]]

        def load(group: Sequence[int]) -> list[list[list[Value]]]:
            return [
                [ptx.load_quad(address, number * _QUAD_BYTES) for number in group]
                for address in addresses
            ]

        totals = list(sums)
        coming = load(groups[0])
        for number, group in enumerate(groups):
            came, coming = coming, load(groups[number + 1]) if number + 1 < len(groups) else []
            for part in came:
                for quad, values in zip(group, part, strict=True):
                    here = slice(4 * quad, 4 * quad + 4)
                    totals[here] = map(arith.addf, totals[here], values)
        return totals

    def gather_all(self, first: Num, end: Num, sums: Sequence[Value]) -> list[Value]:
        """Adds the sums of the clusters from one to another, in their order."""
        with loop(first, end, 1, list(sums)) as parts:
            assert parts.index is not None
            parts.next = self.gather([parts.index], parts.carried)
        return parts.results
