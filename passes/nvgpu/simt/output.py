# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From sums to the result, in quads of four neighbouring columns.

What the epilogue reads comes through its own maps. A quad of neighbours in memory is one access
where address, strides and the row's length are multiples of four elements, and four else: decided
while the kernel runs, once a tile. Nothing is a branch, so loads of several quads are on their way
together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.bodies import ScalarBody
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    i64,
    mul,
    or_,
    select,
    sub,
    umin,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import (
    IndexAlgebra,
    bytes_of,
    from_storage,
    load_element,
    storage_type,
    store_elements,
    stored_elements,
)
from shapejit.passes.nvgpu.problem import Access, GemmProblem, is_half
from shapejit.passes.nvgpu.simt.ptx import as_words, load_four, store_four
from shapejit.passes.nvgpu.simt.tiling import QUAD
from shapejit.symbolic.expr import ONE, ZERO

Sums: TypeAlias = Callable[[int, int], Sequence[Sequence[Value]]]
"""By number of a row and of a column quad: four sums of each weight."""

# Rows whose extras are loaded before the first of them is computed.
_ROWS_AHEAD = 4


class TileOutput:
    """The results of one tile.

    Args:
        function: the kernel.
        problem: what it computes.
        batch: index along every batch dim.
        row, column: of the tile's first element.
    """

    def __init__(
        self,
        function: KernelFunction,
        problem: GemmProblem,
        batch: Sequence[Num],
        row: Num,
        column: Num,
    ) -> None:
        self._function, self._problem, self._batch = function, problem, tuple(batch)
        self._row, self._column = row, column
        self._rows, self._columns = (
            function.size(problem.space[dim]) for dim in (problem.m, problem.n)
        )
        self._result = _Tensor(function, problem, problem.result, self._batch)
        self._extras = [
            _Tensor(function, problem, access, self._batch) for access in problem.extras
        ]
        short = is_half(problem.result.element)
        self._body = ScalarBody(function, problem.epilogue, short=short)
        self._made: dict[Any, Any] = {}
        self._wide = self._is_wide()

    def _is_wide(self) -> Value:
        """Whether all quads of neighbours are one access each."""
        found = compare("eq", and_(self._columns, QUAD - 1), 0)
        for tensor in (self._result, *self._extras):
            if tensor.has_neighbours:
                found = arith.andi(found, tensor.is_aligned)
        return found

    def emit(self, rows: Sequence[Num], columns: Sequence[Num], sums: Sums) -> None:
        """Computes and stores quads.

        Args:
            rows: in the tile; one beyond its end is left out.
            columns: in the tile, of the first elements of quads.
            sums: of each row and column.
        """
        places = [(i, j) for i in range(len(rows)) for j in range(len(columns))]
        step = _ROWS_AHEAD * len(columns)
        for first in range(0, len(places), step):
            some = places[first : first + step]
            quads = [_Quad(rows[i], columns[j]) for i, j in some]
            extras = [[self._extra(extra, quad) for extra in self._extras] for quad in quads]
            for (i, j), quad, read in zip(some, quads, extras, strict=True):
                factors = sums(i, j)
                results = [
                    self._element([each[lane] for each in factors], [each[lane] for each in read])
                    for lane in range(QUAD)
                ]
                self._store(quad, results)

    def _element(self, sums: Sequence[Value], extras: Sequence[Value]) -> Value:
        return self._body.emit([*sums, *extras])

    # Places ---------------------------------------------------------------------------------------

    def once(self, key: Any, build: Callable[[], Any]) -> Any:
        """What was built under a key."""
        if key not in self._made:
            self._made[key] = build()
        return self._made[key]

    def row_of(self, row: Num) -> Num:
        """A row of the tile in the result."""
        return self.once(("row", row), lambda: add(self._row, row))

    def column_of(self, column: Num) -> Num:
        return self.once(("column", column), lambda: add(self._column, column))

    def left(self, row: Num | None, column: Num) -> tuple[Value, Value]:
        """Columns of the result from one on, 0 outside of its rows: at once, and one by one."""

        def build() -> tuple[Value, Value]:
            count = sub(value(self._columns), self.column_of(column))
            if row is not None:
                count = select(self.has_row(row), count, 0)
            return select(self._wide, count, 0), select(self._wide, 0, count)

        found: tuple[Value, Value] = self.once(("left", row, column), build)
        return found

    def has_row(self, row: Num) -> Value:
        """Whether the result has a row of the tile."""
        return self.once(("has", row), lambda: compare("ult", self.row_of(row), value(self._rows)))

    # Extras ---------------------------------------------------------------------------------------

    def _extra(self, tensor: _Tensor, quad: _Quad) -> list[Value]:
        """Four elements of an extra, in their compute type."""
        if not tensor.access.is_linear:
            return [self._anywhere(tensor, quad, lane) for lane in range(QUAD)]
        row = quad.row if tensor.row_stride != ZERO else None
        if tensor.column_stride == ZERO:
            return [self.once((tensor, row), lambda: self._one(tensor, row))] * QUAD
        key = (tensor, row, quad.column)
        found: list[Value] = self.once(key, lambda: self._four(tensor, row, quad.column))
        return found

    def _anywhere(self, tensor: _Tensor, quad: _Quad, lane: int) -> Value:
        column = add(self.column_of(quad.column), lane)
        dims = {
            **dict(enumerate(self._batch)),
            self._problem.m: umin(self.row_of(quad.row), sub(self._rows, 1)),
            self._problem.n: umin(column, sub(self._columns, 1)),
        }
        algebra = IndexAlgebra(self._function, dims)
        return load_element(tensor.pointer, tensor.access.offset.build(algebra), tensor.element)

    def _one(self, tensor: _Tensor, row: Num | None) -> Value:
        condition = None if row is None else self.has_row(row)
        address = tensor.at(None if row is None else self.row_of(row), None)
        stored = ptx.load_if(storage_type(tensor.element), address, 0, condition)
        return from_storage(stored, tensor.element)

    def _four(self, tensor: _Tensor, row: Num | None, column: Num) -> list[Value]:
        at_once, singly = self.left(row, column)
        address = tensor.at(None if row is None else self.row_of(row), self.column_of(column))
        stored = storage_type(tensor.element)
        if tensor.has_neighbours:
            loaded = load_four(stored, address, at_once, singly)
        else:
            count = or_(at_once, singly)
            loaded = []
            for lane in range(QUAD):
                inside = compare("sgt", count, lane)
                loaded.append(ptx.load_if(stored, address, 0, inside))
                address = add(address, tensor.column_bytes)
        return [from_storage(each, tensor.element) for each in loaded]

    # The result -----------------------------------------------------------------------------------

    def _store(self, quad: _Quad, results: Sequence[Value]) -> None:
        at_once, singly = self.left(quad.row, quad.column)
        element = self._result.element
        if self._result.has_neighbours:
            words = [stored_elements([result], element) for result in results]
            if bytes_of(element) == 4:
                words = as_words(words)
            address = self._result.at(self.row_of(quad.row), self.column_of(quad.column))
            store_four(address, words, at_once, singly)
            return
        count = or_(at_once, singly)
        address = self._result.at(self.row_of(quad.row), self.column_of(quad.column))
        start = sub(address, llvm.ptrtoint(i64(), self._result.pointer))
        first = arith.divui(start, value(bytes_of(element), i64()))
        for lane, result in enumerate(results):
            with when(compare("sgt", count, lane)):
                store_elements(self._result.pointer, add(first, lane), [result], element)


