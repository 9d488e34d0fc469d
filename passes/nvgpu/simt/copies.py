# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tiles of f32 operands, from global into shared memory by ``cp.async``.

A tile lies in shared memory as its operand does in global memory, so that 16 bytes are copied at
once and read at once:

- *K-major* (elements along K are neighbours, or none are): a line of ``depth`` elements for every
  row. Chunk ``q`` (16 bytes) of row ``r`` lies at place ``(r * depth / 4 + q) ^ (r / 4 mod 8)``:
  the lanes of a warp read rows four apart at the same q, and so all banks;
- *MN-major*: a line of ``extent`` elements for every element of K, as it is.

Where an address or stride is no multiple of 16 bytes each element is copied on its own: decided
while the kernel runs, once a tile. What lies outside of the operand becomes 0, also in the middle
of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from mlir.dialects import llvm

from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    and_,
    compare,
    i64,
    loop,
    mul,
    or_,
    select,
    shr,
    smax,
    smin,
    sub,
    udiv,
    urem,
    value,
    when,
    wide,
    xor,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import IndexAlgebra
from shapejit.passes.nvgpu.problem import Access, GemmProblem
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.simt.ptx import copy_elements
from shapejit.passes.nvgpu.simt.tiling import QUAD
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import ONE, ZERO

ELEMENT_BYTES = 4
CHUNK_BYTES = QUAD * ELEMENT_BYTES
_PATTERN = 8  # chunks of a line of all banks
# More copies in a row than this are a loop.
_MOST_UNROLLED = 8


