# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tiles that several CTAs have parts of: their sums, and the last one who adds them.

A CTA leaves a part's sums in scratch memory, with the maximum and the total of every row, and
counts up the tile's counter. The one that finds all others counted adds the parts in their order,
so results do not depend on who that is, stores them, and sets the counter to 0 for the next launch.
Nobody waits, so it does not matter which CTAs run at once::

    scratch   | counters, one a CTA | sums of CTA 0 | sums of CTA 1 | ..
    sums      | slot 0: of a tile that an earlier CTA began | slot 1: of one that it began itself |
    slot      | 64 rows * columns, f32 | 64 rows * (maximum, total), f32 |

A CTA begins at most one tile that it does not end, so a counter and two slots a CTA are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.decode_rows import PackedRows, store_row
from shapejit.passes.nvgpu.attention.decode_work import PARTS_AT_ONCE, ROWS_AT_ONCE, Part
from shapejit.passes.nvgpu.attention.softmax import Softmax, State, across_row, number, row_of
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Type,
    Value,
    add,
    compare,
    constant,
    f32,
    i64,
    loop,
    mul,
    select,
    sub,
    udiv,
    umin,
    urem,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.wgmma import ROWS, Fragment

#: Counters of 1024 CTAs: four a multiprocessor of 256.
_COUNTER_BYTES = 4096
_STATE_BYTES = 8  # maximum and total of a row
_QUAD = 4  # columns that a thread adds
_AT_ONCE = PARTS_AT_ONCE * ROWS_AT_ONCE  # sums of a thread that are on their way together
_NUMBER_BYTES = 4
_SHARED_NUMBERS = _QUAD + 2  # that a thread leaves for another one: sums, maximum and total


def combine_bytes(threads: int) -> int:
    """Shared memory that `PartialTiles.finish` takes."""
    return threads * _SHARED_NUMBERS * _NUMBER_BYTES


