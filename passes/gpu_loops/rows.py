# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows: reductions over the last dims, and clusters of loops that share rows.

A team (a warp, a CTA, or a cluster of them) takes a row at a time. Where its length allows, every
thread has a fixed set of the row's vectors: the passes are emitted one after the other without
loops, and what one loads or computes stays in registers for the next. Else each pass is a loop that
loads it again, from shared memory if the schedule says so and the row has room there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir.dialects import arith, gpu

from shapejit.passes.gpu_loops.alignment import Alignment
from shapejit.passes.gpu_loops.bodies import compute_type
from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.evaluate import Vector
from shapejit.passes.gpu_loops.phases import Rows, Stage
from shapejit.passes.gpu_loops.problem import (
    Indices,
    Loop,
    Write,
)
from shapejit.passes.gpu_loops.reduce import Reduction
from shapejit.passes.gpu_loops.row_chunks import Chunk, Cut, Way
from shapejit.passes.gpu_loops.row_memory import STEP, Part, Places, RowMemory
from shapejit.passes.gpu_loops.row_reads import (
    cut_alignment,
    is_shared,
    loads_shared_ahead,
    loops_of,
    own_rows,
    row_start,
    rows_alignment,
)
from shapejit.passes.gpu_loops.schedule import WARP, LoopSchedule
from shapejit.passes.nvgpu.builder import Num, Value, add, compare, constant, integer, xor
from shapejit.symbolic import Expr, product

# Elements of a row that a thread keeps at most where they are not side by side.
_MOST_SINGLE = 32
# Elements and vectors that a thread loads at once in passes that are loops, as far as registers
# allow: a thread of 1024 has 64.
_AHEAD, _VECTORS_AHEAD, _MANY_THREADS = 32, 8, 1024


def rows_units(phase: Rows, schedule: LoopSchedule) -> Expr:
    """CTAs that have work."""
    return product(phase.rows).ceildiv(_teams(schedule))


def _teams(schedule: LoopSchedule) -> int:
    return schedule.threads // WARP // schedule.warps


def emit_rows(emission: Emission, phase: Rows) -> None:
    """Emits the phase."""
    _Rows(emission, phase).emit()


@dataclass(frozen=True)
class _Option:
    """A way to pass over rows, and when it is open.

    Attributes:
        aligned: what has to hold.
        chunks: vectors that a thread keeps, if they are as many as a row has.
        start: see `Way`.
    """

    aligned: Alignment
    chunks: int
    start: Expr | None = None


@dataclass
class _Current:
    """The row that lies in shared memory.

    Attributes:
        row: its indices.
        part: this CTA's vectors.
        phase: which the first pass waits for; None behind it.
    """

    row: Indices
    part: Part
    phase: Value | None


_Visit = Callable[[Sequence[Chunk], list[Value]], list[Value]]