@dataclass(frozen=True)
class TileLayout:
    """An operand's tile in a stage.

    Attributes:
        extent: rows or columns.
        depth: elements of K.
        k_major: which elements are neighbours.
    """

    extent: int
    depth: int
    k_major: bool

    @property
    def bytes(self) -> int:
        return self.extent * self.depth * ELEMENT_BYTES

    @property
    def line(self) -> int:
        """Elements of a line."""
        return self.depth if self.k_major else self.extent

    @property
    def lines(self) -> int:
        return self.extent if self.k_major else self.depth

    def offset(self, line: Num, element: Num) -> Num:
        """Where an element of a line is, in bytes."""
        if not self.k_major:
            return mul(add(mul(line, self.extent), element), ELEMENT_BYTES)
        chunk = add(mul(line, self.depth // QUAD), udiv(element, QUAD))
        placed = xor(chunk, and_(shr(line, 2), _PATTERN - 1))
        return add(mul(placed, CHUNK_BYTES), mul(urem(element, QUAD), ELEMENT_BYTES))


@dataclass(frozen=True)
class Factor:
    """An operand of the product.

    Attributes:
        access: what it reads.
        dim: of the space, along which its rows run: m or n.
        start: offset of the first element at a batch index, over the batch dims: heads that share
            one are a division.
        row_stride, depth_stride: elements from a row to the next, and along K.
        layout: of its tiles.
    """

    access: Access
    dim: int
    start: Expr
    row_stride: Expr
    depth_stride: Expr
    layout: TileLayout

    @staticmethod
    def of(problem: GemmProblem, access: Access, dim: int, extent: int, depth: int) -> Factor:
        """One factor of a problem.

        Raises:
            LoweringError: it has no fixed strides along rows and K.
        """
        row, along = access.stride(dim), access.stride(problem.k)
        start = access.offset.substitute(dims={dim: ZERO, problem.k: ZERO})
        if row is None or along is None or not start.dims() <= set(range(problem.m)):
            raise LoweringError(
                f"reads argument {access.operand} at {access.offset}, which has no fixed strides; "
                "copy it to a tensor that has"
            )
        single = problem.space[problem.k] == ONE
        k_major = along == ONE or row != ONE
        if row == ONE and single:
            k_major = False
        return Factor(access, dim, start, row, along, TileLayout(extent, depth, k_major))

    @property
    def has_neighbours(self) -> bool:
        """Whether the elements of a line are neighbours in memory."""
        return (self.depth_stride if self.layout.k_major else self.row_stride) == ONE


class TileCopier:
    """Copies the tiles of one factor, by all threads of a CTA.

    Args:
        function: the kernel.
        memory: its shared memory.
        problem: what it computes.
        factor: the operand.
        thread: this thread's number.
        threads: of the CTA.
        stages: of the ring, which lie one after the other.
    """

    def __init__(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        problem: GemmProblem,
        factor: Factor,
        thread: Value,
        threads: int,
        stages: int,
    ) -> None:
        self.function, self.memory, self.factor = function, memory, factor
        self.thread, self.threads = thread, threads
        self.offset = memory.allocate(stages * factor.layout.bytes)
        self.rows = function.size(problem.space[factor.dim])
        self.depth = function.size(problem.space[problem.k])
        self.row_bytes = mul(function.size(factor.row_stride, 8), ELEMENT_BYTES)
        self.depth_bytes = mul(function.size(factor.depth_stride, 8), ELEMENT_BYTES)
        self._base = llvm.ptrtoint(i64(), function.address(factor.access.operand))

    def stage(self, number: Num) -> Num:
        """The offset of a stage's tile in shared memory."""
        return add(self.offset, mul(number, self.factor.layout.bytes))

    def source(self, batch: Sequence[Num], first: Num) -> TileSource:
        """The tiles along K whose first row is given."""
        algebra = IndexAlgebra(self.function, dict(enumerate(batch)))
        start = self.factor.start.build(algebra)
        address = add(self._base, mul(start, ELEMENT_BYTES))
        address = add(address, mul(wide(first), self.row_bytes))
        return TileSource(self, address, sub(value(self.rows), first))


class TileSource:
    """The tiles of one row of tiles; see `TileCopier.source`.

    Args:
        copier: copies them.
        address: of the first row at k = 0, i64.
        rows: that are left from there on.
    """

    def __init__(self, copier: TileCopier, address: Value, rows: Value) -> None:
        self._copier, self._address, self._rows = copier, address, rows

    @property
    def _is_aligned(self) -> Value:
        """Whether all chunks are at multiples of 16 bytes."""
        copier = self._copier
        lines = copier.row_bytes if copier.factor.layout.k_major else copier.depth_bytes
        return compare("eq", and_(or_(self._address, lines), CHUNK_BYTES - 1), 0)

    def load(self, stage: Num, k: Num) -> None:
        """Starts the copies of the tile from an element of K on, into a stage."""
        if not self._copier.factor.has_neighbours:
            self._copy(stage, k, 1)
            return
        chunks = Branches(self._is_aligned)
        with chunks.then():
            self._copy(stage, k, QUAD)
        with chunks.otherwise():
            self._copy(stage, k, 1)

    def _copy(self, stage: Num, k: Num, width: int) -> None:
        """Copies in pieces of ``width`` elements."""
        copier, layout = self._copier, self._copier.factor.layout
        each = layout.line // width  # threads that a line takes
        together = max(copier.threads // each, 1)  # lines at once
        pieces = layout.lines * each
        with self._first_threads(pieces):
            line = udiv(copier.thread, each)
            element = mul(urem(copier.thread, each), width)
            _Lines(self, stage, k, width, line, element).copy(together)

    def _first_threads(self, count: int) -> AbstractContextManager[None]:
        """``when`` this is one of so many threads, unless all are."""
        copier = self._copier
        if count >= copier.threads:
            return nullcontext()
        return when(compare("ult", copier.thread, count))

    # What `_Lines` asks for.

    @property
    def copier(self) -> TileCopier:
        return self._copier

    def start(self, k: Num) -> Num:
        """The address of the first row at an element of K."""
        return add(self._address, mul(wide(k), self._copier.depth_bytes))

    def left(self, k: Num) -> Mapping[bool, Num]:
        """How many rows (False), and elements of K (True), there are from here on."""
        return {False: self._rows, True: sub(value(self._copier.depth), k)}


class _Lines:
    """This thread's pieces of one tile.

    Args:
        source: the tile's operand.
        stage: offset of the tile in shared memory.
        k: its first element of K.
        width: elements of a piece.
        line, element: where the first piece is; the others are equally far apart.
    """

    def __init__(
        self, source: TileSource, stage: Num, k: Num, width: int, line: Num, element: Num
    ) -> None:
        copier = source.copier
        self._copier, self._layout = copier, copier.factor.layout
        self._stage, self._width = stage, width * ELEMENT_BYTES
        self._line, self._element = line, element
        k_major = self._layout.k_major
        along, across = copier.depth_bytes, copier.row_bytes
        if not k_major:
            along, across = across, along
        self._across = across
        self._address = add(
            source.start(k), add(mul(wide(element), along), mul(wide(line), across))
        )
        left = source.left(k)
        # Bounded before it is counted in bytes, of which there may be more than 2^31.
        inside = smin(smax(sub(left[k_major], element), 0), width)
        self._bytes = mul(inside, ELEMENT_BYTES)
        self._left = sub(left[not k_major], line)

    def copy(self, together: int) -> None:
        """Starts the copies, of so many lines at once by the CTA."""
        rounds = max(self._layout.lines // together, 1)
        step = mul(self._across, together)
        if rounds > _MOST_UNROLLED:
            with loop(0, rounds, 1, [value(self._address, i64())]) as each:
                lines = mul(each.index, together)
                [address] = each.carried
                place = self._layout.offset(add(self._line, lines), self._element)
                self._start(lines, address, place, 0)
                each.next = [add(address, step)]
            return
        address = self._address
        places: dict[int, Num] = {}
        for number in range(rounds):
            turn, further = self._place(number, together)
            if turn not in places:
                first = self._layout.offset(self._line, self._element)
                places[turn] = xor(first, turn)
            self._start(number * together, address, places[turn], further)
            address = add(address, step)

    def _place(self, number: int, together: int) -> tuple[int, int]:
        """Where a piece is beside the first one: what is exchanged, and bytes further.

        ``together`` is a power of 2 above every thread's first line, so nothing is carried.
        """
        lines = number * together
        turn = 0
        if self._layout.k_major:
            turn = (lines >> 2 & _PATTERN - 1) * CHUNK_BYTES
        return turn, lines * self._layout.line * ELEMENT_BYTES

    def _start(self, lines: Num, address: Num, place: Num, further: int) -> None:
        exists = compare("sgt", self._left, lines)
        target = add(self._copier.memory.base, add(self._stage, place))
        copy_elements(target, further, address, select(exists, self._bytes, 0), self._width)
