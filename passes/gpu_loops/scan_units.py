# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows of a scan that are cut into units, which any CTA takes: what comes before a unit.

A CTA reads a unit once: it holds it in registers while it finds out what all units before it in the
row add up to. So a row takes as much traffic as a copy of it, by as many multiprocessors as there
are. Units of a row form groups::

    units     | 0 1 2 .. 127 | 128 129 .. 255 | 256 ..
    known of     what each adds up to; of a group's last one, what the row adds up to with it, too

What comes before a unit is what the row adds up to before its group, and what the units before it
in the group do, always added in the same way: results are the same in every run.

Units are numbered by when a CTA takes them, from a counter in scratch memory, and a unit waits for
lower numbers alone. Those have been taken by CTAs that run. So it does not matter which CTAs run at
once, or whether all do. The CTA that is done last sets the counters and flags to 0::

    scratch   | CTAs done | units taken | two flags of each unit | two states of each unit

The first flag and state are of the unit, the second ones of the row up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mlir.dialects import arith, gpu, llvm

from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.reduce import CELL_BYTES, from_words, get, put, shuffled, to_words
from shapejit.passes.gpu_loops.schedule import WARP
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.attention.ptx import count_up
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    i32,
    i64,
    loop,
    mul,
    sub,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.function import Units
from shapejit.passes.rowwise.combine import Combine, State

MOST_UNITS: Final = 4096
"""Units of all rows: as many flags as there is room for."""
GROUP: Final = 4 * WARP
"""Units of a group, a power of 2: four for each lane."""

_COUNTER_BYTES, _FLAG_BYTES, _STATE_BYTES = 16, 4, 16
_FLAGS_END = _COUNTER_BYTES + 2 * MOST_UNITS * _FLAG_BYTES
# Of the states, for each of so many CTAs. Grids of fewer have as much, as rows may have as many
# units there.
_CTAS = 64
_BYTES_OF_CTA = 2 * MOST_UNITS * _STATE_BYTES // _CTAS


