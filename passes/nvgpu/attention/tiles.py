# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tiles of queries, keys and values: how they lie in shared memory, and how they get there.

All threads of a worker copy, 16 bytes at once (``cp.async``), each always the same part of a line:
there are no tensor maps to make, patch or fetch, which short sequences would spend their time on,
and rows may start anywhere. Where rows are no multiples of 16 bytes apart or do not start at one,
which a kernel finds out when it runs, elements are copied one by one.

A line holds a row's elements, or 64 of its 128, swizzled as wgmma wants it. For queries and keys
that is a K-major tile (products run along the head), for values one whose columns are neighbours
(they run along the keys).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.problem import BATCH, COLUMN, HEAD, HEAD_SIZES, ROW
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    and_,
    compare,
    integer,
    loop,
    mul,
    or_,
    select,
    shl,
    shr,
    sub,
    udiv,
    umin,
    urem,
    when,
    wide,
    xor,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import IndexAlgebra
from shapejit.passes.nvgpu.problem import Access
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.wgmma import DEPTH, ELEMENT_BYTES, signed
from shapejit.symbolic.expr import ONE, ZERO

#: Elements that are copied at once.
CHUNK = 8
CHUNK_BYTES = CHUNK * ELEMENT_BYTES

_LINE = 64  # elements of a line at most
_LINES = 8  # of a swizzle pattern
_ADDRESS_MASK = 0x3FFFF
_SWIZZLE_MODES = {128: 1, 64: 2}


def padded(size: int) -> int:
    """A head size as tiles have it."""
    return next(each for each in HEAD_SIZES if each >= size)


