# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Columns: reductions whose last dim is kept, many columns side by side.

The lanes of a warp have neighbouring columns, and the warps of a CTA share the reduced dims: each
has its own sums, which meet in shared memory. So a few columns are reduced by many threads, and
every load of a warp is of neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir.dialects import gpu

from shapejit.passes.gpu_loops.alignment import Alignment, alignment
from shapejit.passes.gpu_loops.bodies import compute_type
from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.evaluate import Vector
from shapejit.passes.gpu_loops.phases import Columns
from shapejit.passes.gpu_loops.problem import LoopProblem
from shapejit.passes.gpu_loops.reduce import CELL_BYTES, Reduction, get, put
from shapejit.passes.gpu_loops.schedule import WARP, LoopSchedule
from shapejit.passes.nvgpu.builder import Num, Value, add, compare, mul
from shapejit.symbolic import Expr, product

# Steps of the reduced dims that a thread loads at once.
_AHEAD = 4


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
        loop = phase.loop
        self._writes = [loop.writes[position] for position in phase.positions]
        self._reductions = [
            Reduction(write.kind or "", compute_type(write.element)) for write in self._writes
        ]
        *self._outer, self._columns = loop.space[: phase.kept]
        self._reduced = loop.space[phase.kept :]
        self._block = emission.schedule.vector * WARP
        self._memory = emission.shared(len(self._writes) * self._warps * self._block * CELL_BYTES)

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

        def step(ahead: int, index: Expr, totals: list[Value]) -> list[Value]:
            steps = []
            for number in range(ahead):
                dims = (*place, *self._indexer.spread(index + number * self._warps, self._reduced))
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
                return step(_AHEAD, index, totals)

        def single(index: Expr, totals: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                return step(1, index, totals)

        emission, stride = self._emission, self._warps * _AHEAD
        warp = emission.ssa(emission.index(emission.threads.warp))
        # As many whole steps of `_AHEAD` as all warps have.
        whole = mul(self._indexer.value(total // stride), stride)
        sums = self._indexer.loop(warp, whole, several, step=stride, size=total, init=init)
        sums = self._indexer.loop(
            add(warp, whole), limit, single, step=self._warps, size=total, init=sums
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
        self._indexer.branch(is_one, lambda: self._finish(outer, number, block))
        gpu.barrier()  # the next unit reuses the shared memory

    def _finish(self, outer: Sequence[Expr], number: Expr, block: int) -> None:
        threads, (memory, _) = self._emission.threads, self._memory
        own = self._indexer.variable(self._emission.index(threads.thread), block)
        column = number * block + own
        inside = compare("slt", self._indexer.ssa(column), self._indexer.value(self._columns))
        totals = []
        for index, reduction in enumerate(self._reductions):
            parts = [
                get(memory, self._cell(index, warp, threads.thread), reduction.type)
                for warp in range(self._warps)
            ]
            totals.append(reduction.together(parts))
        lane = self._emission.lanes(1).dim_index
        assert lane is not None
        replaced = dict(enumerate((*outer, column)))
        with self._evaluator.vector(Vector(1, lane, 0, inside)):
            for write, total in zip(self._writes, totals, strict=True):
                indices = [index.substitute(dims=replaced) for index in write.indices]
                for out in self._emission.problem.outputs[write.tensor]:
                    self._evaluator.store(out, indices, [total])
