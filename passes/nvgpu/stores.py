# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a consumer's results leave its registers: through shared memory and TMA, or directly.

Results of 16 bits in rows that suit TMA are packed, written to a swizzled staging area by
`stmatrix` (transposed when the tile's rows are columns of the result) and stored by TMA, which
clips the edges. Everything else is stored element by element, with predicates: results of 32 bits,
whose stores fill whole sectors anyway, and rows that are no multiple of 16 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from mlir import ir
from mlir.dialects import nvvm

from shapejit.gpu.interface import Im2colMap, TensorMap
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    mul,
    shl,
    shr,
    value,
    when,
    wide,
    xor,
)
from shapejit.passes.nvgpu.extras import Directions, TileOrigin
from shapejit.passes.nvgpu.function import KernelFunction, Threads
from shapejit.passes.nvgpu.memory import store_elements
from shapejit.passes.nvgpu.problem import Access, Matrix
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.target import WARPGROUP
from shapejit.passes.nvgpu.tma import Descriptor
from shapejit.passes.nvgpu.wgmma import ROWS, Fragment
from shapejit.symbolic.expr import ZERO

_PANEL = 64  # elements of 16 bits in a line of 128 bytes
_LINE_BYTES = 128
_STRIP_ROWS = 8  # of a transposed store's box
#: Of a strip of 8 rows of the result, in the staging area of a transposed store.
STRIP_BYTES = _STRIP_ROWS * _LINE_BYTES


def store_bytes(turned: bool) -> int:
    """Of a warpgroup's staging area in `StagedStore`: two halves of so many groups of columns."""
    return 2 * ROWS * 8 * _groups(turned) * 2


def _groups(turned: bool) -> int:
    return _PANEL // 16 if turned else _PANEL // 8


@dataclass(frozen=True)
class Chunk:
    """What is computed and stored at once.

    Attributes:
        number: of the chunk in its tile, from 0 on, in the order of the stores.
        block: which 64 rows of the consumer's tile.
        groups: which groups of 8 columns.
    """

    number: int
    block: int
    groups: range


def chunks_of(blocks: int, columns: int, groups: int) -> list[Chunk]:
    """The chunks of a consumer's tile of ``blocks`` times 64 rows.

    Args:
        groups: of a chunk at most, see `Store.groups`.
    """
    every = columns // 8
    places = itertools.product(range(blocks), range(0, every, groups))
    return [
        Chunk(number, block, range(first, min(first + groups, every)))
        for number, (block, first) in enumerate(places)
    ]


class Store(Protocol):
    """Stores what a consumer computed, chunk by chunk."""

    groups: int
    """Groups of 8 columns that a chunk has at most."""

    def prefetch(self) -> None:
        """Fetches what the stores need, by one thread of the CTA, at its start."""

    def begin(self) -> None:
        """Prepares the consumers, before the first tile."""

    def store(self, origin: TileOrigin, chunk: Chunk, results: Sequence[Value]) -> None:
        """Stores the results of a chunk.

        Args:
            origin: of the consumer's tile.
            chunk: of the tile.
            results: four a group, in the order of the fragment's registers (see
                `wgmma.Fragment`) and the compute type of the result.
        """

    def finish(self) -> None:
        """Waits until all is stored; called once, after the last tile."""


def matrix_attributes(layout: str) -> tuple[ir.Attribute, ...]:
    """The layout, shape and element type of `stmatrix`."""
    return (
        ir.Attribute.parse(f"#nvvm.mma_layout<{layout}>"),
        ir.Attribute.parse("#nvvm.ld_st_matrix_shape<m = 8, n = 8>"),
        ir.Attribute.parse("#nvvm.ld_st_matrix_elt_type<b16>"),
    )


def publish_to_tma() -> None:
    """Makes this thread's writes to shared memory visible to TMA."""
    nvvm.fence_proxy(
        ir.Attribute.parse("#nvvm.proxy_kind<async.shared>"),
        space=ir.Attribute.parse("#nvvm.shared_space<cta>"),
    )


