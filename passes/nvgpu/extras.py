# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What an epilogue reads: biases, residuals, masks, scales, each through its own map.

A thread's sums lie in the fragment of wgmma (see `wgmma.Fragment`): in every group of 8 columns two
rows, 8 apart, of two columns each. An extra operand is read so that neighbours in memory come in
one load whenever they can:

- along the columns of the fragment, two neighbours are a thread's own;
- along its rows (in the swapped families, whose rows are columns of the result), each 8 x 8 block
  is loaded as if it were transposed, and turned in the warp by `movmatrix`.

Rows beyond the edge are clamped and columns are predicated, so every load is inside of the tensor;
what is computed beyond is never stored. One address a row serves all columns: registers are scarce
beside the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from mlir.dialects import llvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    i64,
    mul,
    sub,
    udiv,
    umin,
    wide,
)
from shapejit.passes.nvgpu.function import KernelFunction, Threads
from shapejit.passes.nvgpu.memory import (
    IndexAlgebra,
    bytes_of,
    from_storage,
    load_element,
    storage_type,
)
from shapejit.passes.nvgpu.problem import Access, is_half
from shapejit.passes.nvgpu.target import MAP_ALIGNMENT
from shapejit.passes.nvgpu.wgmma import ROWS, Fragment
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import ONE, ZERO

Quad: TypeAlias = Callable[[int, int], Value]
"""A thread's elements of a group: by row half and column side, in the compute type."""


