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
from shapejit.passes.nvgpu.attention.decode_work import Part
from shapejit.passes.nvgpu.attention.softmax import Softmax, State, across_row, number, row_of
from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    add,
    ceildiv,
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
# Parts whose sums are on their way at once. Of a tile full of rows every thread adds several rows,
# one after the other, so each wait for memory counts that often.
_AT_ONCE = 16
_NUMBER_BYTES = 4
_SHARED_NUMBERS = _QUAD + 2  # that a thread leaves for another one: sums, maximum and total


def combine_bytes(threads: int) -> int:
    """Shared memory that `PartialTiles.finish` takes."""
    return threads * _SHARED_NUMBERS * _NUMBER_BYTES


def rounds_of(rows: Num, columns: int, threads: int) -> Num:
    """How often the threads that add the parts of a tile wait for memory, with few parts: i32.

    Args:
        rows: of the tile, i32.
        columns: of a row, with padding.
        threads: how many there are.
    """
    at_once = max(threads // (columns // _QUAD), 1)
    return ceildiv(rows, at_once)


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
        """Adds all parts of a tile. Several threads share the parts of a few columns of a row, if
        there are too few rows for all threads."""
        across = self._columns // _QUAD  # threads of a row
        places = self._threads // across
        together: Value = constant(places)  # rows at once
        while places > 1:
            places //= 2
            together = select(compare("ule", rows.count, places), places, together)
        teams = udiv(self._threads // across, together)
        number_, column = udiv(self._thread, across), mul(urem(self._thread, across), _QUAD)
        own, team = urem(number_, together), udiv(number_, together)
        with loop(0, rows.count, together) as each:
            ptx.keep_rolled()
            row = add(each.index, own)
            read = umin(row, sub(rows.count, 1))
            self._share(self._sum(part, team, teams, read, column))
            self._synchronize()
            with when(arith.andi(compare("eq", team, 0), compare("ult", row, rows.count))):
                _, total, sums = self._gather(teams, mul(together, across))
                means = self._softmax.mean(total, sums)
                packed = add(rows.first, row)
                store_row(rows.result, packed, column, {0: means}, rows.size, rows.element)
            self._synchronize()

    def _sum(
        self, part: Part, team: Num, teams: Num, row: Num, column: Num
    ) -> tuple[Value, Value, list[Value]]:
        """What a team has of a row: its parts, in order."""
        first, end = (udiv(mul(each, part.sharers), teams) for each in (team, add(team, 1)))
        place = wide(mul(add(mul(row, self._columns), column), _NUMBER_BYTES))
        state_at = wide(add(mul(row, _STATE_BYTES), self._sums_bytes))
        nothing = [number(float("-inf")), *[number(0)] * (_QUAD + 1)]
        with loop(first, end, _AT_ONCE, nothing) as parts:
            found = [
                self._load(part, parts.index, i, end, place, state_at) for i in range(_AT_ONCE)
            ]
            maximum, total, *sums = parts.carried
            maximum, total, sums = self._softmax.combine(
                [maximum, *(each[0] for each in found)],
                [total, *(each[1] for each in found)],
                [sums, *(each[2] for each in found)],
            )
            parts.next = [maximum, total, *sums]
        maximum, total, *sums = parts.results
        return maximum, total, sums

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
