# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Columns: reductions whose last dim is kept, many columns side by side.

The lanes of a warp have neighbouring columns, and the warps of a CTA share the reduced dims: each
has its own sums, which meet in shared memory. So a few columns are reduced by many threads, and
every load of a warp is of neighbours. All CTAs share the reduced dims of few columns that are long
(`column_units`). Where a warp has more lanes than there are vectors, groups of its lanes have steps
of their own, as warps do. The order of sums is fixed by schedule and sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir.dialects import arith, gpu

from shapejit.passes.gpu_loops.alignment import Alignment, alignment
from shapejit.passes.gpu_loops.bodies import compute_type
from shapejit.passes.gpu_loops.column_units import MOST_UNITS, PieceExchange, Pieces
from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.evaluate import Vector
from shapejit.passes.gpu_loops.phases import Columns
from shapejit.passes.gpu_loops.problem import Indices, LoopProblem
from shapejit.passes.gpu_loops.reduce import (
    CELL_BYTES,
    Reduction,
    get,
    put,
    shuffled,
)
from shapejit.passes.gpu_loops.schedule import WARP, LoopSchedule
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    mul,
    select,
    sub,
    udiv,
    umin,
    urem,
    value,
)
from shapejit.symbolic import Expr, product

# Steps of the reduced dims that a thread loads at once.
_AHEAD = 4


def columns_alignment(problem: LoopProblem, phase: Columns, length: int) -> Alignment:
    """What vectors of a length need."""
    column = phase.kept - 1
    return alignment(problem, [phase.loop], (), column, length, whole=(phase.loop.space[column],))


def columns_units(phase: Columns, schedule: LoopSchedule) -> Expr:
    """CTAs that have work."""
    if schedule.units:
        return Expr.const(schedule.chunks)
    *outer, columns = phase.loop.space[: phase.kept]
    return product(outer) * columns.ceildiv(schedule.vector * schedule.lanes)


def emit_columns(emission: Emission, phase: Columns) -> None:
    """Emits the phase."""
    _Columns(emission, phase).emit()


@dataclass(frozen=True)
class _Place:
    """A block of columns: at indices of the outer kept dims, its number there, and its columns."""

    outer: Sequence[Expr]
    number: Expr
    block: int


@dataclass(frozen=True)
class _Walk:
    """What a thread takes at each step of the reduced dims.

    Attributes:
        place: indices of the kept dims, over the lane.
        lane: counts the elements of the vector.
        length: of the vector.
        condition: i1, whether it is there; None if it is.
    """

    place: Indices
    lane: Expr
    length: int
    condition: Value | None


