# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Columns: reductions whose last dim is kept, many columns side by side.

The lanes of a warp have neighbouring columns, and the warps of a CTA share the reduced dims: each
has its own sums, which meet in shared memory. So a few columns are reduced by many threads, and
every load of a warp is of neighbours. In a cluster the warps of all its CTAs share the reduced
dims, and what each CTA's add up to meets in the first one. The order of sums is fixed by schedule
and sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir.dialects import arith, gpu

from shapejit.passes.gpu_loops.alignment import Alignment, alignment
from shapejit.passes.gpu_loops.bodies import compute_type
from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.evaluate import Vector
from shapejit.passes.gpu_loops.phases import Columns
from shapejit.passes.gpu_loops.problem import LoopProblem
from shapejit.passes.gpu_loops.reduce import CELL_BYTES, Reduction, get, get_remote, put
from shapejit.passes.gpu_loops.schedule import WARP, LoopSchedule
from shapejit.passes.nvgpu.builder import Num, Value, add, compare, mul
from shapejit.symbolic import Expr, product

# Steps of the reduced dims that a thread loads at once; and where clusters share columns, with half
# as many threads of a multiprocessor.
_AHEAD, _AHEAD_IN_CLUSTERS = 4, 8


def columns_alignment(problem: LoopProblem, phase: Columns, length: int) -> Alignment:
    """What vectors of a length need."""
    column = phase.kept - 1
    return alignment(problem, [phase.loop], (), column, length, whole=(phase.loop.space[column],))


def columns_units(phase: Columns, schedule: LoopSchedule) -> Expr:
    """CTAs that have work."""
    *outer, columns = phase.loop.space[: phase.kept]
    return product(outer) * columns.ceildiv(schedule.vector * WARP)


def emit_columns(emission: Emission, phase: Columns) -> None:
    """Emits the phase."""
    _Columns(emission, phase).emit()


