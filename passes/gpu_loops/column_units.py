# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Long columns that all CTAs share: units are blocks of columns at a piece of the reduced dims.

What a unit adds up to goes to scratch memory. The CTA that is done last with a block, by a counter,
combines the pieces, always in the same way, and leaves the counter at 0::

    scratch   | a counter for each block | what each unit adds up to

How many pieces there are follows from schedule and sizes alone, so results do not depend on how
many CTAs run, or when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir.dialects import arith, gpu, llvm

from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.reduce import (
    CELL_BYTES,
    Reduction,
    from_words,
    get,
    put,
    to_words,
)
from shapejit.passes.gpu_loops.schedule import WARP, LoopSchedule
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.attention.ptx import count_up
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    i32,
    i64,
    mul,
    sub,
    udiv,
    umax,
    umin,
    urem,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.symbolic import Expr

MOST_UNITS = 4096
"""Units that columns may have."""

_COUNTER_BYTES = 4
# Pieces that a thread loads at once.
_AHEAD = 16


def check_column_units(found: Sequence[object], schedule: LoopSchedule) -> None:
    """Refuses a schedule with units that a kernel with columns cannot have.

    Raises:
        LoweringError: it cannot.
    """
    if len(found) != 1:
        raise LoweringError("has units in its schedule, and reduces in several ways")
    if not 0 < schedule.chunks <= MOST_UNITS:
        raise LoweringError(
            f"has the schedule {schedule}; columns have up to {MOST_UNITS} units, of a CTA each"
        )


class Pieces:
    """How the reduced dims are cut.

    Args:
        emission: of the kernel; its schedule says how many units there are.
        blocks: of columns.
        steps: of the reduced dims.

    Attributes:
        count: pieces of a block, at least 1, of the index type.
        units: of all blocks.
    """

    def __init__(self, emission: Emission, blocks: Expr, steps: Expr) -> None:
        self._emission = emission
        wanted = emission.ssa(emission.schedule.chunks)
        own = emission.ssa(umax(emission.indexer.ssa(blocks), 1))
        self.count = emission.ssa(umax(udiv(wanted, own), 1))
        self.units = mul(emission.indexer.ssa(blocks), self.count)
        self._steps = emission.indexer.ssa(steps)
        self._each = udiv(add(self._steps, sub(self.count, 1)), self.count)

    def block(self, unit: Value) -> Value:
        """The number of a unit's block."""
        return self._emission.ssa(udiv(unit, self.count))

    def span(self, unit: Value) -> tuple[Value, Value]:
        """The first step of a unit's piece, and the end of it."""
        first = umin(mul(urem(unit, self.count), self._each), self._steps)
        end = umin(add(first, self._each), self._steps)
        return self._emission.ssa(first), self._emission.ssa(end)


