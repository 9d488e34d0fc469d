# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Queries, keys, values and results of attention as tensor maps.

A map has the columns first, then rows, heads and batches, whatever the order in memory is: strides
say that. Heads that several queries share (``h floordiv 4``) are heads of the map; a dim that an
operand does not depend on is none of its map. What lies beyond the last row or column is read as 0
and not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shapejit.gpu.interface import TensorMap
from shapejit.passes.buckets.bindings import divisor_of
from shapejit.passes.nvgpu.attention.problem import (
    BATCH,
    COLUMN,
    HEAD,
    ROW,
    AttentionProblem,
)
from shapejit.passes.nvgpu.attention.tiles import Tile
from shapejit.passes.nvgpu.builder import Num, add, udiv
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.problem import Access, element_name, is_multiple
from shapejit.passes.nvgpu.ring import Ring, Slot
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.target import MAP_ALIGNMENT
from shapejit.passes.nvgpu.tma import Descriptor
from shapejit.passes.nvgpu.wgmma import ELEMENT_BYTES
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import ONE, ZERO, Atom, AtomKind

_MULTIPLE = MAP_ALIGNMENT // ELEMENT_BYTES


@dataclass(frozen=True)
class MappedRows:
    """An operand as a tensor map describes it.

    Attributes:
        access: over batch, head, row, column.
        outer: dims of the space, from the head on, that are dims of the map.
        sizes: of the map's dims: columns, rows, then `outer`.
        strides: of the same dims, in elements.
        share: how many heads of the space one head of the map serves.
    """

    access: Access
    outer: tuple[int, ...]
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    share: int

    @staticmethod
    def of(name: str, access: Access, space: Sequence[Expr]) -> MappedRows:
        """The map of an operand.

        Args:
            name: of the operand, for errors.
            access: the operand.
            space: sizes of batch, head, row and column.

        Raises:
            LoweringError: there can be no tensor map.
        """
        access, share = _by_map_heads(access)
        sizes = [*space]
        sizes[HEAD] = space[HEAD] // share
        strides = [access.stride(dim) for dim in range(len(space))]
        if any(stride is None for stride in strides):
            raise LoweringError(f"has {name} at {access.offset}, which has no fixed strides")
        if strides[COLUMN] != ONE and space[COLUMN] != ONE:
            raise LoweringError(
                f"has {name} whose elements are {strides[COLUMN]} apart; TMA needs neighbours"
            )
        if strides[ROW] == ZERO and space[ROW] != ONE:
            raise LoweringError(f"has {name} that are the same for all rows; TMA cannot broadcast")
        outer = tuple(dim for dim in (HEAD, BATCH) if strides[dim] != ZERO)
        dims = (COLUMN, ROW, *outer)
        return MappedRows(
            access,
            outer,
            tuple(sizes[dim] for dim in dims),
            # Of a dim of one element any stride will do.
            tuple(
                Expr.const(_MULTIPLE)
                if sizes[dim] == ONE and dim != COLUMN
                else strides[dim] or ONE
                for dim in dims
            ),
            share,
        )

    def misfit(self, *, known: bool) -> str | None:
        """The first stride that does not suit TMA, as text; None if all do.

        Args:
            known: whether a stride has to be known to suit, rather than not known not to.
        """
        for stride in self.strides[1:]:
            suits = divisor_of(stride, {}) % _MULTIPLE == 0 if known else _may_suit(stride)
            if not suits:
                return str(stride)
        return None

    def record(self, function: KernelFunction, box: tuple[int, int], swizzle: int) -> TensorMap:
        """The tensor map for boxes of so many columns and rows.

        A start other than 0 becomes part of the coordinate along the columns, so that the address
        of the operand itself stays the base, aligned.
        """
        sizes = (self.sizes[0] + self.access.start, *self.sizes[1:])
        return TensorMap(
            operand=self.access.operand,
            element=element_name(self.access.element),
            dims=tuple(function.value_number(size) for size in sizes),
            strides=tuple(function.value_number(stride) for stride in self.strides[1:]),
            box=(*box, *[1] * len(self.outer)),
            swizzle=swizzle,
        )


def _may_suit(stride: Expr) -> bool:
    return is_multiple(stride, _MULTIPLE)