@dataclass(frozen=True)
class Directions:
    """Which dims of the result the rows and columns of tiles are.

    Attributes:
        rows, columns: dims of the space, m or n.
        row_size, column_size: their sizes.
        aligned: sizes that the kernel's caller promises to be multiples of 16 bytes.
    """

    rows: int
    columns: int
    row_size: Expr
    column_size: Expr
    aligned: frozenset[Expr]

    def is_even(self, size: Expr) -> bool:
        """Whether a size is known to be a multiple of 2."""
        return self._is_multiple(size, 2)

    def suits_maps(self, stride: Expr) -> bool:
        """Whether a stride is known to be a multiple of 16 bytes, of elements as the factors'."""
        return self._is_multiple(stride, MAP_ALIGNMENT // 2)

    def _is_multiple(self, size: Expr, divisor: int) -> bool:
        if all(coefficient % divisor == 0 for _, coefficient in size.terms):
            return True
        return any(size.exact_div(known) is not None for known in self.aligned)


class Arriving(Protocol):
    """An extra that comes to shared memory while the tile is multiplied."""

    @property
    def number(self) -> int:
        """Of the extra."""

    def pairs(self, block: int, group: int) -> list[Value]:
        """A thread's elements of a group of the chunk that was read last: by row half two
        neighbouring columns of it, packed in an i32."""


@dataclass(frozen=True)
class TileOrigin:
    """Where a consumer's tile is.

    Attributes:
        batch: index along each batch dim.
        row, column: of its first sum.
    """

    batch: tuple[Num, ...]
    row: Num
    column: Num


class Way(Enum):
    """How an extra is read."""

    ONCE = auto()  # one element for all
    BY_ROW = auto()  # one element a row
    COLUMN_PAIRS = auto()  # two neighbouring columns in one load
    ROW_PAIRS = auto()  # two neighbouring rows in one load, turned in the warp
    ELEMENTS = auto()  # each on its own, at fixed strides
    ANYWHERE = auto()  # each on its own, wherever the map says


class ExtraReader:
    """One extra operand of a kernel.

    Args:
        function: the kernel.
        access: the operand.
        directions: of the tiles.
    """

    def __init__(self, function: KernelFunction, access: Access, directions: Directions) -> None:
        self._function, self._access, self._directions = function, access, directions
        self.element, self.bytes = access.element, bytes_of(access.element)
        self._pointer = function.address(access.operand)

    def _stride(self, dim: int) -> Expr:
        return self._access.stride(dim) or ZERO

    @cached_property
    def way(self) -> Way:
        """How it is read."""
        return self._find_way()

    def _find_way(self) -> Way:
        if not self._access.is_linear:
            return Way.ANYWHERE
        directions = self._directions
        row, column = self._stride(directions.rows), self._stride(directions.columns)
        if column == ZERO:
            return Way.ONCE if row == ZERO else Way.BY_ROW
        if self.bytes in (2, 4) and self._pairs(column, row, directions.column_size):
            return Way.COLUMN_PAIRS
        if is_half(self.element) and self._pairs(row, column, directions.row_size):
            return Way.ROW_PAIRS
        return Way.ELEMENTS

    def _pairs(self, along: Expr, across: Expr, size: Expr) -> bool:
        """Whether elements 2 i and 2 i + 1 of a direction are one aligned word."""
        batch_dims = range(min(self._directions.rows, self._directions.columns))
        others = (across, self._access.start, *map(self._stride, batch_dims))
        return along == ONE and all(map(self._directions.is_even, (size, *others)))

    @property
    def has_one_row(self) -> bool:
        """Whether two columns come in one load, which is one for all rows."""
        is_same = self._stride(self._directions.rows) == ZERO
        return is_same and self.way is Way.COLUMN_PAIRS

    def _bytes_along(self, dim: int) -> Num:
        """Bytes from an element to its neighbour along a dim, i64."""
        return self._function.size(self._stride(dim) * self.bytes, 8)

    def base(self, batch: tuple[Num, ...]) -> Value:
        """The address of row 0 and column 0 at a batch index, i64."""
        address = llvm.ptrtoint(i64(), self._pointer)
        address = add(address, self._function.size(self._access.start * self.bytes, 8))
        for dim, place in enumerate(batch):
            address = add(address, mul(wide(place), self._bytes_along(dim)))
        return address

    def row_bytes(self, rows: Num) -> Num:
        """The distance of so many rows."""
        return mul(wide(rows), self._bytes_along(self._directions.rows))

    def column_bytes(self, columns: Num) -> Num:
        """The distance of so many columns."""
        return mul(wide(columns), self._bytes_along(self._directions.columns))

    def anywhere(self, dims: Mapping[int, Num]) -> Value:
        """The element at indices, whatever the map is."""
        offset = self._access.offset.build(IndexAlgebra(self._function, dims))
        return load_element(self._pointer, offset, self.element)

    def element_at(self, address: Num, condition: Value | None = None) -> Value:
        """The element at an address, in its compute type; 0 where the condition fails."""
        stored = ptx.load_if(storage_type(self.element), address, 0, condition)
        return from_storage(stored, self.element)


class TileReader:
    """The extras of one tile of a consumer, each read when first asked for.

    Reads must be asked for outside of nested control flow: later ones may return them again.

    Args:
        function: the kernel.
        readers: of the extras.
        directions: of the tiles.
        threads: where the thread is.
        origin: of the tile.

    Attributes:
        arriving: the extra that is not read from global memory, if there is one.
    """

    arriving: Arriving | None = None

    def __init__(
        self,
        function: KernelFunction,
        readers: Sequence[ExtraReader],
        directions: Directions,
        threads: Threads,
        origin: TileOrigin,
    ) -> None:
        self._readers, self._directions, self._origin = list(readers), directions, origin
        self._fragment = Fragment.of(threads.warp, threads.lane)
        # The same with rows and columns exchanged, for blocks that are loaded transposed.
        self._turned = Fragment(
            add(mul(and_(threads.warp, 3), 16), self._fragment.column), udiv(threads.lane, 4)
        )
        self._rows = function.size(directions.row_size)
        self._columns = function.size(directions.column_size)
        self._made: dict[Any, Any] = {}

    def prefetch(self, block: int, groups: range) -> None:
        """Starts the reads of a 64-row block's 8-column groups."""
        for number in range(len(self._readers)):
            if self.arriving is not None and self.arriving.number == number:
                continue
            for group in groups:
                self._quad(number, block, group)

    def prefetch_row(self, groups: range) -> None:
        """Starts the reads of what is the same in all rows."""
        for number, reader in enumerate(self._readers):
            if reader.has_one_row:
                for group in groups:
                    self._quad(number, 0, group)

    def values(self, block: int, group: int, half: int, side: int) -> list[Value]:
        """The extras at row half ``half`` and column ``side`` of a group, in compute types."""
        return [
            self._quad(number, block, group)(half, side) for number in range(len(self._readers))
        ]

    def _once(self, key: Any, build: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = build()
        return self._made[key]

    def _quad(self, number: int, block: int, group: int) -> Quad:
        """The elements of one extra in a group, whose loads are emitted on first use."""
        reader = self._readers[number]
        if self.arriving is not None and self.arriving.number == number:
            words = self.arriving.pairs(block, group)
            return lambda half, side: self._of_pair(reader, [words[half]], side)
        match reader.way:
            case Way.ONCE:
                one = self._once((number,), lambda: reader.element_at(self._base(number)))
                return lambda half, side: one
            case Way.BY_ROW:
                pair = self._once((number, block), lambda: self._by_row(number, block))
                return lambda half, side: pair[half]
            case Way.ANYWHERE:
                return lambda half, side: reader.anywhere(self._dims(block, group, half, side))
        build = {
            Way.COLUMN_PAIRS: self._column_pairs,
            Way.ROW_PAIRS: self._row_pairs,
            Way.ELEMENTS: self._elements,
        }[reader.way]
        quad: Quad = self._once((number, block, group), lambda: build(number, block, group))
        return quad

    # Places ---------------------------------------------------------------------------------------

    def _row(self, fragment: Fragment, block: int, half: int, last: int) -> Num:
        """A row of a fragment, clamped to be ``last`` before the end at most."""
        row = add(add(self._origin.row, fragment.row), ROWS * block + 8 * half)
        return umin(row, sub(self._rows, last))

    def _inside(self, fragment: Fragment, group: int, side: int = 0) -> Value:
        """Whether a fragment's column in a group is one of the tensor."""

        def left() -> Value:
            return sub(self._columns, add(self._origin.column, fragment.column))

        here = self._once(("left", fragment is self._turned), left)
        return compare("sgt", here, 8 * group + side)

    def _dims(self, block: int, group: int, half: int, side: int) -> dict[int, Num]:
        column = add(add(self._origin.column, self._fragment.column), 8 * group + side)
        return {
            **dict(enumerate(self._origin.batch)),
            self._directions.rows: self._row(self._fragment, block, half, 1),
            self._directions.columns: umin(column, sub(self._columns, 1)),
        }

    # Reads ----------------------------------------------------------------------------------------

    def _base(self, number: int) -> Value:
        base = self._readers[number].base
        return self._once(("base", number), lambda: base(self._origin.batch))

    def _by_row(self, number: int, block: int) -> list[Value]:
        reader, base = self._readers[number], self._base(number)
        rows = (self._row(self._fragment, block, half, 1) for half in range(2))
        return [reader.element_at(add(base, reader.row_bytes(row))) for row in rows]

    def _line(self, number: int, block: int, half: int, fragment: Fragment, last: int) -> Value:
        """The address of a fragment's row, at its column in group 0."""
        reader = self._readers[number]

        def build() -> Value:
            row = reader.row_bytes(self._row(fragment, block, half, last))
            column = reader.column_bytes(add(self._origin.column, fragment.column))
            return add(add(self._base(number), row), column)

        return self._once(("line", number, block, half), build)

    def _along(self, number: int, line: Value, block: int, half: int, group: int) -> Value:
        """The address of a group in a line, from that of the group before.

        Not a multiple of the group's number: LLVM would compute the multiples once, outside of the
        loop over tiles, and keep them in registers.
        """
        if group == 0:
            return line
        step = self._group_bytes(self._readers[number])
        before = self._along(number, line, block, half, group - 1)
        return self._once(("along", number, block, half, group), lambda: add(before, step))

    def _group_bytes(self, reader: ExtraReader) -> Num:
        """From a group of columns to the next."""
        return reader.column_bytes(8)

    def _column_pairs(self, number: int, block: int, group: int) -> Quad:
        reader = self._readers[number]

        def pair(block: int, half: int) -> list[Value]:
            line = self._line(number, block, half, self._fragment, 1)
            inside = self._inside(self._fragment, group)
            offset = 8 * group * reader.bytes
            return ptx.load_pair_if(storage_type(reader.element), line, offset, inside)

        if reader.has_one_row:
            same = self._once((number, "columns", group), lambda: pair(0, 0))
            return lambda half, side: self._of_pair(reader, same, side)
        pairs = [pair(block, half) for half in range(2)]
        return lambda half, side: self._of_pair(reader, pairs[half], side)

    def _row_pairs(self, number: int, block: int, group: int) -> Quad:
        reader, inside = self._readers[number], self._inside(self._turned, group)
        pairs = []
        for half in range(2):
            line = self._line(number, block, half, self._turned, 2)
            address = self._along(number, line, block, half, group)
            pairs.append(ptx.load_pair_if(storage_type(reader.element), address, 0, inside))
        # Turned only when needed: to turn waits for the loads.
        turned: dict[int, list[Value]] = {}

        def element(half: int, side: int) -> Value:
            if half not in turned:
                turned[half] = [ptx.transpose_halves(pairs[half][0])]
            return self._of_pair(reader, turned[half], side)

        return element

    def _of_pair(self, reader: ExtraReader, words: list[Value], side: int) -> Value:
        """One of two neighbours, which are a packed word or two words."""
        if len(words) == 1:
            return ptx.unpack_halves(words[0], reader.element)[side]
        return from_storage(words[side], reader.element)

    def _elements(self, number: int, block: int, group: int) -> Quad:
        reader = self._readers[number]

        def element(half: int, side: int) -> Value:
            line = self._line(number, block, half, self._fragment, 1)
            address = self._along(number, line, block, half, group)
            address = add(address, reader.column_bytes(side))
            return reader.element_at(address, self._inside(self._fragment, group, side))

        found = [[element(half, side) for side in range(2)] for half in range(2)]
        return lambda half, side: found[half][side]