class StagedStore:
    """Through shared memory and TMA.

    Args:
        function: the kernel.
        memory: its shared memory.
        matrix: the result.
        threads: where the thread is.
        consumers: warpgroups that store; each has a staging area of its own.
        turned: whether the tile's rows are columns of the result.

    Attributes:
        turned: the same.
    """

    COLUMNS = _PANEL
    """What the columns of a tile are multiples of, unless it is turned."""

    def __init__(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        matrix: Matrix,
        threads: Threads,
        *,
        consumers: int,
        turned: bool,
    ) -> None:
        self._function, self._memory, self._matrix = function, memory, matrix
        self._threads, self.turned = threads, turned
        self._element = matrix.access.element
        # A panel of 64 rows by 64 columns, or, turned, half of one.
        self.groups = _groups(turned)
        self._half = store_bytes(turned) // 2
        self._offset = memory.allocate(consumers * store_bytes(turned))
        box = (_PANEL, _STRIP_ROWS if turned else ROWS)
        record = matrix.record(function, box, _LINE_BYTES)
        self._descriptor = Descriptor.make(function, self._boxed(record), self._element)

    def _boxed(self, record: TensorMap | Im2colMap) -> TensorMap | Im2colMap:
        """The result's map in the boxes that are stored."""
        return record

    def prefetch(self) -> None:
        self._descriptor.prefetch()

    def begin(self) -> None:
        threads = self._threads
        self._first = add(self._offset, mul(threads.warpgroup, 2 * self._half))
        self._leader = compare("eq", and_(threads.thread, WARPGROUP - 1), 0)
        self._barrier = add(threads.warpgroup, 1)
        self._lane_offset = self._turned_offset() if self.turned else self._plain_offset()
        with when(self._leader):
            self._descriptor.acquire()

    def _plain_offset(self) -> Value:
        """Where a lane's line of `stmatrix` is: 16 rows by 16 columns of a panel, four matrices."""
        warp, lane = and_(self._threads.warp, 3), self._threads.lane
        in_matrix = and_(lane, 7)
        row = add(mul(warp, 16), add(in_matrix, mul(and_(shr(lane, 3), 1), 8)))
        self._chunk = shl(xor(shr(lane, 4), in_matrix), 4)
        return add(self._first, mul(row, _LINE_BYTES))

    def _turned_offset(self) -> Value:
        """The same for transposed matrices: 8 columns by 16 rows, twice."""
        warp, lane = and_(self._threads.warp, 3), self._threads.lane
        in_matrix, number = and_(lane, 7), shr(lane, 3)
        chunk = xor(add(mul(warp, 2), and_(number, 1)), in_matrix)
        strip = mul(shr(number, 1), STRIP_BYTES)
        line = add(mul(in_matrix, _LINE_BYTES), shl(chunk, 4))
        return add(add(self._first, strip), line)

    def _synchronize(self) -> None:
        nvvm.BarrierOp(None, barrierId=self._barrier, numberOfThreads=value(WARPGROUP))

    def store(self, origin: TileOrigin, chunk: Chunk, results: Sequence[Value]) -> None:
        packed = [
            ptx.pack_halves(results[i], results[i + 1], self._element)
            for i in range(0, len(results), 2)
        ]
        # Chunks take turns on the halves of the area: the store of the chunk before may still read
        # the other one. The first chunk of a tile does not know which half that was.
        half = chunk.number % 2 * self._half
        with when(self._leader):
            nvvm.cp_async_bulk_wait_group(min(chunk.number, 1), read=True)
        self._synchronize()
        lane_offset = add(ptx.unknown(self._lane_offset), half)
        (self._write_turned if self.turned else self._write)(lane_offset, packed)
        publish_to_tma()
        self._synchronize()
        with when(self._leader):
            self._start(add(ptx.unknown(self._first), half), origin, chunk)
            nvvm.cp_async_bulk_commit_group()

    def _write(self, lane_offset: Value, packed: Sequence[Value]) -> None:
        """Matrices of 16 columns, side by side in a panel."""
        attributes = matrix_attributes("row")
        for quad in range(0, len(packed), 4):
            offset = add(lane_offset, xor(self._chunk, quad // 4 << 5))
            pointer = self._memory.pointer(offset)
            nvvm.StMatrixOp(pointer, packed[quad : quad + 4], *attributes)

    def _write_turned(self, lane_offset: Value, packed: Sequence[Value]) -> None:
        """Matrices of 16 columns, which become lines, one pair of strips after the other."""
        attributes = matrix_attributes("col")
        for quad in range(0, len(packed), 4):
            pointer = self._memory.pointer(lane_offset, quad // 4 * 2 * STRIP_BYTES)
            nvvm.StMatrixOp(pointer, packed[quad : quad + 4], *attributes)

    def _start(self, offset: Value, origin: TileOrigin, chunk: Chunk) -> None:
        """Starts the stores of a chunk's boxes, by one thread; of those that have something."""
        row, column = (
            add(origin.row, ROWS * chunk.block),
            add(origin.column, 8 * chunk.groups.start),
        )
        boxes = [(column, row)]
        if self.turned:
            boxes = [(row, add(column, 8 * number)) for number in range(len(chunk.groups))]
        rest = [origin.batch[dim] for dim in self._matrix.dims[2:]]
        for number, (n, m) in enumerate(boxes):
            strip = add(offset, number * STRIP_BYTES)
            with self._inside(n, 0), self._inside(m, 1):
                self._descriptor.store(self._memory, strip, [n, m, *rest])

    def _inside(self, start: Num, dim: int) -> AbstractContextManager[None]:
        """``when`` a box starts inside of the result along a dim of its map."""
        size, length = self._matrix.sizes[dim], self._descriptor.box[dim]
        if size.constant is not None and size.constant % length == 0:
            return nullcontext()  # tiles may still reach beyond it, which TMA clips
        return when(compare("ult", start, self._function.size(size)))

    def finish(self) -> None:
        with when(self._leader):
            nvvm.cp_async_bulk_wait_group(0)


class DirectStore:
    """Element by element.

    Args:
        function: the kernel.
        access: the result.
        directions: of the tiles.
        threads: where the thread is.
    """

    groups = 8

    def __init__(
        self, function: KernelFunction, access: Access, directions: Directions, threads: Threads
    ) -> None:
        self._function, self._access, self._directions = function, access, directions
        self._fragment = Fragment.of(threads.warp, threads.lane)
        self._base = function.address(access.operand)
        self._rows = function.size(directions.row_size)
        self._columns = function.size(directions.column_size)
        self._row_stride, self._column_stride = (
            function.size(access.stride(dim) or ZERO, 8)
            for dim in (directions.rows, directions.columns)
        )
        # Neighbouring columns in one store: their address is a multiple of both elements' size.
        self._pairs = (
            self._column_stride == 1
            and all(
                directions.is_even(access.stride(dim) or ZERO)
                for dim in range(max(directions.rows, directions.columns))
            )
            and directions.is_even(directions.column_size)
        )

    def prefetch(self) -> None:
        """Nothing: there is no tensor map."""

    def begin(self) -> None:
        """Nothing: every thread stores on its own."""

    def store(self, origin: TileOrigin, chunk: Chunk, results: Sequence[Value]) -> None:
        batch = self._batch_offset(origin)
        for half in range(2):
            row = add(add(origin.row, self._fragment.row), ROWS * chunk.block + 8 * half)
            offset = add(batch, mul(wide(row), self._row_stride))
            with when(compare("ult", row, self._rows)):
                for number, group in enumerate(chunk.groups):
                    pair = results[4 * number + 2 * half : 4 * number + 2 * half + 2]
                    column = add(add(origin.column, self._fragment.column), 8 * group)
                    self._store_pair(offset, column, pair)

    def _batch_offset(self, origin: TileOrigin) -> Num:
        offset: Num = 0
        for dim, place in enumerate(origin.batch):
            stride = self._function.size(self._access.stride(dim) or ZERO, 8)
            offset = add(offset, mul(wide(place), stride))
        return offset

    def _store_pair(self, row_offset: Num, column: Num, pair: Sequence[Value]) -> None:
        if self._pairs:
            with when(compare("ult", column, self._columns)):
                offset = add(row_offset, wide(column))
                store_elements(self._base, offset, pair, self._access.element)
            return
        for side, result in enumerate(pair):
            place = add(column, side)
            with when(compare("ult", place, self._columns)):
                offset = add(row_offset, mul(wide(place), self._column_stride))
                store_elements(self._base, offset, [result], self._access.element)

    def finish(self) -> None:
        """Nothing: the stores are the threads' own."""
