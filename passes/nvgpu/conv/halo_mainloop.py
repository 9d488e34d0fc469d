# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tiles of pixels in shared memory, and the products of all taps with them.

Two rings: one of tiles of filters, a tap and a block of channels each, one of tiles of pixels with
their halo, a block of channels each. The pixels that a tap sees of a tile are the same lines from
another first one on: a row of 8 pixels is a group of 8 lines, and a descriptor says how far the
groups are apart. The swizzle acts on addresses, so a descriptor may start at any line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlir.dialects import arith

from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    loop,
    mul,
    select,
    udiv,
    value,
    when,
)
from shapejit.passes.nvgpu.conv.halo_window import HaloTile, HaloWindow
from shapejit.passes.nvgpu.function import KernelFunction, Threads
from shapejit.passes.nvgpu.operands import StagedOperand
from shapejit.passes.nvgpu.problem import Matrix
from shapejit.passes.nvgpu.ring import Ring, Slot, slot_of
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.tma import Descriptor
from shapejit.passes.nvgpu.wgmma import (
    ROWS,
    Multiplier,
    TileLayout,
    await_groups,
    multiply_stage,
    stage_step,
)

_UNIT = 16  # bytes that a descriptor's addresses count
_MOST_TAPS = 5  # of a round of the loop


@dataclass(frozen=True, kw_only=True)
class HaloLayout(TileLayout):
    """A tile of pixels as the columns of a product: a group of 8 is a row of pixels.

    Attributes:
        tile: with its halo.
    """

    tile: HaloTile

    @staticmethod
    def of(schedule: GemmSchedule, window: HaloWindow) -> HaloLayout:
        """The layout of a schedule's tiles."""
        tile = HaloTile.of(schedule, window)
        width = schedule.element_bytes
        return HaloLayout(
            schedule.columns, schedule.depth, k_major=True, element_bytes=width, tile=tile
        )

    @property
    def bytes(self) -> int:
        """From a tile to the next."""
        return self.tile.pitch

    @property
    def _group_bytes(self) -> int:
        return self.tile.width * self.tile.line


@dataclass(frozen=True)
class PixelTiles:
    """The tiles of pixels.

    Attributes:
        matrix: what TMA reads.
        layout: of a tile.
        descriptor: the tensor map.
        offset: of the first tile in shared memory.
    """

    matrix: Matrix
    layout: HaloLayout
    descriptor: Descriptor
    offset: int

    @staticmethod
    def make(
        function: KernelFunction,
        memory: SharedMemory,
        matrix: Matrix,
        layout: HaloLayout,
        count: int,
    ) -> PixelTiles:
        """Allocates the tiles and asks for the tensor map.

        Raises:
            LoweringError: there is not enough shared memory.
        """
        box = (layout.depth, layout.tile.width, layout.tile.height)
        record = matrix.record(function, box, layout.swizzle)
        descriptor = Descriptor.make(function, record, matrix.access.element)
        return PixelTiles(matrix, layout, descriptor, memory.allocate(count * layout.bytes))

    def load(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        ring: Ring,
        slot: Slot,
        indices: Mapping[int, Num],
    ) -> None:
        """By the producer: fills a tile as soon as it is empty.

        Args:
            indices: of the first element of the result's tile, along every dim of the space.
        """
        ring.acquire(slot, self.layout.tile.bytes)
        place = [indices[dim] for dim in self.matrix.dims]
        coordinates = self.matrix.coordinates(function, place)
        offset = add(self.offset, mul(slot.stage, self.layout.bytes))
        self.descriptor.load(memory, offset, ring, slot, coordinates)


