# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sorts of rows, and heads of them.

Records (see `shapejit.passes.rowwise.keys`) are sorted in place of elements, and elements are
fetched by their places in the end. There are three ways:

- Rows that fit are sorted in shared memory: a warp, a CTA, or a cluster a row.
- All of a longer row is sorted in the memory of its results: in that of the places, which have 8
  bytes as records do, and for wide elements that of the values too. What stays within as many
  records as fit is done in shared memory.
- The `heads` of longer rows are collected in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir.dialects import gpu

from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.heads import Collector, head_capacity
from shapejit.passes.gpu_loops.networks import GlobalRecords, Network, Records, Steps, bits_of
from shapejit.passes.gpu_loops.problem import Indices
from shapejit.passes.gpu_loops.row_elements import RowElements
from shapejit.passes.gpu_loops.row_ops import Sort
from shapejit.passes.gpu_loops.schedule import WARP, LoopSchedule
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    ceildiv,
    i64,
    loop,
    mul,
    sub,
    umin,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.symbolic import Expr, product


def check_sort(phase: Sort, schedule: LoopSchedule) -> None:
    """Refuses a schedule that a sort cannot have.

    Raises:
        LoweringError: it cannot.
    """
    capacity = sort_capacity(phase, schedule)
    if capacity & (capacity - 1):
        raise LoweringError(f"sorts {capacity} records at once with this schedule; a power of 2 is")


def sort_capacity(phase: Sort, schedule: LoopSchedule) -> int:
    """Records in the shared memory of each team of a CTA."""
    threads = schedule.warps * WARP
    if schedule.chunks:
        return schedule.vector * schedule.chunks * threads
    if phase.problem.is_whole:
        return schedule.vector * threads
    return head_capacity(phase.problem, schedule.vector * threads)


def sort_units(phase: Sort, schedule: LoopSchedule) -> Expr:
    """CTAs, or clusters, that have work."""
    return product(phase.rows).ceildiv(schedule.threads // WARP // schedule.warps)


def emit_sort(emission: Emission, phase: Sort) -> None:
    """Emits the phase."""
    _Sort(emission, phase).emit()


class _Sort:
    def __init__(self, emission: Emission, phase: Sort) -> None:
        self._emission, self._phase = emission, phase
        self._indexer = emission.indexer
        self._schedule = schedule = emission.schedule
        self._team = emission.team(schedule.warps)
        threads = emission.threads
        self._threads = schedule.warps * WARP  # of the team in this CTA
        self._own: Value = threads.lane if schedule.warps == 1 else threads.thread
        self._elements = RowElements(emission, phase)
        teams = schedule.threads // self._threads
        self._first, self._step = emission.grid_stride(teams, threads.warp)
        capacity = sort_capacity(phase, schedule)
        bytes_ = Records.bytes_needed(capacity, self._elements.keys.words)
        memory, start = emission.shared(bytes_ * teams)
        if teams > 1:
            start = add(mul(threads.warp, bytes_), start)
        self._records = Records(memory, start, capacity, self._elements.keys.last(i64()))
        self._network = Network(self._team, self._records)
        self._collector: Collector | None = None
        if not schedule.chunks and not phase.problem.is_whole:
            self._collector = Collector(emission, self._elements, self._network, self._records)

    def emit(self) -> None:
        """Rows one after the other."""
        count = product(self._phase.rows)

        def body(index: Expr, _: list[Value]) -> Sequence[Value]:
            with self._emission.evaluator.inside():
                self._row(self._indexer.spread(index, self._phase.rows))
            return ()

        limit = self._indexer.value(count)
        self._indexer.loop(self._first, limit, body, step=self._step, size=count)
        if self._team.cluster > 1:
            self._team.synchronize()  # no CTA leaves while others read its shared memory

    def _row(self, row: Indices) -> None:
        if self._schedule.chunks:
            self._in_shared(row)
        elif self._collector is None:
            self._in_global(row)
        else:
            self._collector.row(row, self._schedule.vector * self._threads)
        self._together()  # the next row reuses the shared memory

    def _together(self) -> None:
        """A barrier of the threads of this CTA that share a row."""
        if self._schedule.warps > 1:
            gpu.barrier()
        else:
            self._team.synchronize()

    # In shared memory -----------------------------------------------------------------------------

    def _in_shared(self, row: Indices) -> None:
        count = self._elements.length
        before: Num = mul(self._team.rank, self._records.capacity)
        if self._team.cluster == 1:
            self._load(row, 0, count)
            self._network.sort(count)
        else:
            self._load(row, before, self._network.share(count))
            self._network.sort_cluster(count)
        wanted = self._elements.head
        share = wanted if self._team.cluster == 1 else self._network.share(wanted)
        self._elements.each(
            self._own,
            share,
            self._threads,
            lambda number: self._elements.finish(
                row, add(number, before), self._records.load(number)
            ),
        )

    def _load(self, row: Indices, before: Num, count: Num) -> None:
        """Makes the records of some elements of a row, from a place on."""

        def one(number: Value) -> None:
            record = self._elements.record(row, add(number, before))
            self._records.store(record, number)

        self._elements.each(self._own, count, self._threads, one)

    # In global memory -----------------------------------------------------------------------------

    def _in_global(self, row: Indices) -> None:
        capacity = self._records.capacity
        bits, count = capacity.bit_length() - 1, self._elements.length
        scratch = self._elements.scratch(row)
        self._tiles(row, scratch, count, self._network.sort, from_row=True)
        steps = Steps(scratch, self._team.member, self._team.size)
        with loop(bits + 1, add(bits_of(count), 1)) as merged:
            p = merged.index
            self._team.synchronize()
            steps.mirrored(count, p)
            with loop(0, sub(sub(p, 1), bits)) as step:
                self._team.synchronize()
                steps.apart(count, sub(sub(p, 2), step.index))
            self._team.synchronize()
            self._tiles(
                row, scratch, count, lambda own: self._network.halve(own, bits - 1), from_row=False
            )
        self._team.synchronize()
        self._elements.each(
            self._team.member,
            count,
            self._team.size,
            lambda number: self._elements.finish(row, number, scratch.load(number)),
        )
        if self._team.cluster > 1:
            self._team.synchronize()

    def _tiles(
        self,
        row: Indices,
        scratch: GlobalRecords,
        count: Num,
        work: Callable[[Value], None],
        *,
        from_row: bool,
    ) -> None:
        """Works on every tile of a row in shared memory; the team's CTAs take turns."""
        capacity = self._records.capacity

        def tile(number: Value) -> None:
            start = mul(number, capacity)
            own = umin(sub(count, start), capacity)
            if from_row:
                self._load(row, start, own)
            else:
                with loop(self._own, own, self._threads) as each:
                    self._records.store(scratch.load(add(each.index, start)), each.index)
                self._together()
            work(own)
            with loop(self._own, own, self._threads) as each:
                scratch.store(self._records.load(each.index), add(each.index, start))
            self._together()

        self._elements.each(self._team.rank, ceildiv(count, capacity), self._team.cluster, tile)
