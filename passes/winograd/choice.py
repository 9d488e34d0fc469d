# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which algorithm a convolution is computed by: errors that are allowed, and a stated cost.

Errors are relative root mean squares against float64 of random images and filters, with 64 to 512
channels; `test/unit/test_winograd.py` measures them again. Costs are nanoseconds of an
H200 for each output pixel, from its peak rates; nothing is fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shapejit.passes.winograd.matrices import ALGORITHMS, F2, F4, TAPS, Algorithm, slots

MODES = ("auto", "off", "force")

#: Relative error of each algorithm along one dim and along two, by element type; tf32 is f32 that
#: products may round.
ERRORS = {
    "f32": {F2.tile: (1e-6, 1e-6), F4.tile: (2.5e-6, 5e-6)},
    "tf32": {F2.tile: (2e-3, 2e-3), F4.tile: (4e-3, 1.5e-2)},
    "f16": {F2.tile: (1e-3, 1e-3), F4.tile: (2e-3, 5e-3)},
    "bf16": {F2.tile: (8e-3, 8e-3), F4.tile: (1.5e-2, 4e-2)},
}

#: What is allowed if nothing is said: no more than a direct sum of float32 has.
DEFAULT_BOUND = 2e-6

# Multiply-adds, loads of elements by threads, and bytes of device memory, each a nanosecond.
_ADDS, _LOADS, _BYTES = 132 * 128 * 1.98 * 0.85, 132 * 32 * 1.98, 4500.0
_ELEMENT_BYTES = 4
# What Winograd has to save: its three kernels and their scratch memory cost something too.
_LEAST_GAIN = 0.9


@dataclass(frozen=True)
class Wish:
    """What a user asked for.

    Attributes:
        mode: one of `MODES`.
        bound: relative error that is allowed.
    """

    mode: str
    bound: float


def direct_cost(channels: int, filters: int, dims: int) -> float:
    """Of a sum over taps and channels, as a product of gathered pixels; dims have three taps."""
    taps = math.pow(TAPS, dims)
    return (
        taps * channels * filters / _ADDS
        + taps * channels / _LOADS
        + 2 * taps * channels * _ELEMENT_BYTES / _BYTES
    )


def cost(algorithm: Algorithm, channels: int, filters: int, dims: int) -> float:
    """Of the two transforms along so many dims and the products between them."""
    points = math.pow(algorithm.points / algorithm.tile, dims)
    loads = points * math.pow(len(slots(algorithm.inputs)), dims) * channels
    loads += math.pow(len(slots(algorithm.outputs)), dims) * filters
    moved = 2 * points * (channels + filters) * _ELEMENT_BYTES
    return points * channels * filters / _ADDS + loads / _LOADS + moved / _BYTES


def choose(
    wish: Wish, element: str, channels: int, filters: int, dims: int, *, mapped: bool = False
) -> Algorithm | None:
    """The algorithm for a convolution, None for none.

    Args:
        wish: what was asked for.
        element: type of the factors, see `ERRORS`.
        channels, filters: of a group.
        dims: spatial dims with three taps, one or two.
        mapped: whether there are direct kernels for the convolution, on tensor cores. On an H200
            they were faster than the algorithm wherever both were measured, see docs/winograd.md.
    """
    if wish.mode == "off" or element not in ERRORS or (mapped and wish.mode == "auto"):
        return None
    allowed = [each for each in ALGORITHMS if ERRORS[element][each.tile][dims - 1] <= wish.bound]
    if not allowed:
        return None
    best = min(allowed, key=lambda each: cost(each, channels, filters, dims))
    pays = cost(best, channels, filters, dims) <= _LEAST_GAIN * direct_cost(channels, filters, dims)
    return best if pays or wish.mode == "force" else None
