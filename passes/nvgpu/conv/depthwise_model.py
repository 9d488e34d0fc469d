# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long a depthwise convolution takes by each schedule, by a model.

A thread's instructions are counted: they follow from the schedule. A multiprocessor issues four a
cycle, one of each quarter of its CTAs' warps; what is loaded comes at the rate of the second-level
cache, since the first one is small beside kernels with much shared memory; and each round of CTAs
waits once for its first loads, and takes at least as long as one thread does::

    time = launch + rounds * latency + max(issue, traffic)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shapejit.passes.buckets.device import Device
from shapejit.passes.nvgpu.conv.depthwise_schedule import (
    THREADS,
    DepthwiseSchedule,
    Plan,
    count_of,
    tiled_dims,
)
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.symbolic import product

# Microseconds of a launch; cycles from a load to its number, and of an instruction in a thread that
# is nearly alone; cycles of an instruction that is issued; bytes of a cycle to a multiprocessor.
_LAUNCH: Final = 1.6
_LATENCY, _DEPENDENT, _ISSUED, _RATE = 900.0, 1.6, 1.15, 22.0
# Instructions of a thread beside those for pixels: its place, its parameters.
_OTHERS: Final = 130


@dataclass(frozen=True)
class DepthwiseModel:
    """Times of a schedule for a convolution.

    Attributes:
        instructions: of a thread, for a tile.
        bytes: that a thread loads and stores for a tile.
        lengths: of a tile, along the last dims of the result.
        chunks: threads that have the channels of a tile.
        ctas: that share a multiprocessor.
    """

    instructions: float
    bytes: float
    lengths: tuple[int, ...]
    chunks: int
    ctas: int

    @staticmethod
    def of(conv: ConvProblem, schedule: DepthwiseSchedule) -> DepthwiseModel:
        """The model of a schedule that `emit` takes for the convolution."""
        plan = Plan.of(conv, schedule)
        dims, channels = tiled_dims(conv, schedule.channels), schedule.channels
        turns = count_of(product(conv.taps[: conv.rank - dims]))
        taps = count_of(product(conv.taps))
        loads = turns * math.prod(map(len, plan.seen))
        element, result = bytes_of(conv.element), bytes_of(conv.result.element)
        words = max(channels * element // 4, 1)
        # A load, its condition and zeros, and numbers made f32; a product a tap; filters.
        count = loads * (2 + words / 2 + channels) + taps * channels * schedule.pixels
        again = schedule.rows if dims > 1 and not plan.at_once else 1
        count += taps * (1 + channels * again)
        extras = len(conv.extras)
        count += schedule.pixels * (2 + channels * (0.5 + 3 * extras))
        moved = channels * (
            (loads + taps) * element + schedule.pixels * (1 + max(extras - 1, 0)) * result
        )
        return DepthwiseModel(
            instructions=count + _OTHERS,
            bytes=moved,
            lengths=(schedule.rows, schedule.columns)[-dims:],
            chunks=count_of(conv.groups) // channels,
            ctas=plan.ctas,
        )

    def time(self, images: int, pixels: tuple[int, ...], device: Device) -> float:
        """Microseconds.

        Args:
            images: how many.
            pixels: of the result, a size each spatial dim.
            device: the GPU.
        """
        dims = len(self.lengths)
        tiles = images * math.prod(pixels[:-dims])
        for size, length in zip(pixels[-dims:], self.lengths, strict=True):
            tiles *= -(-size // length)
        ctas = -(-tiles * self.chunks // THREADS)
        each = -(-ctas // device.multiprocessors)
        rounds = -(-each // self.ctas)
        alone = self.instructions * _DEPENDENT
        issue = max(each * self.instructions * _ISSUED, rounds * alone)
        traffic = tiles * self.chunks * self.bytes / (device.multiprocessors * _RATE)
        cycles = rounds * _LATENCY + max(issue, traffic)
        return _LAUNCH + cycles / (device.clock_ghz * 1e3)
