# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Copies of operand blocks into the scratch layouts that micro-kernels read.

`pack_rows` makes A blocks (rows of a fixed stride), `pack_panel` a panel of B (for each k one row
of `width` columns). Edges end here: row and column indices past the last one are clamped, so that
the scratch holds copies of real elements there, whose products are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlir import ir
from mlir.dialects import vector

from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.passes.cpu.memory import Access, Buffer
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import as_expr

Dims = Mapping[int, Size]


@dataclass(frozen=True)
class Block:
    """A two-dimensional block of a tensor that is accessed through a map.

    Attributes:
        source: the tensor.
        fixed: values of the dims that do not move within the block.
        row_dim, column_dim: the dims that move.
        row, column: where the block starts in them.
    """

    source: Access
    fixed: Dims
    row_dim: int
    column_dim: int
    row: Size
    column: Size

    def at(self, row: Size, column: Size) -> Expr:
        """Linear offset of an element of the block."""
        moving = {self.row_dim: self.row + row, self.column_dim: self.column + column}
        return self.source.at({**self.fixed, **moving})

    def is_contiguous(self, dim: int) -> bool:
        """Whether the next element in a dim is the next in memory."""
        stride = self.source.offset.stride(dim)
        return stride is not None and stride.constant == 1


@dataclass(frozen=True)
class RowBlock:
    """Rows of A to be packed: element (r, c) goes to ``target[r * stride + c]``.

    Attributes:
        fixed: values of the dims that do not move within the block.
        row, rows: the first row of A, and how many.
        padded: rows to be written; from ``rows`` on, copies of the last one.
        column, columns: the first column of A, and how many.
        target: scratch.
        stride: elements from one row of scratch to the next.
    """

    fixed: Dims
    row: Size
    rows: Expr
    padded: Size
    column: Size
    columns: Size
    target: Buffer
    stride: int


class RowSource(Protocol):
    """An operand A that is no tensor read through a map, and packs its rows itself."""

    def pack(self, indexer: Indexer, block: RowBlock) -> None:
        """Emits the copy of a block."""


@dataclass(frozen=True)
class Panel:
    """Where a panel of B goes: scratch, first element, columns, and elements of a vector.

    The width is a multiple of the lanes.
    """

    target: Buffer
    start: Size
    width: int
    lanes: int

    def place(self, row: Size, column: Size) -> Expr:
        """Linear offset of an element of the panel."""
        return self.start + Expr.const(self.width) * row + column


def pack_rows(
    indexer: Indexer,
    block: Block,
    rows: Expr,
    padded_rows: Size,
    columns: Size,
    target: Buffer,
    stride: int,
    convert: Callable[[Value], Value] = lambda value: value,
) -> None:
    """``target[r * stride + c] = convert(block[min(r, rows - 1), c])`` for r < padded_rows.

    Plain loops: LLVM makes them vector copies or calls of memcpy.
    """

    def row_body(row: Expr, _: list[Value]) -> Sequence[Value]:
        source_row = indexer.minimum(row, rows - 1)

        def element(column: Expr, _: list[Value]) -> Sequence[Value]:
            value = convert(block.source.buffer.load(indexer.value(block.at(source_row, column))))
            target.store(value, indexer.value(row * stride + column))
            return ()

        indexer.loop(0, columns, element)
        return ()

    indexer.loop(0, padded_rows, row_body)


def pack_panel(indexer: Indexer, block: Block, k: Size, columns: Expr, panel: Panel) -> None:
    """``panel[q, c] = block[q, min(c, columns - 1)]`` for q < k and c < the panel's width.

    Rows of the block are k, columns are those of the panel. ``columns`` (at least 1) may exceed
    the width.
    """
    buffer = block.source.buffer
    vectors = buffer.is_plain and buffer.element == panel.target.element
    if vectors and block.is_contiguous(block.row_dim):
        _transpose_panel(indexer, block, k, columns, panel)
        return
    if not (vectors and block.is_contiguous(block.column_dim)):
        _copy_panel(indexer, block, 0, k, columns, panel)
        return
    spare = (columns - panel.width).constant
    if spare is None:
        indexer.when(
            indexer.compare("sge", columns, panel.width),
            lambda: _move_panel(indexer, block, k, panel),
        )
        indexer.when(
            indexer.compare("slt", columns, panel.width),
            lambda: _copy_panel(indexer, block, 0, k, columns, panel),
        )
    elif spare >= 0:
        _move_panel(indexer, block, k, panel)
    else:
        _copy_panel(indexer, block, 0, k, columns, panel)


def _copy_panel(
    indexer: Indexer, block: Block, first: Size, k: Size, columns: Expr, panel: Panel
) -> None:
    """`pack_panel` element by element, from row ``first`` of the block on."""

    def column_body(column: Expr, _: list[Value]) -> Sequence[Value]:
        source_column = indexer.minimum(column, columns - 1)

        def element(row: Expr, _: list[Value]) -> Sequence[Value]:
            value = block.source.buffer.load(indexer.value(block.at(row, source_column)))
            panel.target.store(value, indexer.value(panel.place(row, column)))
            return ()

        indexer.loop(first, k, element)
        return ()

    indexer.loop(0, panel.width, column_body)


def _move_panel(indexer: Indexer, block: Block, k: Size, panel: Panel) -> None:
    """`pack_panel` of a whole panel whose columns are contiguous."""
    type_ = ir.VectorType.get([panel.lanes], panel.target.element)

    def row_body(row: Expr, _: list[Value]) -> Sequence[Value]:
        for column in range(0, panel.width, panel.lanes):
            value = block.source.buffer.load_vector(type_, indexer.value(block.at(row, column)))
            panel.target.store_vector(value, indexer.value(panel.place(row, column)))
        return ()

    indexer.loop(0, k, row_body)


def _transpose_panel(indexer: Indexer, block: Block, k: Size, columns: Expr, panel: Panel) -> None:
    """`pack_panel` where each column is contiguous in k: squares are transposed in registers."""
    lanes = panel.lanes
    type_ = ir.VectorType.get([lanes], panel.target.element)
    whole = indexer.simplify(as_expr(k) // lanes * lanes)

    def strip(first: Expr, _: list[Value]) -> Sequence[Value]:
        offsets = [block.at(0, indexer.minimum(first + i, columns - 1)) for i in range(lanes)]

        def square(row: Expr, _: list[Value]) -> Sequence[Value]:
            loaded = [
                block.source.buffer.load_vector(type_, indexer.value(offset + row))
                for offset in offsets
            ]
            for i, value in enumerate(transpose(loaded)):
                panel.target.store_vector(value, indexer.value(panel.place(row + i, first)))
            return ()

        indexer.loop(0, whole, square, step=lanes)
        return ()

    indexer.loop(0, panel.width, strip, step=lanes)
    if whole != k:
        _copy_panel(indexer, block, whole, k, columns, panel)


def transpose(rows: Sequence[Value]) -> list[Value]:
    """Transposes a square matrix held as vectors; their number is a power of two.

    At each step the off-diagonal blocks of every pair of rows that lie ``size`` apart are swapped.
    """
    count = len(rows)
    result = list(rows)
    size = 1
    while size < count:
        low = [i if not i & size else count + i - size for i in range(count)]
        high = [i + size if not i & size else count + i for i in range(count)]
        for i in range(count):
            if not i & size:
                upper, lower = result[i], result[i + size]
                result[i] = vector.shuffle(upper, lower, low)
                result[i + size] = vector.shuffle(upper, lower, high)
        size *= 2
    return result
