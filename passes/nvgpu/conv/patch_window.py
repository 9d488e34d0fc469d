# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Patches of images of few channels in shared memory, laid out so that windows may overlap.

Shared memory holds pixels in *units* of 16 bytes: one pixel of up to 8 channels, or two of up to 4,
filled up with zeros. Without a swizzle wgmma reads 8 x 16 bytes from anywhere: 8 pixels of a row of
the result, whose units lie side by side, over 8 elements of K, a *chunk*. Neighbouring taps are the
same units from the next one on, so nothing is stored twice for all that windows overlap.

Where the window moves by more than one unit, units that are as far apart lie side by side: a row of
the patch has as many *planes*. A last unit of which only one pixel belongs to the window is in a
plane of its own, without the other one, and a chunk that K lacks for a whole number of products is
in a plane of zeros: whatever is outside of a window may be infinite, and 0 times that is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shapejit.passes.nvgpu.conv.halo_window import WIDTH
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import TILE_ALIGNMENT

#: Bytes and elements of a unit.
UNIT_BYTES, UNIT = 16, 8
#: Stages of patches: one that is multiplied, one that is filled.
PATCHES = 2
#: Filters that are multiplied at once.
FILTERS = 64


@dataclass(frozen=True)
class PatchWindow:
    """A window over an image of few channels.

    Attributes:
        taps, strides, dilations: along the height and the width.
        channels: up to 8.
    """

    taps: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    channels: int

    @property
    def pixels(self) -> int:
        """Pixels of a unit."""
        pairs = self.channels <= UNIT // 2 and self.taps[1] > 1
        return 2 if pairs and self.strides[1] % 2 == 0 and self.dilations[1] == 1 else 1

    @property
    def room(self) -> int:
        """Channels of a pixel in a unit."""
        return UNIT // self.pixels

    @property
    def planes(self) -> int:
        """Units by which the window moves along the width."""
        return self.strides[1] // self.pixels

    @property
    def columns(self) -> int:
        """Units of a row of taps."""
        return -(-self.taps[1] // self.pixels)

    @property
    def has_tail(self) -> bool:
        """Whether of the last unit of a row of taps not all pixels belong to the window."""
        return self.taps[1] % self.pixels != 0

    @property
    def chunks(self) -> int:
        """Chunks of K, filled up to a whole number of products."""
        count = self.taps[0] * self.columns
        return count + count % 2

    def offset(self, column: int) -> int:
        """Units from the first column of taps to another one."""
        return column * self.dilations[1]

    @property
    def order(self) -> list[int]:
        """The columns of a row of taps in the order of K, which is that of their addresses."""

        def place(column: int) -> tuple[bool, int, int]:
            offset = self.offset(column)
            tail = self.has_tail and column == self.columns - 1
            return tail, offset % self.planes, offset // self.planes

        return sorted(range(self.columns), key=place)


@dataclass(frozen=True)
class Patch:
    """What the windows of a tile see of an image.

    Attributes:
        window: that moves over it.
        lines: rows of pixels of the tile.
    """

    window: PatchWindow
    lines: int

    @staticmethod
    def of(schedule: GemmSchedule, window: PatchWindow) -> Patch:
        """The patch of a schedule's tiles."""
        return Patch(window, schedule.columns // WIDTH)

    @property
    def height(self) -> int:
        """Rows."""
        window = self.window
        reach = (window.taps[0] - 1) * window.dilations[0]
        return (self.lines - 1) * window.strides[0] + reach + 1

    @property
    def width(self) -> int:
        """Units of a row."""
        window = self.window
        return (WIDTH - 1) * window.planes + window.offset(window.columns - 1) + 1

    @property
    def units(self) -> int:
        """Of all rows."""
        return self.height * self.width

    @property
    def plane(self) -> int:
        """Units of a plane of a row."""
        return -(-self.width // self.window.planes)

    @property
    def tail(self) -> int:
        """Where the plane of last units starts in a row."""
        return self.window.planes * self.plane

    @property
    def zeros(self) -> int:
        """Where the plane of zeros starts in a row."""
        return self.tail + self.plane * self.window.has_tail

    @property
    def has_zeros(self) -> bool:
        """Whether there is a plane of zeros."""
        return self.window.taps[0] * self.window.columns % 2 != 0

    @property
    def pitch(self) -> int:
        """Units from a row to the next."""
        return self.zeros + WIDTH * self.has_zeros

    @property
    def bytes(self) -> int:
        """Of shared memory."""
        size = self.height * self.pitch * UNIT_BYTES
        return -(-size // TILE_ALIGNMENT) * TILE_ALIGNMENT

    @cached_property
    def places(self) -> list[int]:
        """Where the units of the first pixel are, in units, by chunk of K."""
        window = self.window
        found = []
        for row in range(window.taps[0]):
            start = row * window.dilations[0] * self.pitch
            for column in window.order:
                position, plane = divmod(window.offset(column), window.planes)
                first = plane * self.plane
                if window.has_tail and column == window.columns - 1:
                    first = self.tail
                found.append(start + first + position)
        if self.has_zeros:
            found.append((window.taps[0] - 1) * window.dilations[0] * self.pitch + self.zeros)
        return found

    @property
    def line_bytes(self) -> int:
        """From what a row of pixels of the result sees to what the next one does."""
        return self.window.strides[0] * self.pitch * UNIT_BYTES


def filter_blocks(filters: int) -> int:
    """Blocks of filters that are multiplied one after the other."""
    return max(-(-filters // FILTERS), 1)


def operand_bytes(patch: Patch, filters: int) -> int:
    """Shared memory of filters and patches."""
    filter_bytes = filter_blocks(filters) * FILTERS * patch.window.chunks * UNIT_BYTES
    return filter_bytes + PATCHES * patch.bytes
