# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Partial sums of a tile: of the parts of a CTA, and of the CTAs of a cluster that share K.

Every part leaves its sums in shared memory. After a barrier each CTA has some rows of the tile, of
which its threads add what all parts of all CTAs left, always in the same order::

    every thread                    after the barrier
      sums -> own CTA's memory        for each CTA of the cluster, each part: add its four sums
      barrier of CTA or cluster       epilogue of these four
      ..                              barrier, so that nobody writes the next tile's sums before
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, llvm, nvvm

from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    f32,
    mul,
    pointer,
    select,
    udiv,
    umin,
    urem,
    value,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.simt.copies import CHUNK_BYTES, ELEMENT_BYTES
from shapejit.passes.nvgpu.simt.cost import partial_bytes
from shapejit.passes.nvgpu.simt.places import Position
from shapejit.passes.nvgpu.simt.tiling import QUAD, Tiling

# A row that no result has, for threads that have none.
_NO_ROW = 1 << 30


class Reduction:
    """Adds up the sums of parts and CTAs.

    Args:
        function: the kernel, whose cluster shares K.
        memory: its shared memory.
        tiling: of a tile.
        weights: products of which there are sums.
        rank: of the CTA in its cluster.
        thread: this thread's number.

    Raises:
        LoweringError: there are more CTAs than rows.
    """

    def __init__(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        tiling: Tiling,
        weights: int,
        rank: Num,
        thread: Value,
    ) -> None:
        split = function.cluster
        if tiling.rows % split:
            raise LoweringError(f"shares a tile of {tiling.rows} rows among {split} CTAs")
        self._function, self._memory, self._tiling = function, memory, tiling
        self._weights = weights
        self._offset = memory.allocate(partial_bytes(tiling, weights, split))
        quads = tiling.columns // QUAD  # of a row
        self._column = mul(urem(thread, quads), QUAD)
        self._line = udiv(thread, quads)
        self._together = tiling.threads // quads  # rows at once
        self._own = tiling.rows // split
        self._first = mul(rank, self._own)

    def _place(self, part: Num, weight: int, row: Num, column: Num) -> Num:
        """Offset of a sum in shared memory."""
        tiling = self._tiling
        block = tiling.rows * tiling.columns * ELEMENT_BYTES
        at = add(mul(row, tiling.columns), column)
        first = add(mul(part, self._weights * block), weight * block + self._offset)
        return add(mul(at, ELEMENT_BYTES), first)

    def leave(self, position: Position, sums: Sequence[Value]) -> None:
        """Puts this thread's sums into shared memory, for all threads to add."""
        tiling = self._tiling
        width = tiling.thread_columns
        vector = ir.VectorType.get([QUAD], f32())
        for weight in range(self._weights):
            for row in range(tiling.thread_rows):
                for quad in range(width // QUAD):
                    first = weight * tiling.sums + row * width + quad * QUAD
                    stored = llvm.mlir_undef(vector)
                    for lane in range(QUAD):
                        stored = llvm.insertelement(stored, sums[first + lane], value(lane))
                    place = self._place(
                        position.part,
                        weight,
                        position.row(row),
                        position.column(quad),
                    )
                    pointer_ = self._memory.pointer(place)
                    llvm.StoreOp(stored, pointer_, alignment=CHUNK_BYTES)
        self._function.synchronize()

    @property
    def rows(self) -> list[Num]:
        """The rows in the tile of which this thread has four sums."""
        found: list[Num] = []
        for first in range(0, self._own, self._together):
            line = add(self._line, first)
            row = add(self._first, line)
            if first + self._together > self._own:
                row = select(compare("ult", line, self._own), row, _NO_ROW)
            found.append(row)
        return found

    @property
    def column(self) -> Num:
        """The first column of these sums."""
        return self._column

    def gather(self, row: Num) -> list[list[Value]]:
        """The sums of a row of `rows`, by weight: four each."""
        row = umin(row, self._tiling.rows - 1)
        return [self._total(weight, row) for weight in range(self._weights)]

    def _total(self, weight: int, row: Num) -> list[Value]:
        totals: list[Value] = []
        for rank in range(self._function.cluster):
            for part in range(self._tiling.parts):
                quad = self._read(rank, self._place(part, weight, row, self._column))
                if not totals:
                    totals = quad
                else:
                    totals = [arith.addf(a, b) for a, b in zip(totals, quad, strict=True)]
        return totals

    def _read(self, rank: int, place: Num) -> list[Value]:
        """Four sums of a CTA of the cluster."""
        source = self._memory.pointer(place)
        if self._function.cluster > 1:
            source = nvvm.mapa(pointer(7), source, value(rank))
        vector = ir.VectorType.get([QUAD], f32())
        quad = llvm.LoadOp(vector, source, alignment=CHUNK_BYTES).result
        return [llvm.extractelement(quad, value(lane)) for lane in range(QUAD)]

    def finish(self) -> None:
        """After the last read of a tile's sums."""
        self._function.synchronize()
