# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule of a depthwise convolution serves which sizes.

A strip of four pixels of a 3x3 layer loads half as much as four of one pixel, but there are a
fourth as many threads. So strips are long where their threads fill the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from shapejit.passes.buckets.device import Device
from shapejit.passes.nvgpu.conv.depthwise import (
    CTAS,
    THREADS,
    DepthwiseSchedule,
    most_channels,
    suits,
)
from shapejit.passes.nvgpu.conv.problem import conv_problem
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.symbolic import Expr, Ranges, product

__all__ = ["check", "choose", "serves"]

Bounds: TypeAlias = "tuple[int, int | None]"
Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"

_STRIP = 4


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
    channels = most_channels(conv)
    chunks = (conv.groups.constant or 1) // channels
    axis = product([conv.images, *conv.pixels])
    low, high = Ranges(dict(sizes)).bounds(axis)
    low = max(low or 0, 0)
    filling = max(_STRIP * device.multiprocessors * CTAS * THREADS // max(chunks, 1), 1)
    short, long = (str(DepthwiseSchedule(channels, pixels)) for pixels in (1, _STRIP))
    buckets: list[Bucket] = []
    if low < filling:
        last = filling - 1 if high is None else min(filling - 1, high)
        buckets.append(((low,), (last,), short, f"up to {filling - 1} pixels a thread for each"))
    if high is None or high >= filling:
        first = max(low, filling)
        reason = f"from {filling} pixels on strips of {_STRIP} fill the GPU"
        buckets.append(((first,), (high,), long, reason))
    if len(buckets) > 1:
        return [axis], buckets
    [(_, _, variant, reason)] = buckets
    return [], [((), (), variant, reason)]
