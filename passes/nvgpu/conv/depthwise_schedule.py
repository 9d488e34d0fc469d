# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Schedules of depthwise convolutions: what a thread has, which convolutions take which, and the
registers that this needs.

A thread has ``channels`` neighbouring channels, loaded at once, of a tile of ``rows`` by
``columns`` pixels of the result, along the last two spatial dims: ``depthwise_v4_2x4``. Filters
stay in registers: of all taps along these two dims where there is room, else of a row of taps at a
time, and then a tile has one row.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from shapejit.passes.nvgpu.conv.depthwise_memory import is_float
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.passes.nvgpu.problem import Access
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import ONE, ZERO

#: Of a CTA.
THREADS = 128

#: Bytes that a load takes at most, and those that are a sector and a line of the caches.
VECTOR, _SECTOR, _LINE = 16, 32, 128
# Bytes of a register, and of neighbouring channels at most, before the next tile.
_WORD, _MOST_BYTES = 4, 1024

_NAME = re.compile(r"depthwise_v(?P<channels>[1248])_(?P<rows>\d+)x(?P<columns>\d+)")
_MOST_PIXELS = 32

# Registers of a multiprocessor; of a thread beside numbers: addresses, conditions, loads under way.
_REGISTERS, _OTHERS = 65536, 44
_MOST_CTAS = 8
# Words of filters that a thread keeps at most, and of pixels that it loads at once.
_KEPT, _AT_ONCE = 64, 40


@dataclass(frozen=True)
class DepthwiseSchedule:
    """What a thread has.

    Attributes:
        channels: 1, 2, 4 or 8.
        rows, columns: of a tile of pixels.
    """

    channels: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"depthwise_v{self.channels}_{self.rows}x{self.columns}"

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return self.rows * self.columns

    @staticmethod
    def parse(text: str) -> DepthwiseSchedule:
        """The schedule that a text names.

        Raises:
            ValueError: it names none.
        """
        match = _NAME.fullmatch(text)
        if match is not None:
            found = DepthwiseSchedule(*map(int, match.group("channels", "rows", "columns")))
            if 1 <= found.pixels <= _MOST_PIXELS:
                return found
        raise ValueError(f"{text!r} names no depthwise schedule; one is depthwise_v4_2x4")


def suits(conv: ConvProblem) -> bool:
    """Whether the family computes a convolution: one with fixed strides and no zeros between
    pixels."""
    accesses = (conv.input, conv.weight, conv.result)
    return (
        conv.is_depthwise
        and conv.groups.constant is not None
        and all(taps.constant is not None for taps in conv.taps)
        and all(spread == 1 for spread in conv.window.lhs_dilations)
        and all(access.is_linear for access in accesses)
        and is_float(conv.element)
        and is_float(conv.result.element)
        and all(stride_of(conv.weight, dim).constant is not None for dim in _weight_dims(conv))
    )


def _weight_dims(conv: ConvProblem) -> list[int]:
    """Dims of the filters: groups and taps."""
    return [0, *range(3, 3 + conv.rank)]


def most_channels(conv: ConvProblem) -> int:
    """How many channels can be loaded at once, and stored where they are neighbours there, too."""
    wide = [each for each in (conv.input, conv.result) if stride_of(each, 1) == ONE]
    for count in (8, 4, 2):
        if (
            conv.input in wide
            and count * bytes_of(conv.element) <= VECTOR
            and count_of(conv.groups) % count == 0
            and all(is_multiple(access, (1, 2 + conv.rank), count) for access in wide)
        ):
            return count
    return 1