def rows_at_once(columns: int, threads: int) -> int:
    """Rows of which so many threads have a few columns each.

    Args:
        columns: of a row, with padding.
    """
    return max(threads // (columns // _QUAD), 1)


@dataclass(frozen=True)
class TileRows:
    """The rows of a tile.

    Attributes:
        result: where results go.
        first: number of the tile's first row among those of its group, i32.
        count: rows of the tile, i32.
        size: columns of a row.
        element: of the result.
    """

    result: PackedRows
    first: Num
    count: Num
    size: int
    element: Type


class PartialTiles:
    """Emits the exchange.

    Args:
        function: the kernel.
        memory: shared memory.
        offset: of `combine_bytes` bytes in it that nobody else uses meanwhile, i32.
        columns: of a row, with padding.
        thread, threads: number of this thread in the CTA, and how many there are.
        synchronize: a barrier of them.
        softmax: what maxima are of.
    """

    def __init__(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        offset: Num,
        columns: int,
        thread: Value,
        threads: int,
        synchronize: Callable[[], None],
        softmax: Softmax,
    ) -> None:
        self._memory, self._offset, self._columns = memory, offset, columns
        self._thread, self._threads, self._synchronize = thread, threads, synchronize
        self._softmax = softmax
        self._sums_bytes = ROWS * columns * _NUMBER_BYTES
        self._slot_bytes = self._sums_bytes + ROWS * _STATE_BYTES
        scratch = function.workspace(2 * self._slot_bytes, _COUNTER_BYTES)
        self._counters = llvm.ptrtoint(i64(), scratch)
        self._leader = compare("eq", thread, 0)

    def _slot(self, cta: Num, is_own: Value) -> Value:
        """The address of a CTA's sums of a tile, which it began itself or not; i64."""
        number = add(mul(cta, 2), arith.extui(self._thread.type, is_own))
        place = add(mul(wide(number), self._slot_bytes), _COUNTER_BYTES)
        return value(add(self._counters, place))

    # A part ---------------------------------------------------------------------------------------

    def leave(
        self, cta: Value, part: Part, state: State, fragment: Fragment, rows: TileRows
    ) -> None:
        """Leaves the sums of a part, by the threads of one warpgroup.

        Args:
            cta: number of this CTA.
            state: of these threads.
            fragment: where a thread's sums are.
        """
        slot = self._slot(cta, compare("eq", part.first, 0))
        for row in range(2):
            total = across_row(arith.addf, state.totals[row])
            number_ = add(fragment.row, 8 * row)
            with when(compare("ult", number_, rows.count)):
                place = add(mul(number_, self._columns), fragment.column)
                address = add(slot, wide(mul(place, _NUMBER_BYTES)))
                own = [each for i, each in enumerate(state.sums) if row_of(i) == row]
                for pair in range(0, len(own), 2):
                    ptx.store_pair(address, 4 * pair * _NUMBER_BYTES, own[pair], own[pair + 1])
                with when(compare("eq", fragment.column, 0)):
                    state_at = add(slot, wide(mul(number_, _STATE_BYTES)))
                    ptx.store_pair(state_at, self._sums_bytes, state.maxima[row], total)

    def finish(self, part: Part, rows: TileRows) -> None:
        """Counts the part, and completes the tile if it was the last one; by all threads."""
        self._synchronize()  # all of the part is written
        counter = add(self._counters, wide(mul(part.owner, _NUMBER_BYTES)))
        place = self._memory.pointer(self._offset)
        with when(self._leader):
            llvm.StoreOp(ptx.count_up(counter), place, alignment=_NUMBER_BYTES)
        self._synchronize()
        before = llvm.LoadOp(self._thread.type, place, alignment=_NUMBER_BYTES).result
        with when(compare("eq", add(before, 1), part.sharers)):
            self._synchronize()  # all have read what lies where sums are exchanged
            self._combine(part, rows)
            with when(self._leader):
                base_ptx.lower_flag(counter)

    # All parts ------------------------------------------------------------------------------------

    def _combine(self, part: Part, rows: TileRows) -> None:
        """Adds all parts of a tile."""
        at_once = rows_at_once(self._columns, self._threads)
        branches = Branches(compare("ule", rows.count, at_once))
        with branches.then():
            self._combine_few(part, rows, at_once)
        with branches.otherwise():
            self._combine_many(part, rows, at_once)

    def _combine_few(self, part: Part, rows: TileRows, at_once: int) -> None:
        """Of at most so many rows: several threads share the parts of a few columns of a row, if
        there are too few rows for all threads."""
        across = self._columns // _QUAD  # threads of a row
        places = at_once
        together: Value = constant(places)  # rows
        while places > 1:
            places //= 2
            together = select(compare("ule", rows.count, places), places, together)
        teams = udiv(self._threads // across, together)
        number_, column = udiv(self._thread, across), mul(urem(self._thread, across), _QUAD)
        row, team = urem(number_, together), udiv(number_, together)
        first, end = (udiv(mul(each, part.sharers), teams) for each in (team, add(team, 1)))
        read = umin(row, sub(rows.count, 1))
        [seen] = self._sums(part, (first, end), [read], column)
        self._share(seen)
        self._synchronize()
        with when(arith.andi(compare("eq", team, 0), compare("ult", row, rows.count))):
            _, total, sums = self._gather(teams, mul(together, across))
            self._store(rows, row, column, total, sums)

    def _combine_many(self, part: Part, rows: TileRows, at_once: int) -> None:
        """Of more rows: threads have several each."""
        across = self._columns // _QUAD
        number_, column = udiv(self._thread, across), mul(urem(self._thread, across), _QUAD)
        with loop(0, rows.count, ROWS_AT_ONCE * at_once) as each:
            ptx.keep_rolled()
            own = [add(each.index, add(number_, i * at_once)) for i in range(ROWS_AT_ONCE)]
            read = [umin(row, sub(rows.count, 1)) for row in own]
            found = self._sums(part, (0, part.sharers), read, column)
            for row, (_, total, sums) in zip(own, found, strict=True):
                with when(compare("ult", row, rows.count)):
                    self._store(rows, row, column, total, sums)

    def _store(
        self, rows: TileRows, row: Num, column: Num, total: Value, sums: Sequence[Value]
    ) -> None:
        means = self._softmax.mean(total, sums)
        packed = add(rows.first, row)
        store_row(rows.result, packed, column, {0: means}, rows.size, rows.element)

    def _sums(
        self, part: Part, reach: tuple[Num, Num], rows: Sequence[Num], column: Num
    ) -> list[tuple[Value, Value, list[Value]]]:
        """What parts from one to another have of some rows, added in their order."""
        first, end = reach
        step = _AT_ONCE // len(rows)
        places = [
            (
                wide(mul(add(mul(row, self._columns), column), _NUMBER_BYTES)),
                wide(add(mul(row, _STATE_BYTES), self._sums_bytes)),
            )
            for row in rows
        ]
        size = _QUAD + 2
        nothing = [number(float("-inf")), *[number(0)] * (size - 1)] * len(rows)
        with loop(first, end, step, nothing) as parts:
            found = [
                [self._load(part, parts.index, i, end, *place) for i in range(step)]
                for place in places
            ]
            parts.next = []
            for row, loaded in enumerate(found):
                maximum, total, *sums = parts.carried[row * size : (row + 1) * size]
                maximum, total, sums = self._softmax.combine(
                    [maximum, *(each[0] for each in loaded)],
                    [total, *(each[1] for each in loaded)],
                    [sums, *(each[2] for each in loaded)],
                )
                parts.next += [maximum, total, *sums]
        results = [parts.results[at : at + size] for at in range(0, len(nothing), size)]
        return [(maximum, total, sums) for maximum, total, *sums in results]

    def _load(
        self, part: Part, first: Num, further: int, end: Num, place: Num, state_at: Num
    ) -> tuple[Value, Value, list[Value]]:
        """A row's maximum, total and sums of one part; nothing was seen beyond the last one."""
        number_ = add(first, further)
        sharer = umin(number_, sub(end, 1))
        slot = self._slot(add(part.owner, sharer), compare("eq", sharer, 0))
        maximum, total = ptx.load_pair(add(slot, state_at))
        sums = base_ptx.load_quad(add(slot, place), 0)
        inside = compare("ult", number_, end)
        return select(inside, maximum, number(float("-inf"))), total, sums

    # Between teams --------------------------------------------------------------------------------

    def _share(self, seen: tuple[Value, Value, Sequence[Value]]) -> None:
        """Leaves what a thread has for the first team."""
        maximum, total, sums = seen
        start = add(self._offset, mul(self._thread, _NUMBER_BYTES))
        for position, each in enumerate((maximum, total, *sums)):
            target = self._memory.pointer(start, position * self._threads * _NUMBER_BYTES)
            llvm.StoreOp(each, target, alignment=_NUMBER_BYTES)

    def _gather(self, teams: Num, distance: Num) -> tuple[Value, Value, list[Value]]:
        """What all teams have of the thread's columns, by those of the first team.

        Args:
            distance: threads from a team to the next.
        """
        nothing = [number(float("-inf")), *[number(0)] * (_QUAD + 1)]
        with loop(0, teams, 1, nothing) as each:
            thread = add(self._thread, mul(each.index, distance))
            start = add(self._offset, mul(thread, _NUMBER_BYTES))
            maximum, total, *sums = (
                llvm.LoadOp(
                    f32(),
                    self._memory.pointer(start, position * self._threads * _NUMBER_BYTES),
                    alignment=_NUMBER_BYTES,
                ).result
                for position in range(_SHARED_NUMBERS)
            )
            before = each.carried
            maximum, total, sums = self._softmax.combine(
                [before[0], maximum], [before[1], total], [before[2:], sums]
            )
            each.next = [maximum, total, *sums]
        maximum, total, *sums = each.results
        return maximum, total, sums
