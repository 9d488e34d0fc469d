# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long a depthwise convolution takes by each schedule, by a model.

What a schedule has to do follows from it; what that costs is fitted to measurements
(`passes/buckets/depthwise_rates.py`)::

    time = launch + CTAs of the grid * start + rounds * (waits * latency + products * multiply)
         + CTAs with a tile * loads * load
         + bytes at first * first + bytes of all accesses * every + bytes beyond the cache * memory

CTAs and bytes count for each multiprocessor. Rounds are those of CTAs that share one. A thread
waits once where it loads all that its tile sees at once, else for each row of the image. The
first-level cache is small beside kernels with much shared memory, so that of what threads load
again most comes from the second-level one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shapejit.passes.buckets.depthwise_rates import DepthwiseRates, depthwise_rates_of
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

# Of the second-level cache, what is still there when the next kernel reads it: each half of the GPU
# has copies of what it reads in its half of the cache.
_CACHED = 0.5


@dataclass(frozen=True)
class DepthwiseModel:
    """Times of a schedule for a convolution.

    Attributes:
        products: that a thread adds up, for a tile.
        loads: instructions, for a tile.
        waits: for loads, for a tile.
        bytes: that a thread loads and stores for a tile.
        first: bytes of a pixel of the result, of all channels, and of what it sees first.
        lengths: of a tile, along the last dims of the result.
        chunks: threads that have the channels of a tile.
        ctas: that share a multiprocessor.
    """

    products: float
    loads: float
    waits: float
    bytes: float
    first: float
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
        seen = turns * math.prod(map(len, plan.seen))
        element, result = bytes_of(conv.element), bytes_of(conv.result.element)
        # Of extras one is the bias, which pixels share; others are as large as the result.
        extras = len(conv.extras)
        further = max(extras - 1, 0) * schedule.pixels
        rows = 1 if plan.at_once or dims == 1 else len(plan.seen[0])
        step = math.prod(conv.window.strides)
        return DepthwiseModel(
            products=taps * channels * schedule.pixels,
            loads=seen + taps + min(extras, 1) + further,
            waits=turns * rows,
            bytes=channels * (seen * element + (schedule.pixels + further) * result),
            first=count_of(conv.groups) * (step * element + max(extras, 1) * result),
            lengths=(schedule.rows, schedule.columns)[-dims:],
            chunks=count_of(conv.groups) // channels,
            ctas=plan.ctas,
        )

    def parts(self, images: int, pixels: tuple[int, ...], device: Device) -> tuple[float, ...]:
        """How much there is of what each of `DepthwiseRates` is for, so that it makes microseconds.

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
        first = self.first * images * math.prod(pixels)
        shared = (
            min(ctas, self.ctas * device.multiprocessors),
            ctas * self.loads,
            first,
            tiles * self.chunks * self.bytes,
            max(first - _CACHED * device.l2_bytes, 0.0),
        )
        start, *others = (amount / device.multiprocessors for amount in shared)
        cycles = (start, rounds * self.waits, rounds * self.products, *others)
        clock = device.clock_ghz * 1e3
        return (1.0, *(amount / clock for amount in cycles))

    def time(
        self,
        images: int,
        pixels: tuple[int, ...],
        device: Device,
        rates: DepthwiseRates | None = None,
    ) -> float:
        """Microseconds.

        Args:
            images, pixels, device: as of `parts`.
            rates: of the device; those on record by default.
        """
        values = (rates or depthwise_rates_of(device.name)).values
        parts = self.parts(images, pixels, device)
        return sum(part * value for part, value in zip(parts, values, strict=True))