@dataclass(frozen=True)
class Tile:
    """How a tile of rows lies in shared memory: panels of up to 64 elements, line after line.

    Attributes:
        rows: of the tile, a multiple of 8.
        size: elements of a row.
    """

    rows: int
    size: int

    @property
    def width(self) -> int:
        """Elements of a row, with padding."""
        return padded(self.size)

    @property
    def line_bytes(self) -> int:
        """Bytes of a line, and of the swizzle."""
        return min(self.width, _LINE) * ELEMENT_BYTES

    @property
    def panel_bytes(self) -> int:
        return self.rows * self.line_bytes

    @property
    def bytes(self) -> int:
        return self.rows * self.width * ELEMENT_BYTES

    @property
    def chunks(self) -> int:
        """Parts of 16 bytes of a row."""
        return self.width // CHUNK

    # Descriptors ----------------------------------------------------------------------------------

    @property
    def high_word(self) -> int:
        """Upper half of a descriptor: from one swizzle pattern to the next, and its mode."""
        return signed(_LINES * self.line_bytes >> 4 | _SWIZZLE_MODES[self.line_bytes] << 30)

    def low_word(self, address: Value, *, columns: bool) -> Value:
        """Lower half of the descriptor of what starts at a shared address.

        Args:
            columns: whether the elements of a row are columns of the product: then it also says
                how far panels are apart.
        """
        leading = self.panel_bytes >> 4 if columns and self.width > _LINE else 1
        return or_(shr(and_(address, _ADDRESS_MASK), 4), leading << 16)

    def depth_step(self, number: int) -> int:
        """What the ``number``-th 16 elements of a row add to the lower half."""
        panel, within = divmod(number * DEPTH, _LINE)
        return (panel * self.panel_bytes + within * ELEMENT_BYTES) >> 4

    @property
    def depths(self) -> int:
        """How many times 16 elements a row has."""
        return -(-self.size // DEPTH)

    def row_step(self, rows: int) -> int:
        """What so many rows add to the lower half."""
        return rows * self.line_bytes >> 4

    # Places ---------------------------------------------------------------------------------------

    def place(self, row: Num, chunk: Num) -> Num:
        """Offset in bytes of a part of 16 bytes: row and chunk, i32."""
        per_line = self.line_bytes // CHUNK_BYTES
        # The swizzle exchanges chunks by the number of the 128 bytes that a row is in.
        turn = and_(row if self.line_bytes == 128 else shr(row, 1), per_line - 1)
        offset = add(mul(row, self.line_bytes), shl(xor(urem(chunk, per_line), turn), 4))
        return add(offset, mul(udiv(chunk, per_line), self.panel_bytes))


class Rows:
    """The rows of one batch and head of an operand.

    Args:
        function: the kernel.
        access: over batch, head, row, column.
        batch, head: which, i32.
        count: how many rows there are, i32.
        first: number of row 0 among those of all batches, if these lie one after the other; i32.
    """

    def __init__(
        self,
        function: KernelFunction,
        access: Access,
        batch: Num,
        head: Num,
        count: Num,
        first: Num = 0,
    ) -> None:
        self._first = first
        self._function, self._access = function, access
        self._fixed: dict[int, Num] = {BATCH: batch, HEAD: head}
        self.count = count
        self._base = ptx.global_address(function.address(access.operand))
        #: Whether rows are a fixed number of bytes apart and their elements neighbours.
        self.is_regular = access.stride(ROW) is not None and access.stride(COLUMN) == ONE
        if self.is_regular:
            stride = access.stride(ROW) or ZERO
            #: Bytes from a row to the next, i64.
            self.stride: Num = mul(function.size(stride, 8), ELEMENT_BYTES)
            #: The address of row 0, i64.
            self.start: Value = self.address(0, 0)

    def address(self, row: Num, column: Num) -> Value:
        """The address of an element, i64."""
        dims = {**self._fixed, ROW: add(row, self._first), COLUMN: column}
        offset = self._access.offset.build(IndexAlgebra(self._function, dims))
        return add(self._base, mul(offset, ELEMENT_BYTES))


class TileCopy:
    """How the threads of a worker fill a tile.

    Args:
        memory: shared memory.
        tile: its layout.
        thread: number of this thread, i32.
        threads: how many there are; all take part.
    """

    def __init__(self, memory: SharedMemory, tile: Tile, thread: Value, threads: int) -> None:
        self._memory, self._tile, self._thread, self._threads = memory, tile, thread, threads
        self._rows = threads // tile.chunks  # that are copied at once
        self._row, self._chunk = udiv(thread, tile.chunks), urem(thread, tile.chunks)
        self._place = tile.place(self._row, self._chunk)

    def start(self, rows: Rows, first: Num, offset: Num) -> None:
        """Starts to copy the rows from ``first`` on to an offset in shared memory.

        Rows beyond the last are zero. All rows start at multiples of 16 bytes; the copies belong to
        the open group of ``cp.async``.
        """
        tile, bytes_ = self._tile, self._chunk_bytes()
        row = add(first, self._row)
        along = add(rows.start, wide(mul(self._chunk, CHUNK_BYTES)))
        source = add(along, mul(wide(row), rows.stride))
        step = mul(rows.stride, self._rows)
        target = add(add(self._memory.base, offset), self._place)
        for number in range(-(-tile.rows // self._rows)):
            place = add(row, number * self._rows)
            with self._within_tile(number):
                inside = compare("ult", place, rows.count)
                further = number * self._rows * tile.line_bytes
                ptx.copy_line(target, further, source, select(inside, bytes_, 0))
            source = add(source, step)

    def _within_tile(self, number: int) -> AbstractContextManager[None]:
        """``when`` this thread's part of a round is one of the tile: there may be more threads
        than parts that are left."""
        if (number + 1) * self._rows <= self._tile.rows:
            return nullcontext()
        return when(compare("ult", self._row, self._tile.rows - number * self._rows))

    def _chunk_bytes(self) -> Num:
        """Bytes of a row in this thread's part of it."""
        tile = self._tile
        if tile.size == tile.width:
            return CHUNK_BYTES
        start = mul(self._chunk, CHUNK)
        left = umin(mul(sub(tile.size, start), ELEMENT_BYTES), CHUNK_BYTES)
        return select(compare("ult", start, tile.size), left, 0)

    def copy_elements(self, rows: Rows, first: Num, offset: Num) -> None:
        """Copies any rows, element by element: they are there at the next barrier."""
        tile, half = self._tile, integer(16)
        with loop(base_ptx.unknown(self._thread), tile.rows * tile.width, self._threads) as each:
            ptx.keep_rolled()
            row, column = udiv(each.index, tile.width), urem(each.index, tile.width)
            inside = compare("ult", add(first, row), rows.count)
            if tile.size != tile.width:
                inside = arith.andi(inside, compare("ult", column, tile.size))
            element = base_ptx.load_if(half, rows.address(add(first, row), column), 0, inside)
            place = tile.place(row, udiv(column, CHUNK))
            within = mul(urem(column, CHUNK), ELEMENT_BYTES)
            target = self._memory.pointer(add(offset, add(place, within)))
            llvm.StoreOp(element, target, alignment=ELEMENT_BYTES)


@dataclass(frozen=True)
class Copy:
    """A tile to be filled.

    Attributes:
        copy: how.
        rows: from what.
        first: number of its first row, i32.
        offset: where it lies in shared memory, i32.
    """

    copy: TileCopy
    rows: Rows
    first: Num
    offset: Num


def start_copies(copies: Sequence[Copy]) -> None:
    """Starts to fill tiles."""
    aligned = all_aligned([each.rows for each in copies])
    if aligned is not None:
        branches = Branches(aligned)
        with branches.then():
            for each in copies:
                each.copy.start(each.rows, each.first, each.offset)
        with branches.otherwise():
            for each in copies:
                each.copy.copy_elements(each.rows, each.first, each.offset)
    else:
        for each in copies:
            each.copy.copy_elements(each.rows, each.first, each.offset)


def all_aligned(operands: Sequence[Rows]) -> Value | None:
    """Whether all rows of all operands start at multiples of 16 bytes; None if some never do."""
    if not all(each.is_regular for each in operands):
        return None
    bits = functools.reduce(or_, [word for each in operands for word in (each.start, each.stride)])
    return compare("eq", and_(bits, CHUNK_BYTES - 1), 0)
