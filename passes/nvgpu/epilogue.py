# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The epilogue of a consumer: extras, the scalar body on every sum, the stores.

Sums are taken in chunks that the store can take at once. The extras of a chunk are loaded while the
chunk before it is stored, the first ones while the last products are in flight. With the first ones
comes all of an extra that is the same in all rows, if there are registers: the fences of stores may
wait for loads as well. One extra of the size of the result may come through shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shapejit.ir import element_bytes
from shapejit.passes.nvgpu.bodies import ScalarBody
from shapejit.passes.nvgpu.builder import Num, Value
from shapejit.passes.nvgpu.extras import Directions, ExtraReader, TileOrigin, TileReader
from shapejit.passes.nvgpu.function import KernelFunction, Threads
from shapejit.passes.nvgpu.problem import (
    Access,
    GemmProblem,
    Matrix,
    is_half,
    lhs_matrix,
    result_matrix,
    weight_matrix,
)
from shapejit.passes.nvgpu.ring_extras import ArrivingTile
from shapejit.passes.nvgpu.stores import Chunk, Store, chunks_of
from shapejit.symbolic.expr import ONE

# Registers of a thread for sums, and for extras of a chunk that are not needed yet.
_SUMS_AND_EXTRAS = 192


def directions_of(problem: GemmProblem, *, swapped: bool, mapped: bool = True) -> Directions:
    """Which dims of a result the rows and columns of tiles are.

    Args:
        swapped: whether rows of a tile are columns of the result.
        mapped: whether operands are read through tensor maps, whose strides the kernel's caller
            checks.
    """
    rows, columns = (problem.n, problem.m) if swapped else (problem.m, problem.n)
    matrices: list[Matrix | None] = []
    if mapped:
        matrices = [lhs_matrix(problem), result_matrix(problem)]
        matrices += [weight_matrix(problem, number) for number in range(len(problem.weights))]
    aligned = {
        stride
        for matrix in matrices
        if matrix is not None
        for stride in matrix.strides
        if stride != ONE and stride.constant is None
    }
    return Directions(
        rows, columns, problem.space[rows], problem.space[columns], frozenset(aligned)
    )


class Epilogue:
    """The epilogue of a problem.

    Args:
        function: the kernel.
        problem: whose epilogue it is.
        directions: of the tiles.
        threads: where the thread is.
        store: takes the results.
    """

    def __init__(
        self,
        function: KernelFunction,
        problem: GemmProblem,
        directions: Directions,
        threads: Threads,
        store: Store,
    ) -> None:
        self._function, self._problem = function, problem
        self._directions, self._threads, self.store = directions, threads, store
        self._readers = [self._reader(extra) for extra in problem.extras]
        short = is_half(problem.result.element)
        self._body = ScalarBody(function, problem.epilogue, short=short)

    def _reader(self, extra: Access) -> ExtraReader:
        return ExtraReader(self._function, extra, self._directions)

    def _tile_reader(self, origin: TileOrigin) -> TileReader:
        return TileReader(self._function, self._readers, self._directions, self._threads, origin)

    def tile(
        self,
        origin: TileOrigin,
        blocks: int,
        columns: int,
        arriving: ArrivingTile | None = None,
    ) -> TileEpilogue:
        """The epilogue of one tile of a consumer: ``blocks`` times 64 rows by ``columns``.

        Args:
            arriving: an extra that the producer brings.
        """
        reader = self._tile_reader(origin)
        reader.arriving = arriving
        step = self.store.groups
        sums = len(self._problem.weights) * blocks * columns // 2
        # Of a group a thread has four elements; two of 16 bits are a register.
        extras = step * sum(element_bytes(extra.element) for extra in self._problem.extras)
        ahead = sums + extras <= _SUMS_AND_EXTRAS
        # What is the same in all rows is half as much of a chunk, of all of the tile's at once.
        in_row = sum(each.bytes for each in self._readers if each.has_one_row)
        extras += in_row * (columns // 8 // 2 - step)
        row_ahead = sums + extras <= _SUMS_AND_EXTRAS
        chunks = chunks_of(blocks, columns, step)
        return TileEpilogue(
            self, reader, origin, chunks, arriving, ahead=ahead, row_ahead=row_ahead
        )

    def extras_at(self, dims: Mapping[int, Num]) -> list[Value]:
        """The extras of the element at indices of the result's dims."""
        return [reader.anywhere(dims) for reader in self._readers]

    def element(self, sums: Sequence[Value], extras: Sequence[Value]) -> Value:
        """The result of one element, in its compute type."""
        return self._body.emit([*sums, *extras])

    def compute(
        self,
        reader: TileReader,
        chunk: Chunk,
        sums: Sequence[Sequence[Value]],
    ) -> list[Value]:
        """Computes one chunk.

        Args:
            sums: of every product, the registers of the chunk's 64-row block.

        Returns:
            The results, as `Store.store` takes them.
        """
        return [
            self.element(
                [registers[4 * group + 2 * half + side] for registers in sums],
                reader.values(chunk.block, group, half, side),
            )
            for group in chunk.groups
            for half in range(2)
            for side in range(2)
        ]


class TileEpilogue:
    """The epilogue of one tile, see `Epilogue.tile`."""

    def __init__(
        self,
        epilogue: Epilogue,
        reader: TileReader,
        origin: TileOrigin,
        chunks: Sequence[Chunk],
        arriving: ArrivingTile | None,
        *,
        ahead: bool,
        row_ahead: bool,
    ) -> None:
        self._epilogue, self._reader, self._ahead = epilogue, reader, ahead
        self._origin, self._chunks, self._arriving = origin, chunks, arriving
        self._row_ahead = row_ahead

    def prefetch(self) -> None:
        """Starts the loads of the first chunk's extras, and maybe of a row that is that of all."""
        if self._row_ahead:
            groups = range(self._chunks[-1].groups.stop)
            self._reader.prefetch_row(groups)
        self._start(0)

    def _start(self, number: int) -> None:
        if self._ahead:
            chunk = self._chunks[number]
            self._reader.prefetch(chunk.block, chunk.groups)

    def emit(self, sums: Sequence[Sequence[Sequence[Value]]]) -> None:
        """Computes and stores the tile.

        Args:
            sums: registers by product and 64-row block.
        """
        self._read(self._chunks[0], awaited=True)
        for chunk, after in zip(self._chunks, [*self._chunks[1:], None], strict=True):
            of_block = [product[chunk.block] for product in sums]
            results = self._epilogue.compute(self._reader, chunk, of_block)
            # After the sums of this chunk have given their registers up.
            if after is not None:
                self._start(after.number)
            self._read(after, awaited=False)
            self._epilogue.store.store(self._origin, chunk, results)
            if self._arriving is not None:
                self._arriving.release()  # behind the fence and the barrier of the store
            self._read(after, awaited=True)

    def _read(self, chunk: Chunk | None, *, awaited: bool) -> None:
        """Reads what the producer brought of a chunk, if that is awaited first as stated."""
        if self._arriving is None or chunk is None:
            return
        if self._arriving.is_first(chunk) == awaited:
            self._arriving.read(chunk)
