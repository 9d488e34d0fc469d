# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The epilogue of tiles of pixels: each group of a fragment's columns is a row of pixels.

Everything is as in the epilogues of matrix products whose tiles' rows are columns of the result,
but from a group of 8 columns to the next it is one row of pixels, of the batch dim ``line``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shapejit.gpu.interface import Im2colMap, TensorMap
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    mul,
    sub,
    umin,
    when,
    wide,
)
from shapejit.passes.nvgpu.conv.halo_window import WIDTH
from shapejit.passes.nvgpu.conv.lines import LineProduct
from shapejit.passes.nvgpu.epilogue import Epilogue
from shapejit.passes.nvgpu.extras import Directions, ExtraReader, TileOrigin, TileReader, Way
from shapejit.passes.nvgpu.function import KernelFunction, Threads
from shapejit.passes.nvgpu.problem import Access, Matrix, result_matrix
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import STRIP_BYTES, Chunk, DirectStore, StagedStore, Store
from shapejit.passes.nvgpu.wgmma import ROWS, Fragment
from shapejit.symbolic.expr import ZERO

_CHUNK_GROUPS = 4  # that a staged store takes at once


class PixelEpilogue(Epilogue):
    """The epilogue of a convolution in tiles of pixels, see `Epilogue`."""

    _problem: LineProduct

    def _reader(self, extra: Access) -> ExtraReader:
        return _PixelReader(self._function, extra, self._directions, self._problem.line)

    def _tile_reader(self, origin: TileOrigin) -> TileReader:
        return _PixelTileReader(
            self._function, self._readers, self._directions, self._threads, origin, self._problem
        )


class _PixelReader(ExtraReader):
    """One extra operand.

    Args:
        line: the dim of rows of pixels.
        (the others as for `ExtraReader`)
    """

    def __init__(
        self, function: KernelFunction, access: Access, directions: Directions, line: int
    ) -> None:
        super().__init__(function, access, directions)
        self._line = line

    def _find_way(self) -> Way:
        way = super()._find_way()
        # Groups of columns are then no multiple of a constant apart, or not one element for all.
        by_line = (Way.ONCE, Way.BY_ROW) if self._stride(self._line) != ZERO else ()
        return Way.ELEMENTS if way in (Way.COLUMN_PAIRS, *by_line) else way

    def line_bytes(self) -> Num:
        """From a row of pixels to the next."""
        return self._bytes_along(self._line)


class _PixelTileReader(TileReader):
    """The extras of one tile of a consumer, see `TileReader`."""

    def __init__(
        self,
        function: KernelFunction,
        readers: Sequence[ExtraReader],
        directions: Directions,
        threads: Threads,
        origin: TileOrigin,
        problem: LineProduct,
    ) -> None:
        super().__init__(function, readers, directions, threads, origin)
        self._line_dim = problem.line
        self._lines = function.size(problem.space[problem.line])

    def _group_bytes(self, reader: ExtraReader) -> Num:
        assert isinstance(reader, _PixelReader)
        return reader.line_bytes()

    def _inside(self, fragment: Fragment, group: int, side: int = 0) -> Value:
        def left() -> Value:
            return sub(self._columns, add(self._origin.column, fragment.column))

        def lines_left() -> Value:
            return sub(self._lines, self._origin.batch[self._line_dim])

        here = self._once(("left", fragment is self._turned), left)
        below = self._once(("lines left",), lines_left)
        return and_(compare("sgt", here, side), compare("sgt", below, group))

    def _dims(self, block: int, group: int, half: int, side: int) -> dict[int, Num]:
        pixel = add(add(self._origin.column, self._fragment.column), side)
        line = add(self._origin.batch[self._line_dim], group)
        return {
            **dict(enumerate(self._origin.batch)),
            self._line_dim: umin(line, sub(self._lines, 1)),
            self._directions.rows: self._row(self._fragment, block, half, 1),
            self._directions.columns: umin(pixel, sub(self._columns, 1)),
        }


# Stores -------------------------------------------------------------------------------------------


def make_store(
    function: KernelFunction,
    memory: SharedMemory,
    problem: LineProduct,
    directions: Directions,
    threads: Threads,
    *,
    consumers: int,
    lines: int,
) -> Store:
    """What stores the tiles.

    Args:
        consumers: warpgroups that store.
        lines: rows of pixels of a tile.
    """
    matrix = result_matrix(problem)
    if matrix is None or matrix.dims[:2] != (problem.n, problem.m):
        return _DirectPixelStore(function, problem, directions, threads)
    return _StagedPixelStore(
        function, memory, matrix, threads, consumers=consumers, problem=problem, lines=lines
    )


class _StagedPixelStore(StagedStore):
    """Through shared memory and TMA, in boxes of some rows of pixels.

    Args:
        problem: whose result it is.
        lines: rows of pixels of a tile.
        (the others as for `StagedStore`)
    """

    def __init__(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        matrix: Matrix,
        threads: Threads,
        *,
        consumers: int,
        problem: LineProduct,
        lines: int,
    ) -> None:
        self._problem = problem
        # No box may reach into the tile below.
        self._box_lines = math.gcd(_CHUNK_GROUPS, lines) if problem.line in matrix.dims else 1
        super().__init__(function, memory, matrix, threads, consumers=consumers, turned=True)
        assert self.groups == _CHUNK_GROUPS and self._descriptor.box[1] == WIDTH

    def _boxed(self, record: TensorMap | Im2colMap) -> TensorMap | Im2colMap:
        lines = {self._problem.line: self._box_lines}
        rest = (lines.get(dim, 1) for dim in self._matrix.dims[2:])
        return record.with_box((*record.box[:2], *rest))

    def _start(self, offset: Value, origin: TileOrigin, chunk: Chunk) -> None:
        line_dim, dims = self._problem.line, self._matrix.dims
        row = add(origin.row, ROWS * chunk.block)
        for first in range(0, len(chunk.groups), self._box_lines):
            line = add(origin.batch[line_dim], chunk.groups.start + first)
            place = {**dict(enumerate(origin.batch)), line_dim: line}
            rest = [place[dim] for dim in dims[2:]]
            inside = compare("ult", line, self._function.size(self._problem.space[line_dim]))
            strip = add(offset, first * STRIP_BYTES)
            with when(inside), self._inside(row, 0):
                self._descriptor.store(self._memory, strip, [row, origin.column, *rest])


class _DirectPixelStore(DirectStore):
    """Element by element, row of pixels by row."""

    def __init__(
        self,
        function: KernelFunction,
        problem: LineProduct,
        directions: Directions,
        threads: Threads,
    ) -> None:
        super().__init__(function, problem.result, directions, threads)
        self._line_dim = problem.line
        self._lines = function.size(problem.space[problem.line])
        self._pitch = function.size(problem.result.stride(problem.line) or ZERO, 8)

    def store(self, origin: TileOrigin, chunk: Chunk, results: Sequence[Value]) -> None:
        start = self._batch_offset(origin)
        for half in range(2):
            row = add(add(origin.row, self._fragment.row), ROWS * chunk.block + 8 * half)
            first = add(start, mul(wide(row), self._row_stride))
            with when(compare("ult", row, self._rows)):
                for number, group in enumerate(chunk.groups):
                    pair = results[4 * number + 2 * half : 4 * number + 2 * half + 2]
                    line = add(origin.batch[self._line_dim], group)
                    with when(compare("ult", line, self._lines)):
                        offset = add(first, mul(self._pitch, group))
                        column = add(origin.column, self._fragment.column)
                        self._store_pair(offset, column, pair)