class UnitExchange:
    """Emits what CTAs tell each other of units.

    Args:
        emission: of the kernel, whose CTAs have `GROUP` threads and a warp more, or more.
        combine: of the scan.
        over_lanes: an inclusive scan over the lanes of a warp.
    """

    def __init__(
        self, emission: Emission, combine: Combine, over_lanes: Callable[[State], State]
    ) -> None:
        self._combine, self._over_lanes = combine, over_lanes
        self._threads = emission.threads
        self._ctas = Units.read(1).units
        self._count = emission.schedule.threads
        memory = emission.function.workspace(_BYTES_OF_CTA, _FLAGS_END, _CTAS)
        self._scratch = llvm.ptrtoint(i64(), memory)
        self._words = len(combine.identity)
        self._cells = emission.shared((GROUP + 1) * self._words * CELL_BYTES)
        self._taken = emission.shared(CELL_BYTES)
        self._is_first = compare("eq", self._threads.thread, 0)

    def take(self) -> Value:
        """The number of a unit that nobody has taken, i32; a barrier is in between."""
        memory, start = self._taken
        with when(self._is_first):
            put(memory, start, count_up(add(self._scratch, _FLAG_BYTES)))
        gpu.barrier()
        return get(memory, start, i32())

    def before(self, unit: Value, number: Num, total: State) -> State:
        """What comes before a unit in its row.

        Args:
            unit: its number.
            number: the same among those of the row, i32.
            total: what it adds up to.
        """
        within = and_(number, GROUP - 1)
        self._publish(mul(unit, 2), total, self._is_first)
        self._collect(unit, number, within)
        gpu.barrier()
        found = self._prefix()
        is_last = arith.andi(self._is_first, compare("eq", within, GROUP - 1))
        self._publish(add(mul(unit, 2), 1), self._combine.combine(found, total), is_last)
        return found

    def finish(self, units: Num) -> None:
        """Sets to 0 what was used of so many units, by the CTA that is done last."""
        memory, start = self._taken
        gpu.barrier()  # all have read what they waited for, and their last number
        with when(self._is_first):
            put(memory, start, count_up(self._scratch))
        gpu.barrier()
        done = get(memory, start, i32())
        with when(compare("eq", add(done, 1), self._ctas)):
            with loop(self._threads.thread, mul(units, 2), self._count) as each:
                ptx.lower_flag(self._flag(each.index))
            with when(self._is_first):
                for place in (0, _FLAG_BYTES):
                    ptx.lower_flag(value(add(self._scratch, place)))

    # Scratch memory -------------------------------------------------------------------------------

    def _flag(self, slot: Num) -> Value:
        return value(add(self._scratch, add(wide(mul(slot, _FLAG_BYTES)), _COUNTER_BYTES)))

    def _state(self, slot: Num) -> Value:
        return value(add(self._scratch, add(wide(mul(slot, _STATE_BYTES)), _FLAGS_END)))

    def _publish(self, slot: Num, state: Sequence[Value], condition: Value) -> None:
        with when(condition):
            address = self._state(slot)
            for number, word in enumerate(state):
                for place, piece in enumerate(to_words(word)):
                    text = f"st.global.b32 [$0+{number * CELL_BYTES + 4 * place}], $1;"
                    ptx.assembly(None, text, "l,r,~{memory}", [address, piece], pure=False)
            ptx.raise_flag(self._flag(slot))

    def _awaited(self, slot: Num) -> State:
        """A state, once it is there; each thread may wait for another one."""
        ptx.await_flag(self._flag(slot))
        address, found = self._state(slot), []
        for number, word in enumerate(self._combine.identity):
            count = 2 if int(word.type.width) == 64 else 1
            pieces = [
                ptx.load_relaxed(add(address, number * CELL_BYTES + 4 * place), 4)
                for place in range(count)
            ]
            found.append(from_words(pieces, word.type))
        return found

    # Shared memory --------------------------------------------------------------------------------

    def _collect(self, unit: Value, number: Num, within: Num) -> None:
        """Threads wait for a unit of the group each, and one for the group before."""
        thread = self._threads.thread
        first = sub(unit, within)
        is_cell, is_before = compare("ult", thread, GROUP), compare("ult", thread, within)
        self._fill(thread, is_cell, is_before, mul(add(first, thread), 2))
        self._fill(
            value(GROUP),
            compare("eq", thread, GROUP),
            arith.andi(compare("eq", thread, GROUP), compare("uge", number, GROUP)),
            sub(mul(first, 2), 1),
        )

    def _fill(self, cell: Value, takes_part: Value, is_there: Value, slot: Num) -> None:
        """A state in a cell, or that of no elements if there is none before."""
        memory, start = self._cells
        at = add(mul(cell, self._words * CELL_BYTES), start)
        with when(takes_part):
            for place, word in enumerate(self._combine.identity):
                put(memory, add(at, place * CELL_BYTES), word)
        with when(is_there):
            for place, word in enumerate(self._awaited(slot)):
                put(memory, add(at, place * CELL_BYTES), word)

    def _cell(self, cell: Num) -> State:
        memory, start = self._cells
        at = add(mul(cell, self._words * CELL_BYTES), start)
        return [
            get(memory, add(at, place * CELL_BYTES), word.type)
            for place, word in enumerate(self._combine.identity)
        ]

    def _prefix(self) -> State:
        """What the row adds up to before the unit; by every warp."""
        each = GROUP // WARP
        first = mul(self._threads.lane, each)
        state = self._cell(first)
        for further in range(1, each):
            state = self._combine.combine(state, self._cell(add(first, further)))
        running = self._over_lanes(state)
        total = [shuffled("idx", word, WARP - 1) for word in running]
        return self._combine.combine(self._cell(GROUP), total)