def _by_map_heads(access: Access) -> tuple[Access, int]:
    """The access over heads of the map, and how many heads of the space share one."""
    head = Expr.dim(HEAD)
    for atom in access.offset.atoms():
        if atom.kind is not AtomKind.FLOORDIV:
            continue
        dividend, divisor = atom.operands
        if dividend != head or divisor.constant is None:
            continue
        replaced = _replaced(access.offset, atom, head)
        rest = _replaced(access.offset, atom, ZERO)
        if HEAD not in rest.dims():
            return Access(access.operand, access.element, replaced), divisor.constant
    return access, 1


def _replaced(expr: Expr, atom: Atom, image: Expr) -> Expr:
    return expr.map_atoms(lambda each: image if each is atom else Expr.from_atom(each))


def mapped_rows(problem: AttentionProblem) -> tuple[MappedRows, ...]:
    """Queries, keys, values and result of a problem.

    Raises:
        LoweringError: one of them can have no tensor map.
    """
    batch, heads, queries, keys, head, value = problem.space
    spaces = {
        "queries": (problem.q, (batch, heads, queries, head)),
        "keys": (problem.k, (batch, heads, keys, head)),
        "values": (problem.v, (batch, heads, keys, value)),
        "results": (problem.result, (batch, heads, queries, value)),
    }
    return tuple(MappedRows.of(name, access, space) for name, (access, space) in spaces.items())


def misfit(problem: AttentionProblem, *, known: bool) -> str | None:
    """Why tensor maps cannot serve a problem; None if they can.

    Args:
        known: whether strides have to be known to suit, rather than not known not to.
    """
    if problem.starts is not None:
        return "has batches that differ in how many queries or keys they have, one behind the other"
    if problem.lengths is not None and not problem.is_initialized:
        return "has keys beyond its lengths that may not be read, and boxes that reach there"
    try:
        rows = mapped_rows(problem)
    except LoweringError as error:
        return str(error)
    for name, each in zip(("queries", "keys", "values", "results"), rows, strict=True):
        stride = each.misfit(known=known)
        if stride is not None:
            return f"has {name} {stride} elements apart, not multiples of {_MULTIPLE}"
    return None


@dataclass(frozen=True)
class StagedRows:
    """An operand with its tiles in shared memory.

    Attributes:
        function: the kernel.
        rows: as TMA sees the operand.
        tile: layout of one of its tiles; boxes have its lines.
        descriptor: the tensor map.
    """

    function: KernelFunction
    rows: MappedRows
    tile: Tile
    descriptor: Descriptor

    @staticmethod
    def make(
        function: KernelFunction, rows: MappedRows, tile: Tile, box_rows: int | None = None
    ) -> StagedRows:
        """Asks for the tensor map.

        Args:
            box_rows: of one box, if not those of the tile.
        """
        box = (tile.line_bytes // ELEMENT_BYTES, box_rows or tile.rows)
        record = rows.record(function, box, tile.line_bytes)
        return StagedRows(
            function, rows, tile, Descriptor.make(function, record, rows.access.element)
        )

    def load(
        self,
        memory: SharedMemory,
        offset: Num,
        ring: Ring,
        slot: Slot,
        place: tuple[Num, Num, Num],
    ) -> None:
        """Starts the loads of a tile to an offset.

        Args:
            place: batch, head and first row.
        """
        for panel in range(self.panels):
            target = add(offset, panel * self.tile.panel_bytes)
            self.descriptor.load(memory, target, ring, slot, self._at(place, panel))

    def store(self, memory: SharedMemory, offset: Num, place: tuple[Num, Num, Num]) -> None:
        """Starts the stores of as many rows as a box has, from an offset within a tile."""
        for panel in range(self.panels):
            source = add(offset, panel * self.tile.panel_bytes)
            self.descriptor.store(memory, source, self._at(place, panel))

    @property
    def panels(self) -> int:
        """Boxes side by side."""
        return self.tile.width * ELEMENT_BYTES // self.tile.line_bytes

    def _at(self, place: tuple[Num, Num, Num], panel: int) -> list[Num]:
        batch, head, row = place
        start = self.function.size(self.rows.access.start)
        column = add(start, panel * self.tile.line_bytes // ELEMENT_BYTES)
        outer = {HEAD: udiv(head, self.rows.share), BATCH: batch}
        return [column, row, *(outer[dim] for dim in self.rows.outer)]
