# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows of a tile that are queries of several heads.

Where heads share keys and values, a block of them that is in shared memory serves all of these
heads. So a tile's rows go through the heads of a group first, then through the queries: row r is
query ``r / group`` of head ``r mod group`` of the group. One query of eight heads on one is so a
tile of eight rows, which reads each key once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.masks import Queries
from shapejit.passes.nvgpu.attention.problem import (
    BATCH,
    COLUMN,
    HEAD,
    ROW,
    AttentionProblem,
)
from shapejit.passes.nvgpu.attention.tiles import CHUNK, CHUNK_BYTES, Tile
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Type,
    Value,
    add,
    and_,
    compare,
    i64,
    integer,
    loop,
    mul,
    or_,
    pointer,
    select,
    shr,
    sub,
    udiv,
    umin,
    urem,
    value,
    when,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import IndexAlgebra
from shapejit.passes.nvgpu.problem import Access
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.wgmma import ELEMENT_BYTES, ROWS
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import ONE, AtomKind


def group_of(problem: AttentionProblem) -> int:
    """How many neighbouring heads read the same keys and values, as far as their maps show it: a
    divisor of the number of heads."""
    heads = problem.space[HEAD]
    group = 0
    lengths = [] if problem.lengths is None else [problem.lengths]
    for access in (problem.k, problem.v, *lengths):
        shared = _heads_that_share(access.offset)
        if shared is None:
            return 1
        group = math.gcd(group, shared)
    if heads.constant is not None:
        return math.gcd(group, heads.constant) or 1
    return group if group and heads % group == Expr.const(0) else 1


def _heads_that_share(offset: Expr) -> int | None:
    """The greatest n so that an offset depends on the head over n alone; 0 if it does not depend on
    it at all, None if it does in another way."""
    head, group = Expr.dim(HEAD), 0
    for atom in offset.atoms():
        if atom.kind == AtomKind.DIM and atom.index == HEAD:
            return None
        if atom.kind != AtomKind.FLOORDIV:
            continue
        dividend, divisor = atom.operands
        if HEAD not in dividend.dims() | divisor.dims():
            continue
        if dividend != head or divisor.constant is None:
            return None
        group = math.gcd(group, divisor.constant)
    return group


@dataclass(frozen=True)
class PackedQueries(Queries):
    """The rows of a tile, see `Queries`; `first` is the query of the first row, `head` the first
    head of the group.

    Attributes:
        first_row: number of the tile's first row among those of the group, i32.
        group: heads of a group.
    """

    first_row: Num
    group: int

    def _number(self, row: int) -> Num:
        return add(add(self.first_row, self.fragment.row), 8 * row)

    def row(self, row: int) -> Num:
        return udiv(self._number(row), self.group)

    def head_of(self, row: int) -> Num:
        return add(self.head, urem(self._number(row), self.group)) if self.group > 1 else self.head


class PackedRows:
    """The rows of a group in an operand.

    Args:
        function: the kernel.
        access: over batch, head, query, column.
        batch, head: the batch and the first head of the group, i32.
        group: heads of a group.
        count: rows of the group, i32.
        first: number of its first query among those of all batches, if these lie one after the
            other; i32.
    """

    def __init__(
        self,
        function: KernelFunction,
        access: Access,
        batch: Num,
        head: Num,
        group: int,
        count: Num,
        first: Num = 0,
    ) -> None:
        self._first = first
        self._function, self._access = function, access
        self._batch, self._head, self._group, self.count = batch, head, group, count
        self._base = ptx.global_address(function.address(access.operand))
        #: Whether elements of a row are neighbours.
        self.is_dense = access.stride(COLUMN) == ONE

    def address(self, row: Num, column: Num) -> Value:
        """The address of an element of a row, i64."""
        query = udiv(row, self._group)
        head = add(self._head, sub(row, mul(query, self._group)))
        row_number = add(query, self._first)
        dims = {BATCH: self._batch, HEAD: head, ROW: row_number, COLUMN: column}
        offset = self._access.offset.build(IndexAlgebra(self._function, dims))
        return add(self._base, mul(offset, ELEMENT_BYTES))

    def contains(self, row: Num) -> Value:
        """Whether a row is one of the group."""
        return compare("ult", row, self.count)

    def aligned(self, bytes_: int) -> Value | None:
        """Whether all rows start at multiples of so many bytes; None if some never do, or if their
        elements are no neighbours."""
        strides = [self._access.stride(dim) for dim in (BATCH, HEAD, ROW)]
        if not self.is_dense or any(stride is None for stride in strides):
            return None
        bits: Num = self.address(0, 0)
        for stride in strides:
            assert stride is not None
            bits = or_(bits, mul(self._function.size(stride, 8), ELEMENT_BYTES))
        return compare("eq", and_(bits, value(bytes_ - 1, i64())), 0)