class _Columns:
    def __init__(self, emission: Emission, phase: Columns) -> None:
        self._emission, self._phase = emission, phase
        self._indexer, self._evaluator = emission.indexer, emission.evaluator
        schedule = emission.schedule
        self._warps, self._lanes = schedule.threads // WARP, schedule.lanes
        self._groups = schedule.threads // self._lanes  # of lanes, which share a column
        loop = phase.loop
        self._writes = [loop.writes[position] for position in phase.positions]
        self._reductions = [
            Reduction(write.kind or "", compute_type(write.element)) for write in self._writes
        ]
        *self._outer, self._columns = loop.space[: phase.kept]
        self._reduced = loop.space[phase.kept :]
        self._block = schedule.vector * self._lanes
        self._memory = emission.shared(len(self._writes) * self._warps * self._block * CELL_BYTES)
        self._exchange = None
        if schedule.units:
            self._exchange = PieceExchange(emission, self._reductions, self._block, self._memory)

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
        block = length * self._lanes
        blocks = self._indexer.simplify(self._columns).ceildiv(block)
        count = product(self._outer) * blocks
        pieces = None
        if self._exchange is not None:
            pieces = Pieces(self._emission, count, product(self._reduced))

        def body(index: Expr, _: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                unit, own = self._indexer.ssa(index), index
                if pieces is not None:
                    own = self._indexer.variable(pieces.block(unit), count)
                *outer, number = self._indexer.spread(own, (*self._outer, blocks))
                place = _Place(outer, number, block)
                walk = self._walk(place, length)
                if pieces is None:
                    self._meet(self._sums(walk), place, length)
                else:
                    sums = self._sums_of_piece(walk, *pieces.span(unit))
                    self._meet_pieces(sums, place, length, unit, pieces)
            return ()

        emission = self._emission
        limit = self._indexer.value(count) if pieces is None else pieces.units
        size = count if pieces is None else count + MOST_UNITS
        self._indexer.loop(emission.cta, limit, body, step=emission.ctas, size=size)

    def _walk(self, place: _Place, length: int) -> _Walk:
        """What this thread takes of a block."""

        def lane() -> Expr:
            own = urem(self._emission.threads.thread, self._lanes)
            return self._indexer.variable(self._emission.index(value(own)), self._lanes, level=0)

        vector = place.number * self._lanes + self._indexer.at_level(0, "lane", lane)
        element = self._emission.lanes(length)
        condition = None
        count = self._indexer.simplify(self._columns // length)
        if count.constant is None or count.constant % self._lanes:
            condition = compare("slt", self._indexer.ssa(vector), self._indexer.value(count))
        return _Walk((*place.outer, vector * length + element), element, length, condition)

    def _first(self) -> Value:
        """The number of this thread's group among those that share columns, of the index type."""
        threads = self._emission.threads
        group: Num = threads.warp
        if self._lanes < WARP:
            group = udiv(threads.thread, self._lanes)
        return self._emission.ssa(self._emission.index(value(group)))

    def _sums(self, walk: _Walk) -> list[list[Value]]:
        """This thread's part of every reduction, for each element of the vector."""
        total = product(self._reduced)
        limit = self._indexer.value(total)
        stride, own = self._groups * _AHEAD, self._first()
        # As many whole steps of `_AHEAD` as all groups have.
        whole = mul(self._indexer.value(total // stride), stride)
        sums = self._loop(walk, own, whole, _AHEAD, self._nothing(walk))
        return _by_reduction(self._loop(walk, add(own, whole), limit, 1, sums), walk)

    def _sums_of_piece(self, walk: _Walk, first: Value, end: Value) -> list[list[Value]]:
        """The same over a piece of the reduced dims."""
        reach, stride = self._groups * (_AHEAD - 1), self._groups * _AHEAD
        own = self._emission.ssa(add(first, self._first()))
        whole = self._emission.ssa(sub(end, reach))
        sums = self._loop(walk, own, whole, _AHEAD, self._nothing(walk))
        rounds = udiv(add(sub(whole, own), stride - 1), stride)
        rounds = select(compare("sgt", whole, own), rounds, 0)

        def rest(index: Expr, totals: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                return self._rest(walk, self._indexer.ssa(index), end, totals)

        return _by_reduction(
            self._indexer.loop(
                add(own, mul(rounds, stride)),
                end,
                rest,
                step=stride,
                size=product(self._reduced),
                init=sums,
            ),
            walk,
        )

    def _nothing(self, walk: _Walk) -> list[Value]:
        return [reduction.identity for reduction in self._reductions for _ in range(walk.length)]

    def _loop(
        self, walk: _Walk, first: Num, limit: Num, ahead: int, totals: Sequence[Value]
    ) -> list[Value]:
        """Adds this thread's steps from the first on, several at once."""

        def body(index: Expr, totals: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                steps = [index + number * self._groups for number in range(ahead)]
                return self._added(walk, totals, self._found(walk, steps))

        return self._indexer.loop(
            first,
            limit,
            body,
            step=self._groups * ahead,
            size=product(self._reduced),
            init=totals,
        )

    def _rest(self, walk: _Walk, index: Value, end: Value, totals: Sequence[Value]) -> list[Value]:
        """Adds the last steps of a piece at once. Those beyond it load what the last one does, and
        add nothing."""
        total, last = product(self._reduced), sub(end, 1)
        places = [add(index, number * self._groups) for number in range(_AHEAD)]
        steps = [
            self._indexer.variable(self._emission.ssa(umin(place, last)), total) for place in places
        ]
        found = self._found(walk, steps)
        for place, values in zip(places, found, strict=True):
            there = compare("slt", place, end)
            for parts in values:
                for number, reduction in enumerate(self._reductions):
                    parts[number] = arith.select(there, parts[number], reduction.identity)
        return self._added(walk, totals, found)

    def _found(self, walk: _Walk, steps: Sequence[Expr]) -> list[list[list[Value]]]:
        """What there is at some steps: by step, element and reduction."""
        places = [(*walk.place, *self._indexer.spread(step, self._reduced)) for step in steps]
        return [self._values(dims, walk.lane, walk.length, walk.condition) for dims in places]

    def _added(
        self, walk: _Walk, totals: Sequence[Value], found: Sequence[Sequence[Sequence[Value]]]
    ) -> list[Value]:
        made = []
        for number, reduction in enumerate(self._reductions):
            for element in range(walk.length):
                parts = [values[element][number] for values in found]
                before = totals[number * walk.length + element]
                made.append(reduction.combine(before, reduction.together(parts)))
        return made

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

    def _put(self, sums: Sequence[Sequence[Value]], place: _Place, length: int) -> Value:
        """Leaves what each warp adds up to in its cells, and says whether this thread has a column
        (i1)."""
        threads, (memory, _) = self._emission.threads, self._memory
        condition = None
        if self._lanes < WARP:
            condition = compare("ult", threads.lane, self._lanes)
        for number, parts in enumerate(sums):
            for element, part in enumerate(parts):
                total = self._over_groups(self._reductions[number], part)
                column = add(mul(threads.lane, length), element)
                put(memory, self._cell(number, threads.warp, column), total, condition)
        gpu.barrier()
        return compare("ult", threads.thread, place.block)

    def _over_groups(self, reduction: Reduction, part: Value) -> Value:
        """What the groups of a warp's lanes add up to."""
        distance = WARP // 2
        while distance >= self._lanes:
            part = reduction.combine(part, shuffled("bfly", part, distance))
            distance //= 2
        return part

    def _meet(self, sums: Sequence[Sequence[Value]], place: _Place, length: int) -> None:
        """Combines the parts of all warps: each thread those of one column, in order."""
        is_one = self._put(sums, place, length)
        self._indexer.branch(is_one, lambda: self._finish(place, self._of_warps()))
        gpu.barrier()  # the next unit reuses the shared memory

    def _meet_pieces(
        self,
        sums: Sequence[Sequence[Value]],
        place: _Place,
        length: int,
        unit: Value,
        pieces: Pieces,
    ) -> None:
        """Combines the parts of all warps, and those of all pieces if there are several."""
        is_one, exchange = self._put(sums, place, length), self._exchange
        assert exchange is not None

        def alone() -> None:
            self._indexer.branch(is_one, lambda: self._finish(place, self._of_warps()))

        def together() -> None:
            is_last = exchange.is_last(unit, pieces, is_one, self._of_warps)
            self._indexer.branch(is_last, combine)

        def combine() -> None:
            totals = exchange.totals(unit, pieces, place.block)
            self._indexer.branch(is_one, lambda: self._finish(place, totals))

        self._indexer.branch(compare("eq", pieces.count, 1), alone, together)
        gpu.barrier()  # the next unit reuses the shared memory

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

    def _finish(self, place: _Place, totals: Sequence[Value]) -> None:
        """Writes the column of this thread."""
        thread = self._emission.index(self._emission.threads.thread)
        column = place.number * place.block + self._indexer.variable(thread, place.block)
        inside = compare("slt", self._indexer.ssa(column), self._indexer.value(self._columns))
        lane = self._emission.lanes(1).dim_index
        assert lane is not None
        replaced = dict(enumerate((*place.outer, column)))
        with self._evaluator.vector(Vector(1, lane, 0, inside)):
            for write, total in zip(self._writes, totals, strict=True):
                indices = [index.substitute(dims=replaced) for index in write.indices]
                for out in self._emission.problem.outputs[write.tensor]:
                    self._evaluator.store(out, indices, [total])


def _by_reduction(sums: list[Value], walk: _Walk) -> list[list[Value]]:
    return [sums[i : i + walk.length] for i in range(0, len(sums), walk.length)]
