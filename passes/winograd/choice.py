# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which algorithm a convolution is computed by: errors that are allowed, and a stated cost.

Errors are relative root mean squares against float64 of random images and filters, with 64 to 512
channels; `test/unit/test_winograd.py` measures those of float32 again. Costs are nanoseconds of an
H200 for each output pixel, from its peak rates; nothing is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from shapejit.passes.winograd.matrices import ALGORITHMS, F2, F4, TAPS, Algorithm, slots

MODES = ("auto", "off", "force")

#: Relative error of each algorithm, by element type; tf32 is f32 that products may round.
ERRORS = {
    "f32": {F2.tile: 1e-6, F4.tile: 5e-6},
    "tf32": {F2.tile: 2e-3, F4.tile: 1.5e-2},
    "f16": {F2.tile: 1e-3, F4.tile: 5e-3},
    "bf16": {F2.tile: 8e-3, F4.tile: 4e-2},
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


def direct_cost(channels: int, filters: int) -> float:
    """Of a sum over taps and channels, as a product of gathered pixels."""
    taps = TAPS * TAPS
    return (
        taps * channels * filters / _ADDS
        + taps * channels / _LOADS
        + 2 * taps * channels * _ELEMENT_BYTES / _BYTES
    )


def cost(algorithm: Algorithm, channels: int, filters: int) -> float:
    """Of the two transforms and the products between them."""
    points = algorithm.points**2 / algorithm.tile**2
    loads = points * len(slots(algorithm.inputs)) ** 2 * channels
    loads += len(slots(algorithm.outputs)) ** 2 * filters
    moved = 2 * points * (channels + filters) * _ELEMENT_BYTES
    return points * channels * filters / _ADDS + loads / _LOADS + moved / _BYTES


def choose(wish: Wish, element: str, channels: int, filters: int) -> Algorithm | None:
    """The algorithm for a convolution of so many channels and filters a group; None for none."""
    if wish.mode == "off" or element not in ERRORS:
        return None
    allowed = [each for each in ALGORITHMS if ERRORS[element][each.tile] <= wish.bound]
    if not allowed:
        return None
    best = min(allowed, key=lambda each: cost(each, channels, filters))
    pays = cost(best, channels, filters) <= _LEAST_GAIN * direct_cost(channels, filters)
    return best if pays or wish.mode == "force" else None
