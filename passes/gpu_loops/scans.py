# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scans: running combinations along rows.

A team takes a row, tile after tile: each of its threads has some neighbouring elements, which it
scans by itself; the threads' totals are scanned over the lanes of a warp, and those of the warps by
way of shared memory. What a tile adds up to is carried on to the next one.

In a cluster each CTA has a part of the row. It goes over its part once for the total, which it
leaves in shared memory for the CTAs after it, and then again, from what the CTAs before it add up
to. A few rows that are still longer are cut into units for all CTAs (`scan_units`). The order in
which elements are combined is fixed by the schedule and the length of the row: results are the same
in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from mlir.dialects import arith, gpu

from shapejit.passes.gpu_loops import functions
from shapejit.passes.gpu_loops.alignment import Access, Alignment, alignment
from shapejit.passes.gpu_loops.bodies import compute_type
from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.evaluate import Vector
from shapejit.passes.gpu_loops.problem import Indices, LoopProblem, identity
from shapejit.passes.gpu_loops.reduce import CELL_BYTES, get, get_remote, put, shuffled
from shapejit.passes.gpu_loops.row_ops import Scan
from shapejit.passes.gpu_loops.scan_units import GROUP, UnitExchange
from shapejit.passes.gpu_loops.schedule import WARP, LoopSchedule
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    constant,
    i64,
    mul,
    select,
    sub,
    udiv,
    umax,
    umin,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.rowwise.combine import Combine, State
from shapejit.symbolic import Expr, product


def scan_alignment(problem: LoopProblem, phase: Scan, length: int) -> Alignment:
    """What vectors of a length need."""
    space = phase.loop.space
    own = identity(len(space))
    written = [Access(memory, space, own) for memory in phase.outputs if memory is not None]
    return alignment(problem, [phase.loop], written, len(space) - 1, length, [phase.length])


