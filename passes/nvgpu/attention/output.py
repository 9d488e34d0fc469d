# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a warp's results leave its registers.

They go through shared memory, where a warp turns its fragments into lines that its lanes store 16
bytes at once; no other warp takes part. Rows that are no multiples of 16 bytes are stored element
by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir.dialects import arith, llvm, nvvm

from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.masks import Queries
from shapejit.passes.nvgpu.attention.tiles import CHUNK, CHUNK_BYTES, Rows, Tile, all_aligned
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Type,
    Value,
    add,
    and_,
    compare,
    integer,
    loop,
    mul,
    pointer,
    shr,
    udiv,
    urem,
    when,
    wide,
)
from shapejit.passes.nvgpu.function import Threads
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import matrix_attributes
from shapejit.passes.nvgpu.wgmma import ELEMENT_BYTES

_WARP = 32
_WARP_ROWS = 16


@dataclass(frozen=True)
class ResultStore:
    """Stores the results of a warpgroup.

    Attributes:
        memory: shared memory.
        offset: of the tile's place in it, i32. Each warp uses the lines of its own rows only.
        tile: layout of the worker's results.
        threads: where the thread is.
        block: which 64 rows of the tile the warpgroup has, i32.
        element: of the results, 16 bits.
    """

    memory: SharedMemory
    offset: Num
    tile: Tile
    threads: Threads
    block: Num
    element: Type

    def store(self, rows: Rows, queries: Queries, results: Sequence[Value]) -> None:
        """Stores 64 rows.

        Args:
            rows: of the result tensor.
            queries: of the warpgroup.
            results: f32, in the order of the fragment's registers.
        """
        self.stage(results)
        ptx.synchronize_warp()
        aligned = all_aligned([rows])
        if aligned is None or self.tile.size % CHUNK:
            self._store_elements(rows, queries)
            return
        branches = Branches(aligned)
        with branches.then():
            self._store_lines(rows, queries)
        with branches.otherwise():
            self._store_elements(rows, queries)

    @property
    def _warp_row(self) -> Num:
        """The first of the warp's rows in the 64 of the warpgroup."""
        return mul(and_(self.threads.warp, 3), _WARP_ROWS)

    def _address(self, row: Num, chunk: Num) -> Value:
        """Shared address of a part of one of the warpgroup's rows."""
        place = self.tile.place(add(mul(self.block, 64), row), chunk)
        return add(self.memory.base, add(place, self.offset))

    def stage(self, results: Sequence[Value]) -> None:
        """Writes the warp's fragments as lines: matrices of 8 rows by a chunk, four at once.

        Args:
            results: f32, in the order of the fragment's registers; of a multiple of 16 columns.
        """
        packed = [
            base_ptx.pack_halves(results[i], results[i + 1], self.element)
            for i in range(0, len(results), 2)
        ]
        lane = self.threads.lane
        row = add(self._warp_row, add(and_(lane, 7), mul(and_(shr(lane, 3), 1), 8)))
        for quad in range(0, len(packed), 4):
            address = self._address(row, add(shr(lane, 4), quad // 2))
            target = llvm.inttoptr(pointer(3), address)
            nvvm.StMatrixOp(target, packed[quad : quad + 4], *matrix_attributes("row"))

    def _store_lines(self, rows: Rows, queries: Queries) -> None:
        lane, chunks = self.threads.lane, self.tile.chunks
        together = _WARP // chunks
        chunk = urem(lane, chunks)
        for first in range(0, _WARP_ROWS, together):
            row = add(add(self._warp_row, first), udiv(lane, chunks))
            words = base_ptx.load_shared(self._address(row, chunk), 0, 4)
            query = add(queries.first, row)
            inside = compare("ult", query, rows.count)
            if self.tile.size < self.tile.width:
                inside = arith.andi(inside, compare("ult", chunk, self.tile.size // CHUNK))
            with when(inside):
                along = add(rows.start, wide(mul(chunk, CHUNK_BYTES)))
                ptx.store_words(add(along, mul(wide(query), rows.stride)), words)

    def _store_elements(self, rows: Rows, queries: Queries) -> None:
        lane, size, half = self.threads.lane, self.tile.size, integer(16)
        with loop(base_ptx.unknown(lane), _WARP_ROWS * size, _WARP) as each:
            ptx.keep_rolled()
            row, column = udiv(each.index, size), urem(each.index, size)
            row = add(self._warp_row, row)
            query = add(queries.first, row)
            source = add(
                self._address(row, udiv(column, CHUNK)), mul(urem(column, CHUNK), ELEMENT_BYTES)
            )
            element = llvm.LoadOp(
                half, llvm.inttoptr(pointer(3), source), alignment=ELEMENT_BYTES
            ).result
            with when(compare("ult", query, rows.count)):
                target = llvm.inttoptr(pointer(1), rows.address(query, column))
                llvm.StoreOp(element, target, alignment=ELEMENT_BYTES)