@dataclass(frozen=True)
class _Quad:
    """Four neighbouring columns of a row: the row and the first column in the tile."""

    row: Num
    column: Num


class _Tensor:
    """An operand over the result's dims, at one batch index.

    Args:
        function: the kernel.
        problem: what it computes.
        access: the operand.
        batch: index along every batch dim.
    """

    def __init__(
        self, function: KernelFunction, problem: GemmProblem, access: Access, batch: Sequence[Num]
    ) -> None:
        self._function, self._batch, self.access = function, batch, access
        self.element = access.element
        self.pointer = function.address(access.operand)
        self.row_stride = access.stride(problem.m) or ZERO
        self.column_stride = access.stride(problem.n) or ZERO

    @property
    def has_neighbours(self) -> bool:
        """Whether four columns may be one access."""
        known = self.access.is_linear and self.column_stride == ONE
        return known and bytes_of(self.element) in (2, 4)

    @functools.cached_property
    def _base(self) -> Value:
        """The address of row 0 and column 0."""
        width = bytes_of(self.element)
        address = llvm.ptrtoint(i64(), self.pointer)
        address = add(address, self._function.size(self.access.start * width, 8))
        for dim, place in enumerate(self._batch):
            stride = self._function.size((self.access.stride(dim) or ZERO) * width, 8)
            address = add(address, mul(wide(place), stride))
        return address

    @property
    def _row_bytes(self) -> Num:
        return self._function.size(self.row_stride * bytes_of(self.element), 8)

    @property
    def column_bytes(self) -> Num:
        """From a column to the next."""
        return self._function.size(self.column_stride * bytes_of(self.element), 8)

    @property
    def is_aligned(self) -> Value:
        """Whether quads at multiples of four columns are at multiples of their size."""
        bits = or_(self._base, self._row_bytes)
        return compare("eq", and_(bits, QUAD * bytes_of(self.element) - 1), 0)

    def at(self, row: Num | None, column: Num | None) -> Value:
        """The address of an element."""
        address = self._base
        if row is not None:
            address = add(address, mul(wide(row), self._row_bytes))
        if column is not None:
            address = add(address, mul(wide(column), self.column_bytes))
        return address
