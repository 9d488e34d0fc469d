# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operands on their way into shared memory: one tile a stage, by TMA.

TMA fills what lies beyond the edge of a matrix with zeros, but takes more time for a line of zeros
than for one that it reads. So a tile of which less than about half is there is loaded in smaller
boxes: the lines that are left out only reach parts of the result that are not stored. (Along K they
would reach all of it: there a box may reach beyond the edge.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shapejit import ir as sir
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    ceildiv,
    compare,
    integer,
    loop,
    mul,
    select,
    sub,
    value,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.problem import Matrix
from shapejit.passes.nvgpu.ring import Ring, Slot
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.tma import Descriptor
from shapejit.passes.nvgpu.wgmma import ROWS, TileLayout

_PATTERN_LINES = 8  # of a swizzle pattern
# Smaller boxes that a tile at the edge may take. Measured on an H200: two in place of one box half
# of which lies outside save 14 %, three and more cost up to half of the speed.
_MOST_PARTS = 2

_Destination: TypeAlias = tuple[KernelFunction, SharedMemory, Ring, Slot, "Value | None"]


def tile_layout(matrix: Matrix, k: int, extent: int, depth: int) -> TileLayout:
    """How TMA lays out a matrix's tile; ``k`` is the number of the contracted dim."""
    width = sir.element_bytes(matrix.access.element)
    return TileLayout(extent, depth, k_major=matrix.dims[0] == k, element_bytes=width)


@dataclass(frozen=True)
class StagedOperand:
    """An operand with its place in the ring's stages.

    Attributes:
        matrix: what TMA reads.
        layout: of its tiles in shared memory.
        descriptor: the tensor map.
        offset: of the first stage's tile in shared memory; the tiles of all stages follow.
        share: CTAs of the cluster that load a part of the tile each, for all of them: some of its
            lines, or of its panels.
        by_depth: whether each loads some lines of every panel, since there are too few panels.
        ragged: whether tiles may reach beyond the edge, and what does is left out.
    """

    matrix: Matrix
    layout: TileLayout
    descriptor: Descriptor
    offset: int
    share: int = 1
    by_depth: bool = False
    ragged: bool = False

    @staticmethod
    def make(
        function: KernelFunction,
        memory: SharedMemory,
        matrix: Matrix,
        layout: TileLayout,
        stages: int,
        share: int = 1,
    ) -> StagedOperand:
        """Allocates the tiles and asks for the tensor map.

        Raises:
            LoweringError: the CTAs cannot share the tile evenly, in whole swizzle patterns.
        """
        own_size = matrix.sizes[1 if layout.k_major else 0]
        by_depth = not layout.k_major and layout.panels % share != 0
        lines = layout.extent if layout.k_major else layout.depth
        parted = share > 1 and (layout.k_major or by_depth)
        if parted and lines % (_PATTERN_LINES * share):
            raise LoweringError(
                f"shares a tile of {lines} lines among {share} CTAs; each takes multiples of "
                f"{_PATTERN_LINES}"
            )
        if layout.k_major:
            box = (layout.depth, layout.extent // share)
        else:
            box = (ROWS, layout.depth // (share if by_depth else 1))
        record = matrix.record(function, box, layout.swizzle)
        known = own_size.constant
        ragged = share == 1 and (known is None or known % layout.extent != 0)
        smaller = None
        in_parts = ragged and layout.k_major and matrix.has_parts
        if in_parts and (part := _part_lines(layout.extent)) is not None:
            smaller = (record.box[0], part, *record.box[2:])
        descriptor = Descriptor.make(function, record, matrix.access.element, smaller)
        offset = memory.allocate(stages * layout.bytes)
        return StagedOperand(matrix, layout, descriptor, offset, share, by_depth, ragged)

    def stage(self, stage: Num) -> Num:
        """The offset of a stage's tile in shared memory."""
        return add(self.offset, mul(stage, self.layout.bytes))

    def load(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        ring: Ring,
        slot: Slot,
        place: Mapping[int, Num],
        rank: Num = 0,
        mask: Num | None = None,
    ) -> None:
        """Starts the loads of this CTA's part of a tile.

        Args:
            place: index of the tile's first element along every dim of the space.
            rank: number of this CTA among those that share the tile.
            mask: of the cluster's CTAs that get its part, if they share.
        """
        multicast = None if mask is None else value(mask, integer(16))
        start = self.stage(slot.stage)
        along, across, *batch = (place[dim] for dim in self.matrix.dims)
        destination = (function, memory, ring, slot, multicast)
        if self.layout.k_major or self.by_depth:
            lines = mul(rank, self.descriptor.box[1])
            start, across = add(start, mul(lines, self.layout.swizzle)), add(across, lines)
        if not self.layout.k_major:
            panels = self._panels(rank)
            self._load_panels(function, destination, start, [along, across, *batch], panels, place)
        elif self.descriptor.smaller is not None:
            left = self._left(function, place)
            whole = Branches(compare("sgt", left, self._most_in_parts))
            with whole.then():
                self._load_box(self.descriptor, destination, start, [along, across, *batch])
            with whole.otherwise():
                self._load_parts(destination, start, [along, across, *batch], left)
        else:
            self._load_box(self.descriptor, destination, start, [along, across, *batch])

    @property
    def _most_in_parts(self) -> int:
        """Lines of a tile up to which smaller boxes are faster than one that reaches outside."""
        assert self.descriptor.smaller is not None
        lines = self.descriptor.smaller.box[1]
        return min(_MOST_PARTS * lines, self.layout.extent - lines)

    def _left(self, function: KernelFunction, place: Mapping[int, Num]) -> Value:
        """How far it is from the tile's start to the matrix's edge, 0 or less beyond it."""
        own = 1 if self.layout.k_major else 0
        size = function.size(self.matrix.sizes[own])
        return sub(value(size), place[self.matrix.dims[own]])

    def _load_box(
        self,
        descriptor: Descriptor,
        destination: _Destination,
        offset: Num,
        place: Sequence[Num],
    ) -> None:
        """Starts the load of what is at indices of the matrix's dims."""
        function, memory, ring, slot, multicast = destination
        coordinates = self.matrix.coordinates(function, place)
        descriptor.load(memory, offset, ring, slot, coordinates, multicast)

    def _load_parts(
        self, destination: _Destination, start: Num, place: Sequence[Num], left: Value
    ) -> None:
        """The lines of a K-major tile that there are, rounded up to boxes."""
        smaller = self.descriptor.smaller
        assert smaller is not None
        along, across, *batch = place
        _, _, ring, slot, _ = destination
        lines = smaller.box[1]
        boxes = ceildiv(select(compare("sgt", left, 0), left, 0), lines)
        with loop(0, boxes) as each:
            first = mul(each.index, lines)
            offset = add(start, mul(first, self.layout.swizzle))
            here = [along, add(across, first), *batch]
            self._load_box(smaller, destination, offset, here)
        missing = sub(self.layout.extent, mul(boxes, lines))
        ring.forgo(slot, mul(missing, self.layout.swizzle))

    def _panels(self, rank: Num) -> list[Num]:
        """The numbers of the panels of an MN-major tile that this CTA loads."""
        if self.by_depth:
            return list(range(self.layout.panels))
        own = self.layout.panels // self.share
        return [add(mul(rank, own), number) for number in range(own)]

    def _load_panels(
        self,
        function: KernelFunction,
        destination: _Destination,
        start: Num,
        first: Sequence[Num],
        panels: Sequence[Num],
        place: Mapping[int, Num],
    ) -> None:
        """The panels of an MN-major tile, without those beyond the edge."""
        _, _, ring, slot, _ = destination
        along, *rest = first

        def load(panel: Num) -> None:
            offset = add(start, mul(panel, self.layout.panel_bytes))
            here = [add(along, mul(panel, ROWS)), *rest]
            self._load_box(self.descriptor, destination, offset, here)

        for panel in panels:
            if not self.ragged:
                load(panel)
                continue
            exists = Branches(compare("sgt", self._left(function, place), mul(panel, ROWS)))
            with exists.then():
                load(panel)
            with exists.otherwise():
                ring.forgo(slot, self.layout.panel_bytes)


def _part_lines(extent: int) -> int | None:
    """Lines of the smaller boxes of a K-major tile, about a quarter; None if it is small itself."""
    return -(-extent // 32) * 8 if extent > 16 else None