def tiled_dims(conv: ConvProblem, channels: int) -> int:
    """Spatial dims along which all taps are kept in registers: the last two, or the last."""
    kept = max(channels * bytes_of(conv.element) // 4, 1)
    kept *= math.prod(count_of(taps) for taps in conv.taps[-2:])
    return 2 if conv.rank > 1 and kept <= _KEPT else 1


def lanes_of(conv: ConvProblem, channels: int) -> int:
    """Neighbouring threads with neighbouring channels; the next ones have another tile.

    A load takes places for whole lines in the first-level cache while it is under way. Kernels with
    most of a multiprocessor's memory as shared memory have few of them, so there are as many lanes
    as share the fewest lines, wherever pixels start: of 96 channels of 16 bits all, not those of
    half a pixel. No more than that: other threads of a CTA have neighbouring tiles, which see the
    same pixels.
    """
    chunks, each = count_of(conv.groups) // channels, channels * bytes_of(conv.element)
    found = [
        lanes
        for lanes in range(1, chunks + 1)
        if chunks % lanes == 0 and _SECTOR <= lanes * each <= _MOST_BYTES
    ]
    return min(found, key=lambda lanes: (_lines(lanes * each) / lanes, lanes), default=chunks)


def _lines(size: int) -> float:
    """Lines of the caches that pieces of some bytes lie in, one after the other, in the mean."""
    starts = range(0, size * (_LINE // _WORD), size)  # there are no others
    return sum((start % _LINE + size - 1) // _LINE + 1 for start in starts) / len(starts)


def seen(pixels: int, taps: int, stride: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """What neighbouring pixels of the result see along a dim.

    Returns:
        For each place, counted from the first one, the pixels and taps that see it; in order.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for pixel in range(pixels):
        for tap in range(taps):
            found.setdefault(pixel * stride + tap * dilation, []).append((pixel, tap))
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Plan:
    """What a schedule comes to for a convolution.

    Attributes:
        seen: `seen` by a tile along each of its dims.
        at_once: whether all that a tile sees is loaded before it is needed.
        ctas: that share a multiprocessor: as many as its registers have room for.
    """

    seen: tuple[dict[int, list[tuple[int, int]]], ...]
    at_once: bool
    ctas: int

    @staticmethod
    def of(conv: ConvProblem, schedule: DepthwiseSchedule) -> Plan:
        """The plan of a convolution."""
        channels, window = schedule.channels, conv.window
        dims = tiled_dims(conv, channels)
        found = tuple(
            seen(length, count_of(taps), stride, dilation)
            for length, taps, stride, dilation in zip(
                (schedule.rows, schedule.columns)[-dims:],
                conv.taps[-dims:],
                window.strides[-dims:],
                window.dilations[-dims:],
                strict=True,
            )
        )
        words = max(channels * bytes_of(conv.element) // 4, 1)
        line, lines = len(found[-1]) * words, len(found[0]) if dims > 1 else 1
        at_once = line * lines <= _AT_ONCE or lines == 1
        taps = math.prod(count_of(taps) for taps in conv.taps[-dims:])
        # Made f32 once where one block of code has several rows, else again for each.
        filters = taps * (channels if at_once and schedule.rows > 1 else words)
        each = filters + channels * schedule.pixels + _OTHERS
        each += line * lines if at_once else 2 * line
        # Extras of a row of the tile, and of what all of its pixels share.
        each += len(conv.extras) * (1 + schedule.columns) * words
        ctas = _REGISTERS // (THREADS * each)
        return Plan(found, at_once, max(min(ctas, _MOST_CTAS), 2))


# Accesses -----------------------------------------------------------------------------------------


def stride_of(access: Access, dim: int) -> Expr:
    """How far apart neighbours along a dim of a linear access are."""
    return access.stride(dim) or ZERO


def is_multiple(access: Access, dims: tuple[int, ...], count: int) -> bool:
    """Whether elements along the first of some dims, of which the others have size 1, start at
    multiples of ``count`` wherever else they are."""
    rest = access.offset.dims() - set(dims)
    others = [access.start, *(stride_of(access, each) for each in rest)]
    return all(coefficient % count == 0 for stride in others for _, coefficient in stride.terms)


def count_of(size: Expr) -> int:
    """A size that `suits` found to be constant."""
    assert size.constant is not None, "checked"
    return size.constant