class PieceExchange:
    """Emits what the CTAs of a block tell each other.

    Args:
        emission: of the kernel.
        reductions: of every column.
        block: columns of a block at most.
        cells: shared memory for a cell of each reduction, warp and column of a block.
    """

    def __init__(
        self,
        emission: Emission,
        reductions: Sequence[Reduction],
        block: int,
        cells: tuple[SharedMemory, int],
    ) -> None:
        self._emission, self._reductions, self._cells = emission, reductions, cells
        self._most, self._warps = block, emission.schedule.threads // WARP
        units = emission.schedule.chunks
        self._counters = -(-units * _COUNTER_BYTES // 16) * 16
        memory = emission.function.workspace(
            len(reductions) * block * CELL_BYTES, self._counters, units
        )
        self._scratch = llvm.ptrtoint(i64(), memory)
        self._taken = emission.shared(CELL_BYTES)
        self._thread = emission.threads.thread

    def is_last(
        self, unit: Value, pieces: Pieces, has_column: Value, totals: Callable[[], Sequence[Value]]
    ) -> Value:
        """Leaves what a unit adds up to, and says whether all other pieces of its block have been
        left (i1).

        Args:
            has_column: i1, whether this thread has a column.
            totals: emits what the unit adds up to there.
        """
        memory, start = self._taken
        with when(has_column):
            for number, total in enumerate(totals()):
                address = self._cell(unit, number, self._thread)
                for place, word in enumerate(to_words(total)):
                    text = f"st.global.b32 [$0+{4 * place}], $1;"
                    ptx.assembly(None, text, "l,r,~{memory}", [address, word], pure=False)
        gpu.barrier()
        with when(compare("eq", self._thread, 0)):
            put(memory, start, count_up(self._counter(pieces.block(unit))))
        gpu.barrier()
        done = get(memory, start, i32())
        return compare("eq", add(done, 1), _narrow(pieces.count))

    def totals(self, unit: Value, pieces: Pieces, block: int) -> list[Value]:
        """What all pieces of a unit's block add up to, for the column of this thread; by all
        threads of the CTA that is last.

        Args:
            block: columns of a block.
        """
        slices = min(self._emission.schedule.threads // block, self._warps)
        column, own = urem(self._thread, block), value(udiv(self._thread, block))
        first = mul(pieces.block(unit), pieces.count)
        with when(compare("eq", self._thread, 0)):
            ptx.lower_flag(self._counter(pieces.block(unit)))
        parts = self._over_pieces(first, pieces, value(column), own, slices)
        memory, _ = self._cells
        for number, part in enumerate(parts):
            put(memory, self._shared_cell(number, own, column), part, compare("ult", own, slices))
        gpu.barrier()
        return [
            reduction.together(
                [
                    get(memory, self._shared_cell(number, each, column), reduction.type)
                    for each in range(slices)
                ]
            )
            for number, reduction in enumerate(self._reductions)
        ]

    def _over_pieces(
        self, first: Num, pieces: Pieces, column: Value, own: Value, slices: int
    ) -> list[Value]:
        """What every so many-th piece adds up to, from the thread's own on, for a column."""
        indexer, count = self._emission.indexer, pieces.count
        last = sub(count, 1)

        def body(index: Expr, totals: list[Value]) -> Sequence[Value]:
            places = [add(indexer.ssa(index), number * slices) for number in range(_AHEAD)]
            units = [self._emission.ssa(add(first, umin(place, last))) for place in places]
            made = []
            for number, reduction in enumerate(self._reductions):
                loaded = [self._load(unit, number, column, reduction) for unit in units]
                there = [
                    arith.select(compare("ult", place, count), part, reduction.identity)
                    for place, part in zip(places, loaded, strict=True)
                ]
                made.append(reduction.combine(totals[number], reduction.together(there)))
            return made

        init = [reduction.identity for reduction in self._reductions]
        return indexer.loop(
            self._emission.index(own), count, body, size=MOST_UNITS, step=slices * _AHEAD, init=init
        )

    def _load(self, unit: Value, number: int, column: Value, reduction: Reduction) -> Value:
        address = self._cell(unit, number, column)
        words = 2 if int(reduction.type.width) == 64 else 1
        pieces = [ptx.load_relaxed(add(address, 4 * place), 4) for place in range(words)]
        return from_words(pieces, reduction.type)

    def _counter(self, block: Value) -> Value:
        return value(add(self._scratch, wide(mul(_narrow(block), _COUNTER_BYTES))))

    def _cell(self, unit: Value, number: int, column: Value) -> Value:
        """Where a unit leaves a reduction of a column in scratch memory."""
        row = add(mul(_narrow(unit), len(self._reductions)), number)
        place = mul(add(mul(row, self._most), column), CELL_BYTES)
        return value(add(add(self._scratch, wide(place)), self._counters))

    def _shared_cell(self, number: int, own: Num, column: Num) -> Num:
        _, start = self._cells
        row = add(mul(own, self._most), column)
        return add(mul(row, CELL_BYTES), start + number * self._warps * self._most * CELL_BYTES)


def _narrow(number: Value) -> Value:
    """A number of units, or of a block, as an i32."""
    return number if number.type == i32() else arith.trunci(i32(), number)
