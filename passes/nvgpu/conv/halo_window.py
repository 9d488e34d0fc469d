# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tiles of pixels with the halo that all taps of a window see: their lines and their bytes.

A tile of the result is `WIDTH` pixels wide: a group of wgmma's columns is a row of it. What its
taps see is a box of the image, as many rows and pixels longer as the window reaches. In shared
memory each pixel is a line of a block of channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import TILE_ALIGNMENT

#: Pixels of a tile along the width.
WIDTH = 8

# Tiles of pixels in shared memory: one that is multiplied, the others on their way.
_LEAST_TILES, _MOST_TILES = 2, 3
# With filters that stay: tiles of each consumer.
_MOST_LAPS = 2


@dataclass(frozen=True)
class HaloWindow:
    """A window that moves from pixel to pixel.

    Attributes:
        taps: along the height and the width.
        dilations: pixels between neighbouring taps.
        channels: of a group; None if that is not known.
    """

    taps: tuple[int, int]
    dilations: tuple[int, int]
    channels: int | None

    @property
    def count(self) -> int:
        """Taps of the window."""
        return self.taps[0] * self.taps[1]

    @property
    def reach(self) -> tuple[int, int]:
        """Pixels from the first tap to the last one, along the height and the width."""
        (rows, columns), (down, along) = self.taps, self.dilations
        return (rows - 1) * down, (columns - 1) * along

    def stages(self, depth: int) -> int | None:
        """Tiles of filters that a tile of the result takes; None if that is not known."""
        return None if self.channels is None else self.count * -(-self.channels // depth)


@dataclass(frozen=True)
class HaloTile:
    """A tile of pixels with its halo, for one block of channels.

    Attributes:
        height, width: in pixels, the halo included.
        line: bytes of a pixel's block of channels.
    """

    height: int
    width: int
    line: int

    @staticmethod
    def of(schedule: GemmSchedule, window: HaloWindow) -> HaloTile:
        """The tile of a schedule."""
        down, along = window.reach
        rows = schedule.columns // WIDTH
        return HaloTile(rows + down, WIDTH + along, schedule.depth * schedule.element_bytes)

    @property
    def bytes(self) -> int:
        """That a load brings."""
        return self.height * self.width * self.line

    @property
    def pitch(self) -> int:
        """Bytes from tile to tile: the swizzle pattern starts anew with each."""
        return -(-self.bytes // TILE_ALIGNMENT) * TILE_ALIGNMENT


def filter_bytes(schedule: GemmSchedule, window: HaloWindow) -> int:
    """Shared memory of the tiles of filters."""
    stages = schedule.stages
    if schedule.resident:
        stages = min(window.stages(schedule.depth) or stages, stages)
    return stages * schedule.rows * schedule.depth * schedule.element_bytes


def pixel_tiles(schedule: GemmSchedule, window: HaloWindow, free: int) -> int:
    """How many tiles of pixels there are, 0 if the schedule does not suit.

    With filters that stay, consumers have tiles of their own. Then each finds its tiles in the same
    places of the ring, so that the one bit of a barrier's phase tells it enough.

    Args:
        schedule: of the family halo.
        window: of the convolution.
        free: bytes of shared memory, beside those of results on their way to memory.
    """
    fit = (free - filter_bytes(schedule, window)) // HaloTile.of(schedule, window).pitch
    if not schedule.resident:
        return min(fit, _MOST_TILES) if fit >= _LEAST_TILES else 0
    stages = window.stages(schedule.depth)
    if not stages or stages > schedule.stages:
        return 0
    lap = schedule.consumers * stages // window.count
    return min(fit // lap, _MOST_LAPS) * lap