def scan_units(phase: Scan, schedule: LoopSchedule) -> Expr:
    """CTAs, or clusters, that have work."""
    if schedule.units:
        return product(phase.rows) * _units_of_row(phase, schedule)
    return product(phase.rows).ceildiv(schedule.threads // WARP // schedule.warps)


def check_units(found: Sequence[object], schedule: LoopSchedule) -> None:
    """Refuses a schedule with units that a kernel cannot have.

    Raises:
        LoweringError: it cannot.
    """
    if not all(isinstance(phase, Scan) for phase in found):
        raise LoweringError("has units in its schedule; only the rows of a scan are cut into such")
    is_whole = schedule.cluster == 1 and schedule.warps * WARP == schedule.threads
    if not is_whole or not schedule.chunks or schedule.threads <= GROUP:
        raise LoweringError(
            f"has the schedule {schedule}; a unit is that of a CTA without a cluster, of more than "
            f"{GROUP} threads that all share it, and keep vectors of it"
        )


def _units_of_row(phase: Scan, schedule: LoopSchedule) -> Expr:
    return phase.length.ceildiv(schedule.vector * schedule.threads * schedule.chunks)


def emit_scan(emission: Emission, phase: Scan) -> None:
    """Emits the phase."""
    _Scan(emission, phase).emit()


@dataclass(frozen=True)
class _Tile:
    """A thread's elements of a tile.

    Attributes:
        row: index of the row.
        first: the column of the first one.
        conditions: whether each is one of the row.
    """

    row: Indices
    first: Expr
    conditions: tuple[Value, ...]


class _Scan:
    def __init__(self, emission: Emission, phase: Scan) -> None:
        self._emission, self._phase = emission, phase
        self._indexer, self._evaluator = emission.indexer, emission.evaluator
        self._schedule = schedule = emission.schedule
        self._team = emission.team(schedule.warps)
        threads = emission.threads
        own = threads.lane if schedule.warps == 1 else threads.thread
        self._threads = schedule.warps * WARP  # of the team in this CTA
        self._own = self._indexer.variable(emission.index(own), self._threads, level=0)
        self._combine = self._monoid()
        self._first, self._step = emission.grid_stride(
            schedule.threads // WARP // schedule.warps, threads.warp
        )
        words = len(self._combine.identity)
        self._bytes = words * schedule.warps * CELL_BYTES
        # Two sets of cells, so that a tile need not wait until the one before has been read.
        is_shared = schedule.warps > 1
        self._cells = emission.shared(2 * self._bytes) if is_shared else None
        self._totals = emission.shared(words * CELL_BYTES) if schedule.cluster > 1 else None
        self._exchange = (
            UnitExchange(emission, self._combine, lambda own: self._over_lanes(own, WARP))
            if schedule.units
            else None
        )

    def _monoid(self) -> Combine:
        problem = self._phase.problem
        type_ = compute_type(problem.input.type.element_type)
        return Combine(
            problem.scan or "",
            type_,
            len(self._phase.outputs) > 1,
            functions.find("math.exp", type_),
            functions.find("math.log", type_),
            self._indexer.type,
        )

    def emit(self) -> None:
        """Rows in vectors if these are aligned, else element by element."""
        needed = scan_alignment(self._emission.problem, self._phase, self._schedule.vector)

        def vectors() -> None:
            with self._emission.aligned(needed), self._evaluator.inside():
                self._rows(needed.length)

        def singles() -> None:
            with self._evaluator.inside():
                self._rows(1)

        if needed.length == 1:
            singles()
        else:
            self._indexer.branch(self._emission.allows(needed), vectors, singles)
        if self._schedule.cluster > 1:
            self._team.synchronize()  # no CTA leaves while others read its shared memory
        if self._exchange is not None:
            self._exchange.finish(self._unit_count)

    @property
    def _unit_count(self) -> Value:
        """Units of all rows, i32: there are few enough."""
        return self._narrow(scan_units(self._phase, self._schedule))

    def _rows(self, aligned: int) -> None:
        if self._exchange is not None:
            self._units(self._exchange, aligned)
            return
        count = product(self._phase.rows)

        def body(index: Expr, _: list[Value]) -> Sequence[Value]:
            with self._evaluator.inside():
                self._row(self._indexer.spread(index, self._phase.rows), aligned)
            return ()

        limit = self._indexer.value(count)
        self._indexer.loop(self._first, limit, body, step=self._step, size=count)

    def _row(self, row: Indices, aligned: int) -> None:
        tile = self._schedule.vector * self._threads
        tiles = self._phase.length.ceildiv(tile)
        count = self._indexer.ssa(tiles)
        empty = self._combine.identity
        if self._schedule.cluster == 1:
            self._tiles(row, 0, count, tiles, empty, aligned, store=True)
            if self._cells is not None:
                gpu.barrier()  # the next row reuses the cells
            return
        share = self._emission.ssa(self._indexer.value(tiles.ceildiv(self._schedule.cluster)))
        rank = self._emission.index(self._emission.rank)
        first = umin(mul(rank, share), count)
        last = umin(add(first, share), count)
        total = self._tiles(row, first, last, tiles, empty, aligned, store=False)
        before = self._before(total)
        self._tiles(row, first, last, tiles, before, aligned, store=True)
        self._team.synchronize()  # the next row reuses the cells

    # Units ----------------------------------------------------------------------------------------

    def _units(self, exchange: UnitExchange, aligned: int) -> None:
        """Takes units as long as there are any."""
        of_row = _units_of_row(self._phase, self._schedule)
        count, each = self._unit_count, umax(self._narrow(of_row), 1)
        rows = product(self._phase.rows)

        def body(carried: list[Value]) -> Sequence[Value]:
            [unit] = carried
            with self._evaluator.inside():
                row = udiv(unit, each)
                number = sub(unit, mul(row, each))
                index = self._indexer.variable(self._emission.index(row), rows)
                place = self._indexer.variable(self._emission.index(number), of_row)
                indices = self._indexer.spread(index, self._phase.rows)
                self._unit(exchange, indices, place, (unit, number), aligned)
            return [exchange.take()]

        def goes_on(carried: list[Value]) -> Value:
            return compare("ult", carried[0], count)

        self._indexer.repeat_while([exchange.take()], goes_on, body)

    def _unit(
        self,
        exchange: UnitExchange,
        row: Indices,
        place: Expr,
        number: tuple[Value, Value],
        aligned: int,
    ) -> None:
        """Scans a unit, whose elements stay in registers.

        Args:
            place: its number among those of the row.
            number: its number and that, i32.
        """
        combine, chunks = self._combine, self._schedule.chunks
        tiles = [self._tile_at(row, place * chunks + i, aligned) for i in range(chunks)]
        for tile in tiles if aligned > 1 else ():
            self._prefetch(tile, aligned)
        parts, total = [], combine.identity
        for parity, tile in enumerate(tiles):
            states = self._running(tile, aligned)
            before, own = self._over_threads(states[-1], parity % 2)
            parts.append((tile, states, combine.combine(total, before)))
            total = combine.combine(total, own)
        prefix = exchange.before(*number, total)
        for tile, states, before in parts:
            start = combine.combine(prefix, before)
            found = [combine.results(combine.combine(start, state)) for state in states]
            self._store(tile, found, aligned)

    def _prefetch(self, tile: _Tile, aligned: int) -> None:
        """Starts the loads of a tile."""
        lane = self._emission.lanes(aligned)
        assert lane.dim_index is not None
        with self._evaluator.vector(Vector(aligned, lane.dim_index, 0, tile.conditions[0])):
            self._evaluator.prefetch(self._phase.loop.reads, (*tile.row, tile.first + lane))

    # Clusters -------------------------------------------------------------------------------------

    def _before(self, total: State) -> State:
        """The state of all parts of the row before this CTA's."""
        assert self._totals is not None
        memory, start = self._totals
        first = compare("eq", self._emission.threads.thread, 0)
        for number, word in enumerate(total):
            put(memory, start + number * CELL_BYTES, word, first)
        self._team.synchronize()
        state = self._combine.identity
        for cta in range(self._schedule.cluster - 1):
            part = [
                get_remote(memory, start + number * CELL_BYTES, cta, word.type)
                for number, word in enumerate(total)
            ]
            is_before = compare("ugt", self._emission.rank, cta)
            state = _chosen(is_before, self._combine.combine(state, part), state)
        return state

    def _tiles(
        self,
        row: Indices,
        first: Num,
        last: Num,
        tiles: Expr,
        state: State,
        aligned: int,
        *,
        store: bool,
    ) -> State:
        """Scans tiles from a state on and returns the one at their end."""

        def body(number: Expr, carried: list[Value]) -> Sequence[Value]:
            with self._evaluator.scope():
                return self._tile(row, number, carried, aligned, store=store)

        return self._indexer.loop(first, last, body, size=tiles, init=state)

    # A tile ---------------------------------------------------------------------------------------

    def _tile(
        self, row: Indices, number: Expr, carried: State, aligned: int, *, store: bool
    ) -> State:
        combine = self._combine
        tile = self._tile_at(row, number, aligned)
        states = self._running(tile, aligned)
        before, total = self._over_threads(states[-1], and_(self._narrow(number), 1))
        if store:
            prefix = combine.combine(carried, before)
            found = [combine.results(combine.combine(prefix, state)) for state in states]
            self._store(tile, found, aligned)
        return combine.combine(carried, total)

    def _tile_at(self, row: Indices, number: Expr, aligned: int) -> _Tile:
        first = (number * self._threads + self._own) * self._schedule.vector
        return _Tile(row, first, self._conditions(first, aligned))

    def _running(self, tile: _Tile, aligned: int) -> list[State]:
        """The states up to each of a thread's elements."""
        states = self._states(tile, aligned)
        for place in range(1, len(states)):
            states[place] = self._combine.combine(states[place - 1], states[place])
        return states

    def _conditions(self, first: Expr, aligned: int) -> tuple[Value, ...]:
        limit = self._indexer.value(self._phase.length)
        if aligned > 1:
            return (compare("slt", self._indexer.ssa(first), limit),)
        return tuple(
            compare("slt", self._indexer.ssa(first + place), limit)
            for place in range(self._schedule.vector)
        )

    def _states(self, tile: _Tile, aligned: int) -> list[State]:
        """The states of a thread's elements, those that are not there of no elements."""
        loop, combine = self._phase.loop, self._combine
        if aligned > 1:
            [condition] = tile.conditions
            lane = self._emission.lanes(aligned)
            place = (*tile.row, tile.first + lane)
            values = self._emission.elements(
                lane, aligned, condition, lambda: self._evaluator.results(loop, place)
            )
        else:
            lane = self._emission.lanes(1)
            values = [
                self._emission.elements(lane, 1, condition, partial(self._single, tile, at, lane))[
                    0
                ]
                for at, condition in enumerate(tile.conditions)
            ]
        states = []
        for at, [value] in enumerate(values):
            index = None
            if combine.indexed:
                index = self._emission.ssa(self._indexer.value(tile.first + at))
            condition = tile.conditions[min(at, len(tile.conditions) - 1)]
            states.append(_chosen(condition, combine.lift(value, index), combine.identity))
        return states

    def _single(self, tile: _Tile, at: int, lane: Expr) -> list[Value]:
        return self._evaluator.results(self._phase.loop, (*tile.row, tile.first + at + lane))

    def _store(self, tile: _Tile, found: Sequence[Sequence[Value]], aligned: int) -> None:
        for number, memory in enumerate(self._phase.outputs):
            if memory is None:
                continue
            values = [each[number] for each in found]
            if number and values[0].type != i64():
                values = [arith.extui(i64(), value) for value in values]
            lane = self._emission.lanes(aligned)
            assert lane.dim_index is not None
            runs = [values] if aligned > 1 else [[value] for value in values]
            for at, (run, condition) in enumerate(zip(runs, tile.conditions, strict=True)):
                with self._evaluator.vector(Vector(aligned, lane.dim_index, 0, condition)):
                    self._evaluator.store(memory, (*tile.row, tile.first + at + lane), run)

    # Over threads ---------------------------------------------------------------------------------

    def _over_threads(self, own: State, parity: Num) -> tuple[State, State]:
        """What the threads before this one add up to, and all of them.

        Args:
            parity: 0 and 1 in turns, of which each has cells of its own.
        """
        combine, threads = self._combine, self._emission.threads
        running = self._over_lanes(own, WARP)
        before = self._moved(running)
        if self._cells is None:
            return before, _from_lane(running, WARP - 1)
        warps = self._schedule.warps
        memory, start = self._cells
        start = add(mul(parity, self._bytes), start)
        is_last = compare("eq", threads.lane, WARP - 1)
        for number, word in enumerate(running):
            cell = add(mul(threads.warp, CELL_BYTES), add(start, number * warps * CELL_BYTES))
            put(memory, cell, word, is_last)
        gpu.barrier()
        lane = and_(threads.lane, warps - 1)
        parts = [
            get(memory, add(mul(lane, CELL_BYTES), add(start, place * CELL_BYTES)), word.type)
            for place, word in zip(range(0, warps * len(running), warps), running, strict=True)
        ]
        sums = self._over_lanes(parts, warps)
        previous = _from_lane(sums, select(compare("eq", threads.warp, 0), 0, sub(threads.warp, 1)))
        is_first = compare("eq", threads.warp, 0)
        previous = _chosen(is_first, combine.identity, previous)
        return combine.combine(previous, before), _from_lane(sums, warps - 1)

    def _narrow(self, number: Expr) -> Value:
        found = self._indexer.ssa(number)
        return found if found.type == constant(0).type else arith.trunci(constant(0).type, found)

    def _over_lanes(self, own: State, lanes: int) -> State:
        """An inclusive scan over groups of so many lanes."""
        combine, state, distance = self._combine, own, 1
        lane = and_(self._emission.threads.lane, lanes - 1)
        while distance < lanes:
            other = [shuffled("up", word, distance) for word in state]
            is_there = compare("uge", lane, distance)
            state = _chosen(is_there, combine.combine(other, state), state)
            distance *= 2
        return state

    def _moved(self, state: State) -> State:
        """The state of the lane before; that of no elements in the first one."""
        other = [shuffled("up", word, 1) for word in state]
        is_first = compare("eq", self._emission.threads.lane, 0)
        return _chosen(is_first, self._combine.identity, other)


def _from_lane(state: State, lane: Num) -> State:
    return [shuffled("idx", word, lane) for word in state]


def _chosen(condition: Value, then: Sequence[Value], otherwise: Sequence[Value]) -> State:
    return [arith.select(condition, a, b) for a, b in zip(then, otherwise, strict=True)]
