# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A stage of a product: tiles from shared memory into registers, fused multiply-adds.

Four elements of K at a time: a thread reads 16 bytes for each of its rows and columns (K-major), or
for each four of them and element of K (MN-major); either way as many loads. Every factor read so
takes part in as many multiply-adds as the thread has columns, or rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import llvm

from shapejit.passes.nvgpu.builder import Num, Value, add, and_, f32, mul, value, xor
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.simt.copies import CHUNK_BYTES, ELEMENT_BYTES, TileLayout
from shapejit.passes.nvgpu.simt.places import Position
from shapejit.passes.nvgpu.simt.tiling import QUAD, Tiling

_PATTERN = 8


class FragmentReader:
    """Reads what a thread multiplies of one operand's tile.

    Args:
        memory: shared memory.
        layout: of the tile.
        place: the thread's place along the operand's rows.
        places: threads along them.
        count: rows of the thread.
        part: number of its part.
        parts: that share a stage.
    """

    def __init__(
        self,
        memory: SharedMemory,
        layout: TileLayout,
        place: Value,
        places: int,
        count: int,
        part: Num,
        parts: int,
    ) -> None:
        self._memory, self._layout = memory, layout
        self._places, self._count, self._parts = places, count, parts
        self._chunks = layout.depth // QUAD
        if layout.k_major:
            self._start = mul(mul(place, QUAD), self._chunks * CHUNK_BYTES)
            # Which chunk it is, as far as it is not known: steps and rows exchange bits of it.
            self._turn = mul(xor(and_(place, _PATTERN - 1), part), CHUNK_BYTES)
        else:
            first = mul(part, QUAD * layout.extent * ELEMENT_BYTES)
            self._start = add(mul(place, CHUNK_BYTES), first)

    def read(self, tile: Num, step: int) -> list[list[Value]]:
        """The elements of a quad of K, by row and element of K.

        Args:
            tile: offset of the tile in shared memory.
            step: which of the part's quads.
        """
        start = add(tile, self._start)
        if self._layout.k_major:
            return [self._row(start, number, step) for number in range(self._count)]
        lines = [self._line(start, step, k) for k in range(QUAD)]
        return [[line[row] for line in lines] for row in range(self._count)]

    def _row(self, start: Num, number: int, step: int) -> list[Value]:
        """Four elements of K of a row, in K-major order."""
        group, row = divmod(number, QUAD)
        first = group * QUAD * self._places + row  # but for the thread's place
        at = first * self._chunks + step * self._parts
        # The lower bits say which chunk of a line of all banks; the thread's place exchanges them.
        turn = at % _PATTERN ^ first // QUAD % _PATTERN
        further = at // _PATTERN * _PATTERN * CHUNK_BYTES
        start = add(start, xor(self._turn, turn * CHUNK_BYTES))
        return self._load(start, further)

    def _line(self, start: Num, step: int, k: int) -> list[Value]:
        """A thread's rows at one element of K, in MN-major order."""
        element = (step * self._parts * QUAD + k) * self._layout.extent
        found: list[Value] = []
        for group in range(self._count // QUAD):
            at = element + group * QUAD * self._places
            found += self._load(start, at * ELEMENT_BYTES)
        return found

    def _load(self, offset: Num, further: int) -> list[Value]:
        """Four f32 of shared memory."""
        type_ = ir.VectorType.get([QUAD], f32())
        pointer = self._memory.pointer(offset, further)
        quad = llvm.LoadOp(type_, pointer, alignment=CHUNK_BYTES).result
        return [llvm.extractelement(quad, value(i)) for i in range(QUAD)]


class Product:
    """The multiply-adds of a thread.

    Args:
        tiling: of the tile.
        rows: reads the rows.
        columns: reads the columns, of every weight.
    """

    def __init__(
        self, tiling: Tiling, rows: FragmentReader, columns: Sequence[FragmentReader]
    ) -> None:
        self._tiling, self._rows, self._columns = tiling, rows, columns

    @property
    def sums(self) -> int:
        """Of a thread, for all weights."""
        return self._tiling.sums * len(self._columns)

    def add_stage(self, sums: Sequence[Value], rows: Num, columns: Sequence[Num]) -> list[Value]:
        """Adds a stage's products.

        Args:
            sums: by weight, row and column.
            rows, columns: offsets of the stage's tiles in shared memory.
        """
        totals = list(sums)
        for step in range(self._tiling.steps):
            left = self._rows.read(rows, step)
            for number, (reader, tile) in enumerate(zip(self._columns, columns, strict=True)):
                self._add(totals, number * self._tiling.sums, left, reader.read(tile, step))
        return totals

    def _add(
        self,
        totals: list[Value],
        first: int,
        left: Sequence[Sequence[Value]],
        right: Sequence[Sequence[Value]],
    ) -> None:
        """Adds four products to every sum, to and fro so that neighbours share a factor."""
        width = self._tiling.thread_columns
        for k in range(QUAD):
            for row in range(self._tiling.thread_rows):
                columns = range(width) if row % 2 == 0 else reversed(range(width))
                for column in columns:
                    at = first + row * width + column
                    totals[at] = llvm.intr_fma(left[row][k], right[column][k], totals[at])


def fragment_readers(
    memory: SharedMemory, position: Position, layouts: Sequence[TileLayout]
) -> tuple[FragmentReader, list[FragmentReader]]:
    """The readers of the rows and, for every weight, of the columns.

    Args:
        layouts: of the rows, then of the weights.
    """
    rows, *columns = layouts
    tiling = position.tiling

    def reader(layout: TileLayout, place: Value, places: int, count: int) -> FragmentReader:
        return FragmentReader(memory, layout, place, places, count, position.part, tiling.parts)

    return (
        reader(rows, position.y, tiling.down, tiling.thread_rows),
        [reader(each, position.x, tiling.across, tiling.thread_columns) for each in columns],
    )
