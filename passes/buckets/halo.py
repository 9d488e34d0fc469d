# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the cost of convolutions in tiles with a halo depends on. docs/cost-model.md states it.

Tiles are 8 pixels wide and some rows high, on one image. How many there are does not follow from
the number of pixels, along which buckets are cut: times are means over the images that a program
can have with about so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shapejit.passes.buckets.bindings import Bindings
from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.samples import Samples
from shapejit.passes.nvgpu.conv.halo_window import (
    WIDTH,
    HaloTile,
    HaloWindow,
    filter_bytes,
    pixel_tiles,
)
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.symbolic import Expr

# Of a block of channels, by which K is counted.
_BLOCK_BYTES = 128
# A mean is of so many images with about the same number of pixels.
_IMAGES = 16
# Images of which times are looked at.
_MOST_IMAGES = 4096
# Microseconds of a kernel that do not depend on the number of pixels, about.
_FIXED = 2.5
# Of a kernel that nothing launches: square images of these sizes.
_ANY_SIZES = (7, 14, 28, 45, 56, 64, 112, 224)


@dataclass(frozen=True, eq=False)
class ImageShapes:
    """Results of a convolution, sorted by their numbers of pixels.

    Attributes:
        pixels: of all images of a product.
        heights, widths: of an image.
    """

    pixels: Any
    heights: Any
    widths: Any

    @staticmethod
    def of(sizes: tuple[Expr, Expr, Expr], bindings: Bindings, samples: Samples) -> ImageShapes:
        """The shapes at samples of a module's symbols.

        Args:
            sizes: pixels of a product, height, width, over the kernel's symbols.
            bindings: the kernel's launches.
            samples: of the module's symbols.
        """
        columns = [
            [samples.evaluate(size.substitute(symbols=launch)) for size in sizes]
            for launch in bindings.launches
        ]
        side = np.array(_ANY_SIZES)
        every = [np.concatenate(each) for each in zip(*columns, strict=True)]
        if not every or not (there := np.minimum.reduce(every) > 0).any():
            every, there = [side * side, side, side], side > 0
        order = np.argsort(every[0][there], kind="stable")
        if len(order) > _MOST_IMAGES:
            order = order[np.linspace(0, len(order) - 1, _MOST_IMAGES).astype(np.int64)]
        return ImageShapes(*(each[there][order].astype(np.float64) for each in every))

    def covered(self, lines: int) -> Any:
        """Pixels of all tiles over those of the result, of each image.

        Args:
            lines: rows of pixels of a tile.
        """
        high = np.ceil(self.heights / lines) * lines / self.heights
        wide = np.ceil(self.widths / WIDTH) * WIDTH / self.widths
        return high * wide

    def means(self, times: Any, pixels: Any) -> Any:
        """Geometric mean times of images with about so many pixels, as the choice weighs logarithms
        of times. Those of other numbers of pixels are taken to take as many times as long as they
        have pixels, but for what a launch always takes.

        Args:
            times: microseconds for each image, (images, schedules).
            pixels: of the results that are asked about.

        Returns:
            Microseconds, (results, schedules).
        """
        growth = np.maximum(1 - _FIXED / times, 0.0)
        sizes, asked = np.log(self.pixels)[:, np.newaxis], np.log(pixels)[:, np.newaxis]
        every = len(self.pixels)
        count = min(_IMAGES, every)
        # Around the place of a number, or of all that have just that number.
        before = np.searchsorted(self.pixels, pixels)
        after = np.searchsorted(self.pixels, pixels, side="right")
        first = np.clip(before - np.maximum(count - (after - before), 0) // 2, 0, every - count)
        last = np.maximum(after, first + count)

        def mean(values: Any) -> Any:
            sums = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
            return (sums[last] - sums[first]) / (last - first)[:, np.newaxis]

        return np.exp(mean(np.log(times) - growth * sizes) + asked * mean(growth))


@dataclass(frozen=True)
class HaloTraits:
    """What all calls of a convolution have in common that may be cut into tiles with a halo.

    Attributes:
        window: how it moves.
        filters: of a group; None if that is not known.
        groups: whether there are several.
        shapes: that its results have.
    """

    window: HaloWindow
    filters: int | None
    groups: bool
    shapes: ImageShapes

    def suits(self, schedule: GemmSchedule) -> bool:
        """Whether a schedule is for such a convolution."""
        if schedule.depth < _block(schedule) and counted_depth(schedule, self) == schedule.depth:
            return False  # there are no fewer channels to fill up
        if not schedule.resident:
            return True
        return not self.groups and self.filters is not None and self.filters <= schedule.rows


def fits(device: Device, schedule: GemmSchedule, traits: HaloTraits, other_bytes: int) -> bool:
    """Whether a multiprocessor holds a CTA.

    Args:
        other_bytes: shared memory beside that of the operands.
    """
    free = device.shared_bytes - device.shared_reserved - other_bytes
    return traits.suits(schedule) and pixel_tiles(schedule, traits.window, free) > 0


def counted_depth(schedule: GemmSchedule, traits: HaloTraits) -> float:
    """How much of K a stage has, as K is counted: in whole blocks, the last one filled up."""
    window, block = traits.window, _block(schedule)
    whole, own = window.stages(block), window.stages(schedule.depth)
    return schedule.depth if not whole or not own else whole * block / own


def _block(schedule: GemmSchedule) -> int:
    """Channels of a whole block."""
    return _BLOCK_BYTES // schedule.element_bytes


def loaded_bytes(schedule: GemmSchedule, traits: HaloTraits) -> float:
    """Bytes of a tap that a CTA asks for: its filters, and its part of a tile of pixels."""
    tile = HaloTile.of(schedule, traits.window)
    filters = 0 if schedule.resident else schedule.rows * tile.line
    return filters + tile.bytes / traits.window.count


def first_bytes(schedule: GemmSchedule, traits: HaloTraits) -> int:
    """Bytes that a CTA asks for once, at its start."""
    return filter_bytes(schedule, traits.window) if schedule.resident else 0


def stages(device: Device, schedule: GemmSchedule, traits: HaloTraits, other_bytes: int) -> int:
    """Taps whose operands are on their way or in shared memory."""
    if not schedule.resident:
        return schedule.stages
    free = device.shared_bytes - device.shared_reserved - other_bytes
    return pixel_tiles(schedule, traits.window, free) * traits.window.count


def lines_of(schedules: Sequence[GemmSchedule]) -> list[int]:
    """Rows of pixels of each schedule's tiles, 0 of those without."""
    return [s.columns // WIDTH if s.family == "halo" else 0 for s in schedules]