class _Rows:
    def __init__(self, emission: Emission, phase: Rows) -> None:
        self._emission, self._phase = emission, phase
        self._indexer, self._evaluator = emission.indexer, emission.evaluator
        self._schedule = schedule = emission.schedule
        self._team = emission.team(schedule.warps)
        self._member = self._indexer.variable(
            emission.index(self._team.member), self._team.size, level=0
        )
        self._first, self._step = emission.grid_stride(_teams(schedule), emission.threads.warp)
        self._cut: Cut | None = None
        self._shared: RowMemory | None = None
        if schedule.shared:
            own = own_rows(emission.problem, phase, schedule.vector)
            self._shared = RowMemory(emission, own)
        self._current: _Current | None = None
        self._memories = {
            stage: emission.shared(bytes_)
            for stage in phase.stages
            if (bytes_ := self._team.bytes_needed(len(self._reduced(stage))))
        }

    def emit(self) -> None:
        """Rows that registers hold, in whole vectors or cut, or else rows of any length."""
        problem, phase, schedule = self._emission.problem, self._phase, self._schedule
        needed = rows_alignment(problem, phase, schedule.vector)
        ways = [_Option(needed, schedule.chunks)] if needed.length > 1 else []
        if not ways or needed.symbols:
            ways += self._cut_ways()
        self._choose([*ways, _Option(Alignment(1), 0)])
        if self._team.cluster > 1:
            self._team.synchronize()  # no CTA leaves while others read its shared memory

    def _cut_ways(self) -> list[_Option]:
        """Ways for rows of a length that is no multiple of the vectors'."""
        problem, phase, schedule = self._emission.problem, self._phase, self._schedule
        aligned = cut_alignment(problem, phase, schedule.vector)
        if aligned.length > 1:
            start = row_start(problem, phase)
            ways = [_Option(aligned, schedule.chunks, start)]
            known = all(product(columns).constant is not None for columns in phase.columns)
            if schedule.shared and not known:
                ways.append(_Option(aligned, 0, start))  # of few rows some may be longer
            return ways
        if schedule.shared:
            return []
        singles = schedule.row_capacity // self._team.size
        return [_Option(Alignment(1), singles)] if 0 < singles <= _MOST_SINGLE else []

    def _choose(self, options: Sequence[_Option]) -> None:
        """Emits the first of several ways whose conditions hold."""
        option, *rest = options
        length, chunks = option.aligned.length, option.chunks
        conditions = [] if length == 1 else [self._emission.allows(option.aligned)]
        capacity = length * chunks * self._team.size
        for columns in self._phase.columns if chunks else ():
            size = product(columns)
            if size.constant is None:
                fits = compare("sle", self._indexer.ssa(size), capacity)
                conditions.append(fits)

        def emit() -> None:
            with self._emission.aligned(option.aligned), self._evaluator.inside():
                lane, shared = self._emission.lanes(length), bool(chunks and self._shared)
                self._rows(Way(length, chunks, lane, option.start, shared))

        if not conditions or not rest:
            emit()
            return
        condition = conditions[0]
        for other in conditions[1:]:
            condition = arith.andi(condition, other)
        self._indexer.branch(condition, emit, lambda: self._choose(rest))

    def _rows(self, way: Way) -> None:
        count = product(self._phase.rows)

        def body(index: Expr, phases: list[Value]) -> Sequence[Value]:
            # What all rows share is in the first-level cache from the first row on. Loaded before
            # the loop it would make the first row, often the only one, wait for it.
            with self._evaluator.inside():
                row = self._indexer.spread(index, self._phase.rows)
                self._cut = None if way.start is None else self._cut_row(row, way)
                self._load_ahead(row, way)
                following = add(self._indexer.ssa(index), self._step)
                if self._schedule.fetches:
                    self._fetch(following, count)
                if way.shared:
                    self._current = self._await(row, way, phases[0])
                self._row(row, way)
                if way.shared:
                    self._copy(following, count, way)
            return [xor(phase, constant(1, integer(1))) for phase in phases]

        if self._schedule.fetches and not way.chunks:
            self._fetch(self._first, count)  # a row that is long comes sooner so
        phases = []
        if way.shared:
            self._copy(self._first, count, way)
            phases = [constant(0, integer(1))]
        limit = self._indexer.value(count)
        self._indexer.loop(self._first, limit, body, step=self._step, size=count, init=phases)

    # Rows in shared memory ------------------------------------------------------------------------

    def _copy(self, number: Num, count: Expr, way: Way) -> None:
        """Starts to copy a row to shared memory, if there is one of the number."""
        assert self._shared is not None
        condition = compare("slt", self._emission.ssa(number), self._indexer.value(count))
        [columns] = self._phase.columns

        def row() -> tuple[Indices, Part, Places]:
            variable = self._indexer.variable(self._emission.ssa(number), count)
            indices = self._indexer.spread(variable, self._phase.rows)
            cut = None if way.start is None else Cut.at(self._emission, indices, columns[0], way)
            part = self._part_of(cut, columns, way)
            return indices, part, lambda at: self._vector(at, columns, way, cut, None)

        self._shared.start(condition, row)

    def _await(self, row: Indices, way: Way, phase: Value) -> _Current:
        """The current row, whose ends are on their way to registers."""
        [columns] = self._phase.columns
        for chunk in () if self._cut is None else self._cut.kept:
            for loop in loops_of(self._emission.problem, self._phase):
                if loop.space[len(row) :] == columns:
                    self._prefetch(loop, (*row, *chunk.columns), chunk)
        return _Current(row, self._part_of(self._cut, columns, way), phase)

    def _part_of(self, cut: Cut | None, columns: Indices, way: Way) -> Part:
        if cut is not None:
            return Part.of(self._emission, cut.vectors)
        return Part.of(self._emission, self._indexer.value(self._vectors(columns, way)))

    def _shared_loop(
        self, columns: Indices, way: Way, visit: _Visit, empty: Sequence[Value]
    ) -> list[Value]:
        """Visits this thread's vectors of the CTA's part."""
        current, memory, size = self._current, self._shared, self._schedule.threads
        assert current is not None and memory is not None
        part, phase = current.part, current.phase
        current.phase = None

        def body(index: Expr, totals: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                if phase is not None:
                    memory.wait(self._indexer.ssa(index), phase)
                chunks = []
                for number in range(STEP):
                    here = index + number * size
                    place = self._indexer.ssa(here)
                    condition = compare("slt", place, part.count) if number else None
                    chunk = self._vector(part.first + here, columns, way, self._cut, condition)
                    memory.hold(current.row, chunk, place)
                    chunks.append(chunk)
                return visit(chunks, totals)

        first = self._emission.index(self._emission.threads.thread)
        vectors = self._vectors(columns, way)
        return self._indexer.loop(
            first, part.count, body, size=vectors, step=size * STEP, init=list(empty)
        )

    # Registers ------------------------------------------------------------------------------------

    def _cut_row(self, row: Indices, way: Way) -> Cut:
        [[columns]] = self._phase.columns
        cut, size = Cut.at(self._emission, row, columns, way), self._team.size
        for number in range(0 if way.shared else way.chunks):
            index = self._member + number * size
            condition = compare("slt", self._indexer.ssa(index), cut.vectors)
            cut.kept.append(cut.vector(index, condition))
        cut.kept.append(cut.ends(self._indexer.ssa(self._member)))
        return cut

    def _load_ahead(self, row: Indices, way: Way) -> None:
        """Starts all loads of a row that stays in registers, so that only one latency shows."""
        problem, phase = self._emission.problem, self._phase
        if len(phase.columns) > 1:
            return
        [columns] = phase.columns
        chunks = self._chunks(columns, way)
        shared = loads_shared_ahead(problem, phase, way.length * way.chunks)
        for loop in loops_of(problem, phase):
            if loop.space[len(row) :] == columns:
                for chunk in chunks or ():
                    self._prefetch(loop, (*row, *chunk.columns), chunk, shared=shared)

    def _fetch(self, number: Num, count: Expr) -> None:
        """Has a row of this team brought to the second-level cache, if there is one of the number.

        Rows alternate between loads, which keep memory busy, and work on registers, which does not.
        """
        if len(self._phase.columns) > 1 or len(self._phase.columns[0]) > 1:
            return
        [[columns]] = self._phase.columns
        condition = arith.andi(
            self._indexer.at_level(0, "first member", self._is_first),
            compare("slt", self._emission.ssa(number), self._indexer.value(count)),
        )
        row = self._indexer.spread(
            self._indexer.variable(self._emission.ssa(number), count), self._phase.rows
        )
        for own in own_rows(self._emission.problem, self._phase, self._schedule.vector):
            if own.memory.operand in self._evaluator.aligned:
                first = self._indexer.simplify(own.offset((*row, Expr.const(0))))
                self._evaluator.fetch(own.memory, first, columns, condition)

    def _row(self, row: Indices, way: Way) -> None:
        for stage in self._phase.stages:
            if stage.columns is None:
                self._scalars(stage, row)
            else:
                self._reductions(stage, stage.columns, row, way)
        by_columns: dict[Indices, list[tuple[Loop, int]]] = {}
        for loop, position in self._phase.stores:
            by_columns.setdefault(loop.space[len(row) :], []).append((loop, position))
        for columns, stores in by_columns.items():
            self._stores(stores, columns, row, way)
        # The next row reuses the shared memory.
        if len(self._memories) == 1:
            self._team.synchronize()
        elif way.shared:
            gpu.barrier()

    # Stages ---------------------------------------------------------------------------------------

    def _scalars(self, stage: Stage, row: Indices) -> None:
        for loop in stage.loops:
            values = self._evaluator.results(loop, row)
            for write, scalar in zip(loop.writes, values, strict=True):
                self._keep(loop, write, scalar, row)

    def _keep(self, loop: Loop, write: Write, scalar: Value, row: Indices) -> None:
        self._evaluator.keep_scalar(write.tensor, scalar)
        if write.tensor not in self._phase.written:
            return
        first = self._indexer.at_level(0, "first member", self._is_first)
        replaced = dict(enumerate(row))
        indices = [index.substitute(dims=replaced) for index in write.indices]
        lane = self._emission.lanes(1).dim_index
        assert lane is not None
        with self._evaluator.vector(Vector(1, lane, 0, first)):
            for memory in self._emission.problem.outputs[write.tensor]:
                self._evaluator.store(memory, indices, [scalar])

    def _reduced(self, stage: Stage) -> list[tuple[Loop, int, Write]]:
        if stage.columns is None:
            return []
        return _reduced(stage, len(self._phase.rows))

    def _is_first(self) -> Value:
        return compare("eq", self._team.member, 0)

    def _reductions(self, stage: Stage, columns: Indices, row: Indices, way: Way) -> None:
        reduced = self._reduced(stage)
        reductions = [_reduction(write) for _, _, write in reduced]

        def visit(chunks: Sequence[Chunk], totals: list[Value]) -> list[Value]:
            for chunk in chunks:
                for loop in dict.fromkeys(loop for loop, _, _ in reduced):
                    self._prefetch(loop, (*row, *chunk.columns), chunk)
            parts = [self._part(reduced, reductions, chunk, row) for chunk in chunks]
            sums = [
                reduction.together([part[number] for part in parts])
                for number, reduction in enumerate(reductions)
            ]
            if not totals:
                return sums
            return [r.combine(*pair) for r, *pair in zip(reductions, totals, sums, strict=True)]

        own = self._pass(columns, way, visit, [r.identity for r in reductions])
        totals = self._team.reduce(reductions, own, self._memories.get(stage))
        for (loop, _, write), total in zip(reduced, totals, strict=True):
            self._keep(loop, write, total, row)

    def _prefetch(self, loop: Loop, dims: Indices, chunk: Chunk, *, shared: bool = True) -> None:
        """Starts a loop's loads of a vector; those of what all rows share only if `shared`."""
        lane, rows = chunk.lane.dim_index, len(self._phase.rows)
        assert lane is not None
        reads = [read for read in loop.reads if shared or not is_shared(read, rows)]
        with self._evaluator.vector(Vector(chunk.length, lane, 0, chunk.condition)):
            self._evaluator.prefetch(reads, dims)

    def _part(
        self,
        reduced: Sequence[tuple[Loop, int, Write]],
        reductions: Sequence[Reduction],
        chunk: Chunk,
        row: Indices,
    ) -> list[Value]:
        """What one vector contributes to each reduction."""
        dims = (*row, *chunk.columns)

        def element() -> list[Value]:
            return [self._evaluator.results(loop, dims)[place] for loop, place, _ in reduced]

        found = self._emission.elements(chunk.lane, chunk.length, chunk.condition, element)
        parts = [
            reduction.together([values[number] for values in found])
            for number, reduction in enumerate(reductions)
        ]
        if chunk.condition is None:
            return parts
        return [
            arith.select(chunk.condition, part, reduction.identity)
            for part, reduction in zip(parts, reductions, strict=True)
        ]

    def _stores(
        self, stores: Sequence[tuple[Loop, int]], columns: Indices, row: Indices, way: Way
    ) -> None:
        def visit(chunks: Sequence[Chunk], totals: list[Value]) -> list[Value]:
            for chunk in chunks:
                for loop, _ in stores:
                    self._prefetch(loop, (*row, *chunk.columns), chunk)
            for chunk in chunks:
                self._store(stores, chunk, row)
            return totals

        self._pass(columns, way, visit, [])

    def _store(self, stores: Sequence[tuple[Loop, int]], chunk: Chunk, row: Indices) -> None:
        dims = (*row, *chunk.columns)

        def element() -> list[Value]:
            return [self._evaluator.results(loop, dims)[position] for loop, position in stores]

        found = self._emission.elements(chunk.lane, chunk.length, chunk.condition, element)
        lane = chunk.lane.dim_index
        assert lane is not None
        replaced = dict(enumerate(dims))
        with self._evaluator.vector(Vector(chunk.length, lane, 0, chunk.condition)):
            for number, (loop, position) in enumerate(stores):
                write = loop.writes[position]
                indices = [index.substitute(dims=replaced) for index in write.indices]
                for memory in self._emission.problem.outputs[write.tensor]:
                    self._evaluator.store(memory, indices, [values[number] for values in found])

    # Passes over columns --------------------------------------------------------------------------

    def _pass(
        self, columns: Indices, way: Way, visit: _Visit, empty: Sequence[Value]
    ) -> list[Value]:
        """Visits the vectors of this thread in a row; what it gives for no vectors is `empty`."""
        chunks = self._chunks(columns, way)
        if chunks is None:
            emit = self._shared_loop if way.shared else self._loop
            totals = emit(columns, way, visit, empty)
            if self._cut is None:
                return totals
            with self._evaluator.scope():
                return visit(self._cut.kept, totals)
        return visit(chunks, []) if chunks else list(empty)

    def _vectors(self, columns: Indices, way: Way) -> Expr:
        return self._indexer.simplify(product(columns) // way.length)

    def _chunks(self, columns: Indices, way: Way) -> list[Chunk] | None:
        """The thread's vectors of a row that it keeps in registers; None if it does not."""
        if way.shared:
            return None
        if self._cut is not None:
            return self._cut.kept if way.chunks else None
        vectors = self._vectors(columns, way)
        count = vectors.constant
        per_thread = way.chunks if count is None else -(-count // self._team.size)
        if count == 0 or 0 < per_thread <= way.chunks:
            return [self._kept(columns, vectors, k, way) for k in range(per_thread)]
        return None

    def _kept(self, columns: Indices, vectors: Expr, number: int, way: Way) -> Chunk:
        """The thread's vector of this number, for all passes."""
        size, count = self._team.size, vectors.constant
        index = self._member + number * size
        condition = None
        if count is None or count < (number + 1) * size:
            condition = self._indexer.at_level(
                0,
                ("in row", vectors, number),
                lambda: compare("slt", self._indexer.ssa(index), self._indexer.value(vectors)),
            )
        return Chunk(self._place(index, columns, way), condition, way.length, way.lane)

    def _loop(
        self, columns: Indices, way: Way, visit: _Visit, empty: Sequence[Value]
    ) -> list[Value]:
        size, vectors = self._team.size, self._vectors(columns, way)
        # Threads of rows in shared memory have 64, too.
        few = self._schedule.threads == _MANY_THREADS or self._schedule.shared
        elements = _AHEAD // (2 if few else 1)
        ahead = min(max(elements // way.length, 1), _VECTORS_AHEAD)
        cut = self._cut
        limit = self._indexer.value(vectors) if cut is None else cut.vectors

        def body(index: Expr, totals: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                chunks = []
                for number in range(ahead):
                    here = index + number * size
                    condition = None
                    if number:
                        condition = compare("slt", self._indexer.ssa(here), limit)
                    chunks.append(self._vector(here, columns, way, cut, condition))
                return visit(chunks, totals)

        first: Num = self._indexer.ssa(self._member)
        return self._indexer.loop(
            first, limit, body, size=vectors, step=size * ahead, init=list(empty)
        )

    def _vector(
        self, number: Expr, columns: Indices, way: Way, cut: Cut | None, condition: Value | None
    ) -> Chunk:
        """A vector of a row by its number."""
        if cut is not None:
            return cut.vector(number, condition)
        return Chunk(self._place(number, columns, way), condition, way.length, way.lane)

    def _place(self, index: Expr, columns: Indices, way: Way) -> Indices:
        """The column indices of a vector's elements."""
        *outer, last = columns
        *dims, column = self._indexer.spread(index, (*outer, last // way.length))
        return (*dims, column * way.length + way.lane)


def _reduced(stage: Stage, rows: int) -> list[tuple[Loop, int, Write]]:
    """What a stage reduces to rows: loops, numbers of results, results."""
    return [
        (loop, position, write)
        for loop in stage.loops
        for position, write in enumerate(loop.writes)
        if write.kind is not None and write.kept == tuple(range(rows))
    ]


def _reduction(write: Write) -> Reduction:
    assert write.kind is not None
    return Reduction(write.kind, compute_type(write.element))