class PackedCopy:
    """How the threads of a CTA fill a tile with packed rows.

    Args:
        memory: shared memory.
        tile: its layout, of 64 rows.
        offset: where it lies, i32.
        thread: number of this thread, i32.
        threads: how many there are; all take part.
    """

    def __init__(
        self, memory: SharedMemory, tile: Tile, offset: Num, thread: Value, threads: int
    ) -> None:
        self._memory, self._tile, self._offset = memory, tile, offset
        self._thread, self._threads = thread, threads

    def start(self, rows: PackedRows, first: Num) -> None:
        """Starts to copy the rows from ``first`` on; those beyond the last are zero.

        Where rows start at multiples of 16 bytes the copies belong to the open group of
        ``cp.async``; else elements are there at the next barrier.
        """
        aligned = rows.aligned(CHUNK_BYTES)
        if aligned is None:
            self._copy_elements(rows, first)
            return
        branches = Branches(aligned)
        with branches.then():
            self._copy_lines(rows, first)
        with branches.otherwise():
            self._copy_elements(rows, first)

    def _copy_lines(self, rows: PackedRows, first: Num) -> None:
        tile = self._tile
        together = self._threads // tile.chunks
        row, chunk = udiv(self._thread, tile.chunks), urem(self._thread, tile.chunks)
        bytes_ = self._chunk_bytes(chunk)
        start = add(add(self._memory.base, self._offset), tile.place(row, chunk))
        with when(compare("ult", row, ROWS)) if together > ROWS else nullcontext():
            for number in range(-(-ROWS // together)):
                packed = add(add(first, row), number * together)
                source = rows.address(packed, mul(chunk, CHUNK))
                size = value(select(rows.contains(packed), bytes_, 0))
                ptx.copy_line(start, number * together * tile.line_bytes, source, size)

    def _chunk_bytes(self, chunk: Value) -> Num:
        """Bytes of a row in a part of 16."""
        tile = self._tile
        if tile.size == tile.width:
            return CHUNK_BYTES
        start = mul(chunk, CHUNK)
        left = umin(mul(sub(tile.size, start), ELEMENT_BYTES), CHUNK_BYTES)
        return select(compare("ult", start, tile.size), left, 0)

    def _copy_elements(self, rows: PackedRows, first: Num) -> None:
        tile, half = self._tile, integer(16)
        with loop(base_ptx.unknown(self._thread), ROWS * tile.width, self._threads) as each:
            ptx.keep_rolled()
            row, column = udiv(each.index, tile.width), urem(each.index, tile.width)
            packed = add(first, row)
            inside = rows.contains(packed)
            if tile.size != tile.width:
                inside = arith.andi(inside, compare("ult", column, tile.size))
            element = base_ptx.load_if(half, rows.address(packed, column), 0, inside)
            place = tile.place(row, udiv(column, CHUNK))
            within = mul(urem(column, CHUNK), ELEMENT_BYTES)
            target = self._memory.pointer(add(self._offset, add(place, within)))
            llvm.StoreOp(element, target, alignment=ELEMENT_BYTES)


def store_row(
    rows: PackedRows,
    row: Num,
    first: Num,
    parts: Mapping[int, Sequence[Value]],
    size: int,
    element: Type,
) -> None:
    """Stores columns of a row, rounded.

    Args:
        rows: of the result.
        row: which, i32.
        first: a column, i32.
        parts: by how much further than ``first`` they start: two or four f32 each, all the same;
            ``first`` and the distances are multiples of that number.
        size: columns of a row; those from there on are left out.
        element: bf16 or f16.
    """
    words = {
        start: [
            base_ptx.pack_halves(results[i], results[i + 1], element)
            for i in range(0, len(results), 2)
        ]
        for start, results in parts.items()
        if start < size
    }
    count = 2 * len(next(iter(words.values())))
    aligned = rows.aligned(count * ELEMENT_BYTES) if size % count == 0 else None
    if aligned is None:
        _store_elements(rows, row, first, words, size)
        return
    branches = Branches(aligned)
    with branches.then():
        address = rows.address(row, first)
        for start, own in words.items():
            with when(compare("ult", add(first, start), size)):
                ptx.store_halves(address, start * ELEMENT_BYTES, own)
    with branches.otherwise():
        _store_elements(rows, row, first, words, size)


def _store_elements(
    rows: PackedRows, row: Num, first: Num, words: Mapping[int, Sequence[Value]], size: int
) -> None:
    half = integer(16)
    for start, own in words.items():
        for number in range(2 * len(own)):
            column = add(first, start + number)
            word = own[number // 2]
            stored = arith.trunci(half, shr(word, 16) if number % 2 else word)
            with when(compare("ult", column, size)):
                target = llvm.inttoptr(pointer(1), rows.address(row, column))
                llvm.StoreOp(stored, target, alignment=ELEMENT_BYTES)