@dataclass(frozen=True)
class _Taps:
    """Some taps that are multiplied one after the other, neighbours along the width.

    Attributes:
        number: of the group in the window.
        column: of the group in a row of taps.
        start: first line of its first tap, in units of 16 bytes.
    """

    number: Value
    column: Value
    start: Value

    @property
    def values(self) -> list[Value]:
        """As loops carry it."""
        return [self.number, self.column, self.start]

    def advance(self, window: HaloWindow, tile: HaloTile, together: int) -> tuple[_Taps, Value]:
        """The group after this one, and whether that is the first of another block of channels.

        Args:
            together: taps of a group.
        """
        (_, columns), (down, _) = window.taps, window.dilations
        groups = columns // together
        step = together * _tap_step(window, tile)
        down_step = down * tile.width * tile.line // _UNIT
        number, column = add(self.number, 1), add(self.column, 1)
        ends = compare("eq", number, window.count // together)
        row_ends = compare("eq", column, groups)
        moved = add(self.start, select(row_ends, down_step - (groups - 1) * step, step))
        after = _Taps(select(ends, 0, number), select(row_ends, 0, column), select(ends, 0, moved))
        return after, ends


def taps_together(window: HaloWindow, schedule: GemmSchedule) -> int:
    """Taps that a round of the loop multiplies.

    A row of the window, if it is short and there is one consumer: what a round takes beside its
    products is hidden behind them only if these are enough. Several consumers hide it for each
    other, and large tiles take ptxas twice as long with several taps.
    """
    alone = schedule.consumers == 1 and window.taps[1] <= _MOST_TAPS
    return window.taps[1] if alone else 1


def _tap_step(window: HaloWindow, tile: HaloTile) -> int:
    """From a tap to the next along the width, in units of 16 bytes."""
    return window.dilations[1] * tile.line // _UNIT


@dataclass(frozen=True)
class _Place:
    """Where a consumer is: tiles of filters and of pixels, and those of the step before."""

    filters: Slot
    pixels: Slot
    filters_before: Value
    pixels_before: Value

    @property
    def values(self) -> list[Value]:
        """As loops carry it."""
        return [
            *self.filters.values,
            *self.pixels.values,
            self.filters_before,
            self.pixels_before,
        ]

    @staticmethod
    def of(values: Sequence[Value]) -> _Place:
        return _Place(slot_of(list(values[:2])), slot_of(list(values[2:4])), values[4], values[5])


_PLACE_VALUES, _TAP_VALUES = 6, 3


class HaloProducts:
    """A consumer's products, one block of 64 filters after the other.

    Args:
        memory: shared memory of the kernel.
        schedule: how the convolution is cut.
        window: of the convolution.
        filters, pixels: the operands.
        filter_ring, pixel_ring: of their tiles.
        threads: where the thread is; with filters that stay, consumers share no tile.
    """

    def __init__(
        self,
        memory: SharedMemory,
        schedule: GemmSchedule,
        window: HaloWindow,
        filters: StagedOperand,
        pixels: PixelTiles,
        filter_ring: Ring,
        pixel_ring: Ring,
        threads: Threads,
    ) -> None:
        self._window, self._resident = window, schedule.resident
        self._taps = taps_together(window, schedule)
        self._filters, self._pixels = filters.layout, pixels.layout
        self._filter_ring, self._pixel_ring = filter_ring, pixel_ring
        self._lane = threads.lane
        together = 1 if schedule.resident else schedule.consumers
        self._blocks = schedule.rows // (ROWS * together)
        element = filters.matrix.access.element
        self._multiplier = Multiplier(schedule.columns, self._filters, self._pixels, element)
        panel = self._filters.panel_bytes
        first: Num = filters.offset
        if not schedule.resident:
            first = add(mul(threads.warpgroup, self._blocks * panel), first)
        self._rows = self._filters.low_word(add(memory.base, first))
        self._columns = self._pixels.low_word(add(memory.base, pixels.offset))

    def start(
        self, filters: Slot, pixels: Slot, stages: Num
    ) -> tuple[Slot, Slot, list[Value], list[Value]]:
        """The products of a tile over so many taps and blocks, the last ones may be in flight.

        The first ones are peeled: they overwrite the sums. What the products before read is
        released when the next ones are under way.

        Returns:
            The places in the rings after it, the tiles that are still being read, and the sums; see
            `finish`.
        """
        sums = [self._multiplier.undefined()] * self._blocks
        place = _Place(filters, pixels, filters.stage, pixels.stage)
        taps = _Taps(value(0), value(0), value(0))
        place, taps, sums = self._multiply(place, taps, sums, first=True)
        rounds = udiv(stages, self._taps)
        with loop(1, rounds, 1, [*place.values, *taps.values, *sums]) as each:
            place = _Place.of(each.carried[:_PLACE_VALUES])
            rest = each.carried[_PLACE_VALUES:]
            taps, sums = _Taps(*rest[:_TAP_VALUES]), rest[_TAP_VALUES:]
            place, taps, sums = self._multiply(place, taps, sums, first=False)
            each.next = [*place.values, *taps.values, *sums]
        place = _Place.of(each.results[:_PLACE_VALUES])
        sums = each.results[_PLACE_VALUES + _TAP_VALUES :]
        return place.filters, place.pixels, [place.filters_before, place.pixels_before], sums

    def _multiply(
        self, place: _Place, taps: _Taps, sums: Sequence[Value], *, first: bool
    ) -> tuple[_Place, _Taps, list[Value]]:
        """The products of a group of taps; returns the places after it, the next group, the sums.

        Args:
            first: whether there are no sums yet.
        """
        self._pixel_ring.await_full(place.pixels)
        filters, before = place.filters, place.filters_before
        for number in range(self._taps):
            self._filter_ring.await_full(filters)
            fresh = first and number == 0
            products = self._at(filters, place.pixels, taps, number)
            sums = multiply_stage(products, sums, fresh=fresh)
            if not fresh:
                await_groups(1)
                self._release_filters(before)
            if not first and number == 0:
                with when(compare("eq", taps.number, 0)):
                    self._pixel_ring.release(place.pixels_before, self._lane)
            before, filters = filters.stage, self._filter_ring.advance(filters)
        after, ends = taps.advance(self._window, self._pixels.tile, self._taps)
        further = self._pixel_ring.advance(place.pixels)
        moved = [
            arith.select(ends, new, old)
            for new, old in zip(further.values, place.pixels.values, strict=True)
        ]
        return _Place(filters, slot_of(moved), before, place.pixels.stage), after, list(sums)

    def finish(self, last: Sequence[Value], sums: Sequence[Value]) -> list[list[list[Value]]]:
        """Waits for the products; returns the sums' registers of the one product by block.

        Args:
            last, sums: what `start` returned.
        """
        filters, pixels = last
        await_groups(0)
        self._release_filters(filters)
        self._pixel_ring.release(pixels, self._lane)
        return [[self._multiplier.sums(each) for each in sums]]

    def _release_filters(self, stage: Value) -> None:
        if not self._resident:
            self._filter_ring.release(stage, self._lane)

    def _at(
        self, filters: Slot, pixels: Slot, taps: _Taps, number: int
    ) -> list[tuple[Multiplier, Value, Value]]:
        """The products of a tap of a group, with the descriptors of its tiles."""
        columns = add(self._columns, stage_step(self._pixels.bytes, pixels.stage))
        start = add(taps.start, number * _tap_step(self._window, self._pixels.tile))
        columns = add(columns, start)
        rows = add(self._rows, stage_step(self._filters.bytes, filters.stage))
        panel = self._filters.panel_bytes // _UNIT
        return [
            (self._multiplier, add(rows, block * panel), columns) for block in range(self._blocks)
        ]
