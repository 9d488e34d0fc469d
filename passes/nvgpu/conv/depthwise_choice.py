# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule of a depthwise convolution serves which sizes.

The axis is the number of pixels of all images. For each range of them, up to the next power of two,
the model (`depthwise_model`) is asked at images of several shapes that a program can have; a few
schedules serve all ranges, those that lose least in the mean.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from shapejit.passes.buckets.device import Device
from shapejit.passes.nvgpu.conv.depthwise_model import DepthwiseModel
from shapejit.passes.nvgpu.conv.depthwise_schedule import (
    DepthwiseSchedule,
    most_channels,
    suits,
    tiled_dims,
)
from shapejit.passes.nvgpu.conv.problem import ConvProblem, conv_problem
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.families import STAKE
from shapejit.symbolic import Expr, product

__all__ = ["candidates", "check", "choose", "serves", "stake"]

Bounds: TypeAlias = "tuple[int, int | None]"
Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"
Point: TypeAlias = "tuple[int, tuple[int, ...]]"

_TILES = ((1, 1), (1, 2), (2, 2), (2, 4), (4, 4))
# Variants of a layer, and what one more has to gain in the mean.
_MOST_VARIANTS, _GAIN = 4, 0.01
# Of a symbol; and in place of no bound.
_SAMPLES, _UNBOUNDED = 5, 2048
_MOST_PIXELS = 1 << 26
# What the variant of a neighbouring bucket costs, as a share of the time.
_LOSS = 0.25


def serves(kernel: Any) -> bool:
    """Whether a ``shapejit.kernel`` with a convolution is one of this family."""
    try:
        return suits(conv_problem(kernel))
    except LoweringError:
        return False


def check(kernel: Any) -> None:
    """Checks that a kernel can be lowered, whatever the variant: all that it `serves` can.

    Raises:
        LoweringError: it cannot.
    """
    conv_problem(kernel)


def candidates(conv: ConvProblem) -> list[DepthwiseSchedule]:
    """The schedules that are considered for a convolution."""
    most = most_channels(conv)
    found: dict[DepthwiseSchedule, None] = {}
    for channels in sorted({min(most, each) for each in (2, 4)}):
        for rows, columns in _TILES:
            if tiled_dims(conv, channels) == 1:
                rows, columns = 1, rows * columns
            if columns <= _TILES[-1][1]:
                found[DepthwiseSchedule(channels, rows, columns)] = None
    return list(found)


def choose(
    kernel: Any, sizes: Mapping[int, Bounds], device: Device
) -> tuple[list[Expr], list[Bucket]]:
    """The variants of a kernel by its sizes.

    Args:
        kernel: ``shapejit.kernel`` with one depthwise convolution.
        sizes: bounds of its symbols.
        device: the GPU.

    Returns:
        Axes, as expressions of the kernel's symbols, and buckets that cover all of their values.

    Raises:
        LoweringError: it cannot be lowered.
    """
    conv = conv_problem(kernel)
    schedules = candidates(conv)
    ranges = _ranges(conv, sizes)
    models = [DepthwiseModel.of(conv, schedule) for schedule in schedules]
    losses = [_losses(points, models, device) for points in ranges.values()]
    kept = _few(losses)
    best = [min(kept, key=row.__getitem__) for row in losses]
    firsts = [0] + [number for number in range(1, len(best)) if best[number] != best[number - 1]]
    if len(firsts) == 1:
        reason = "least time by the model at all sizes"
        return [], [((), (), str(schedules[best[0]]), reason)]
    starts = [0, *(1 << list(ranges)[number] for number in firsts[1:])]
    ends: list[int | None] = [*(start - 1 for start in starts[1:]), None]
    axis = product([conv.images, *conv.pixels])
    buckets: list[Bucket] = []
    for start, end, number in zip(starts, ends, firsts, strict=True):
        reason = f"least time by the model from {start} pixels on"
        buckets.append(((start,), (end,), str(schedules[best[number]]), reason))
    return [axis], buckets


def stake(
    kernel: Any,
    sizes: Mapping[int, Bounds],
    device: Device,
    axes: Sequence[Expr],
    bucket: Bucket,
) -> float:
    """What a call of a bucket's sizes costs more by the variant of another, in microseconds.

    Large layers take much longer than what else a model has beside its products.
    """
    conv = conv_problem(kernel)
    [first], [last] = (bucket[0], bucket[1]) if axes else ((0,), (None,))
    model = DepthwiseModel.of(conv, DepthwiseSchedule.parse(bucket[2]))
    points = itertools.chain.from_iterable(_ranges(conv, sizes).values())
    times = [
        model.time(images, pixels, device)
        for images, pixels in points
        if first <= images * math.prod(pixels) <= (_MOST_PIXELS if last is None else last)
    ]
    return max(STAKE, _LOSS * sum(times) / max(len(times), 1))


def _ranges(conv: ConvProblem, sizes: Mapping[int, Bounds]) -> dict[int, list[Point]]:
    """Sizes that a program can have, by the power of two that is not above their pixels."""
    exprs = (conv.images, *conv.pixels)
    symbols = sorted(set().union(*(each.symbols() for each in exprs)))
    samples = [_samples(sizes.get(symbol, (1, None))) for symbol in symbols]
    found: dict[int, list[Point]] = {}
    for values in itertools.product(*samples):
        at = [0] * (max(symbols, default=-1) + 1)
        for symbol, value in zip(symbols, values, strict=True):
            at[symbol] = value
        images, *pixels = (max(each.evaluate(at), 1) for each in exprs)
        total = images * math.prod(pixels)
        if total <= _MOST_PIXELS:
            found.setdefault(total.bit_length() - 1, []).append((images, tuple(pixels)))
    return dict(sorted(found.items())) or {0: [(1, (1,) * conv.rank)]}


def _samples(bounds: Bounds) -> list[int]:
    """Some sizes within bounds, equally far apart by their ratios."""
    low = max(bounds[0], 1)
    high = max(bounds[1] if bounds[1] is not None else max(_UNBOUNDED, low), low)
    steps = min(_SAMPLES, high - low + 1)
    if steps == 1:
        return [low]
    ratio = (high / low) ** (1 / (steps - 1))
    return sorted({round(low * ratio**step) for step in range(steps)})


def _losses(
    points: Sequence[Point], models: Sequence[DepthwiseModel], device: Device
) -> list[float]:
    """The logarithm of how much longer than the best each schedule takes, in the mean."""
    totals = [0.0] * len(models)
    for images, pixels in points:
        times = [model.time(images, pixels, device) for model in models]
        least = min(times)
        for number, time in enumerate(times):
            totals[number] += math.log(time / least)
    return [total / len(points) for total in totals]


def _few(losses: Sequence[Sequence[float]]) -> list[int]:
    """Few schedules that lose little: the best one, then whichever gains most beside them."""
    kept: list[int] = []
    lost = math.inf
    while len(kept) < _MOST_VARIANTS:
        more = {
            number: sum(min(row[each] for each in (*kept, number)) for row in losses) / len(losses)
            for number in range(len(losses[0]))
        }
        best = min(more, key=more.__getitem__)
        if lost - more[best] < _GAIN:
            break
        kept.append(best)
        lost = more[best]
    return kept