class _Columns:
    def __init__(self, emission: Emission, phase: Columns) -> None:
        self._emission, self._phase = emission, phase
        self._indexer, self._evaluator = emission.indexer, emission.evaluator
        self._warps = emission.schedule.threads // WARP
        self._cluster = emission.schedule.cluster
        self._sharing = self._warps * self._cluster  # warps that share a column
        loop = phase.loop
        self._writes = [loop.writes[position] for position in phase.positions]
        self._reductions = [
            Reduction(write.kind or "", compute_type(write.element)) for write in self._writes
        ]
        *self._outer, self._columns = loop.space[: phase.kept]
        self._reduced = loop.space[phase.kept :]
        self._block = emission.schedule.vector * WARP
        self._memory = emission.shared(len(self._writes) * self._warps * self._block * CELL_BYTES)
        # What the CTA's warps add up to, for the first CTA of its cluster.
        bytes_ = len(self._writes) * self._block * CELL_BYTES
        self._parts = emission.shared(bytes_) if self._cluster > 1 else None

    def emit(self) -> None:
        """Units are blocks of columns at one index of the outer kept dims."""
        needed = columns_alignment(
            self._emission.problem, self._phase, self._emission.schedule.vector
        )
        if needed.length == 1:
            self._units(1)
            return

        def vectors() -> None:
            with self._emission.aligned(needed), self._evaluator.inside():
                self._units(needed.length)

        def singles() -> None:
            with self._evaluator.inside():
                self._units(1)

        self._indexer.branch(self._emission.allows(needed), vectors, singles)

    def _units(self, length: int) -> None:
        block = length * WARP
        blocks = self._indexer.simplify(self._columns).ceildiv(block)
        count = product(self._outer) * blocks

        def body(index: Expr, _: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                *outer, number = self._indexer.spread(index, (*self._outer, blocks))
                self._unit(outer, number, length)
            return ()

        emission = self._emission
        limit = self._indexer.value(count)
        self._indexer.loop(emission.cta, limit, body, step=emission.ctas, size=count)

    def _unit(self, outer: Sequence[Expr], number: Expr, length: int) -> None:
        threads = self._emission.threads
        lane = self._indexer.at_level(
            0,
            "lane",
            lambda: self._indexer.variable(self._emission.index(threads.lane), WARP, level=0),
        )
        vector = number * WARP + lane
        element = self._emission.lanes(length)
        condition = None
        count = self._indexer.simplify(self._columns // length)
        if count.constant is None or count.constant % WARP:
            condition = compare("slt", self._indexer.ssa(vector), self._indexer.value(count))
        place = (*outer, vector * length + element)
        sums = self._sums(place, element, length, condition)
        self._meet(sums, outer, number, length)

    def _sums(
        self, place: Sequence[Expr], lane: Expr, length: int, condition: Value | None
    ) -> list[list[Value]]:
        """This warp's part of every reduction, for each element of the vector."""
        total = product(self._reduced)
        limit = self._indexer.value(total)
        init = [reduction.identity for reduction in self._reductions for _ in range(length)]

        def step(together: int, index: Expr, totals: list[Value]) -> list[Value]:
            steps = []
            for number in range(together):
                dims = (
                    *place,
                    *self._indexer.spread(index + number * self._sharing, self._reduced),
                )
                steps.append(dims)
            found = [self._values(dims, lane, length, condition) for dims in steps]
            made = []
            for number, reduction in enumerate(self._reductions):
                for element in range(length):
                    parts = [values[element][number] for values in found]
                    before = totals[number * length + element]
                    made.append(reduction.combine(before, reduction.together(parts)))
            return made

        def several(index: Expr, totals: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                return step(ahead, index, totals)

        def single(index: Expr, totals: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                return step(1, index, totals)

        ahead = _AHEAD if self._cluster == 1 else _AHEAD_IN_CLUSTERS
        emission, stride = self._emission, self._sharing * ahead
        own = add(emission.threads.warp, mul(emission.rank, self._warps))
        warp = emission.ssa(emission.index(own))
        # As many whole steps of `ahead` as all warps have.
        whole = mul(self._indexer.value(total // stride), stride)
        sums = self._indexer.loop(warp, whole, several, step=stride, size=total, init=init)
        sums = self._indexer.loop(
            add(warp, whole), limit, single, step=self._sharing, size=total, init=sums
        )
        return [sums[i : i + length] for i in range(0, len(sums), length)]

    def _values(
        self, dims: Sequence[Expr], lane: Expr, length: int, condition: Value | None
    ) -> list[list[Value]]:
        loop, positions = self._phase.loop, self._phase.positions

        def element() -> list[Value]:
            values = self._evaluator.results(loop, tuple(dims))
            return [values[position] for position in positions]

        return self._emission.elements(lane, length, condition, element)

    # Shared memory --------------------------------------------------------------------------------

    def _cell(self, reduction: int, warp: Num, column: Num) -> Num:
        """The offset of a warp's part of a column of the block."""
        _, start = self._memory
        row = add(mul(warp, self._block), column)
        first = start + reduction * self._warps * self._block * CELL_BYTES
        return add(mul(row, CELL_BYTES), first)

    def _meet(
        self, sums: Sequence[Sequence[Value]], outer: Sequence[Expr], number: Expr, length: int
    ) -> None:
        """Combines the parts of all warps: each thread those of one column, in order."""
        threads, (memory, _) = self._emission.threads, self._memory
        for reduction, parts in enumerate(sums):
            for element, part in enumerate(parts):
                column = add(mul(threads.lane, length), element)
                put(memory, self._cell(reduction, threads.warp, column), part)
        gpu.barrier()
        block = length * WARP
        is_one = compare("ult", threads.thread, block)
        if self._cluster == 1:
            self._indexer.branch(
                is_one, lambda: self._finish(outer, number, block, self._of_warps())
            )
            gpu.barrier()  # the next unit reuses the shared memory
            return
        team = self._emission.team(self._warps)
        self._indexer.branch(is_one, self._leave)
        team.synchronize()
        is_first = arith.andi(is_one, compare("eq", self._emission.rank, 0))
        self._indexer.branch(is_first, lambda: self._finish(outer, number, block, self._of_ctas()))
        team.synchronize()

    def _of_warps(self) -> list[Value]:
        """What all warps of the CTA add up to, for the column of this thread."""
        threads, (memory, _) = self._emission.threads, self._memory
        totals = []
        for index, reduction in enumerate(self._reductions):
            parts = [
                get(memory, self._cell(index, warp, threads.thread), reduction.type)
                for warp in range(self._warps)
            ]
            totals.append(reduction.together(parts))
        return totals

    def _part(self, reduction: int) -> Num:
        """The offset of what this CTA leaves of a reduction for the first of its cluster."""
        assert self._parts is not None
        _, start = self._parts
        own = mul(self._emission.threads.thread, CELL_BYTES)
        return add(own, start + reduction * self._block * CELL_BYTES)

    def _leave(self) -> None:
        assert self._parts is not None
        memory, _ = self._parts
        for index, total in enumerate(self._of_warps()):
            put(memory, self._part(index), total)

    def _of_ctas(self) -> list[Value]:
        """What all CTAs of the cluster add up to, for the column of this thread."""
        assert self._parts is not None
        memory, _ = self._parts
        return [
            reduction.together(
                [
                    get_remote(memory, self._part(index), cta, reduction.type)
                    for cta in range(self._cluster)
                ]
            )
            for index, reduction in enumerate(self._reductions)
        ]

    def _finish(
        self, outer: Sequence[Expr], number: Expr, block: int, totals: Sequence[Value]
    ) -> None:
        """Writes the column of this thread."""
        own = self._indexer.variable(self._emission.index(self._emission.threads.thread), block)
        column = number * block + own
        inside = compare("slt", self._indexer.ssa(column), self._indexer.value(self._columns))
        lane = self._emission.lanes(1).dim_index
        assert lane is not None
        replaced = dict(enumerate((*outer, column)))
        with self._evaluator.vector(Vector(1, lane, 0, inside)):
            for write, total in zip(self._writes, totals, strict=True):
                indices = [index.substitute(dims=replaced) for index in write.indices]
                for out in self._emission.problem.outputs[write.tensor]:
                    self._evaluator.store(out, indices, [total])
