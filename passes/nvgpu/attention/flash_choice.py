# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which flash kernel serves which sizes, and which sizes are served by flash kernels at all.

A flash kernel takes longer to start than one of the kind ``tiles`` (tensor maps, barriers, roles),
and its tiles cost more, whatever the number of keys; then its blocks of keys cost less. So tiles
serve up to `SHORT` keys while all of their tiles have a place on the GPU at once, flash the rest.
Operands whose strides are not known to suit TMA are left to tiles.

Among flash kernels a model decides. It has three measured times a kernel:

    launch + tiles * tile + blocks * block

for the multiprocessor with most work; tiles and blocks of keys are those that it has. The times
were fitted on 88 shapes (batches 1 to 16, 16 heads, lengths 64 to 8192, causal and not) of kernels
with the same tiles, ring and order on an H200, bf16; choosing by them lost 0.5 % of the speed of
the best one. The model is computed on a grid of rows (queries of all batches) and keys; along the
rows `buckets.partition` makes few buckets of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.partition import Box, partition
from shapejit.passes.buckets.problem import Array
from shapejit.passes.nvgpu.attention.flash_operands import misfit
from shapejit.passes.nvgpu.attention.flash_schedule import FlashSchedule
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.attention.tiles import padded

Bounds: TypeAlias = "tuple[int, int | None]"
Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"


@dataclass(frozen=True)
class Costs:
    """Times of a kernel in microseconds.

    Attributes:
        launch: until its first tile, and after its last one.
        tile: of a tile of queries.
        block: of a tile's block of keys.
    """

    launch: float
    tile: float
    block: float


def _all(*names: str) -> tuple[FlashSchedule, ...]:
    return tuple(map(FlashSchedule.parse, names))


#: By the padded head size: schedules to choose from, the one with the least tiles first.
TIERS: Final = {
    32: _all("flash_64x128_s8_c2", "flash_128x128_s8_c1", "flash_192x128_s8_c1"),
    64: _all("flash_64x128_s6_c2", "flash_128x128_s8_c1", "flash_192x128_s8_c1"),
    128: _all("flash_64x64_s5_c2", "flash_128x128_s5_c1", "flash_192x80_s6_c1"),
    256: _all("flash_128x64_s3_c1"),
}

#: The same for masks that are read element by element, with 64 keys at once and two consumers at
#: most: loads of a block's mask are in flight together, each in a register.
MASKED_TIERS: Final = {
    32: _all("flash_64x64_s12_c2", "flash_128x64_s12_c1"),
    64: _all("flash_64x64_s10_c2", "flash_128x64_s12_c1"),
    128: _all("flash_64x64_s5_c2", "flash_128x64_s10_c1"),
    256: _all("flash_128x64_s3_c1"),
}

# Measured for heads of 64 and 128, without and with a causal limit. Heads of 32 are taken to cost
# what those of 64 do: their softmax is the same.
_COSTS: Final = {
    (64, False): (Costs(2.73, 0.93, 0.56), Costs(2.57, 1.10, 1.22), Costs(3.06, 1.25, 1.48)),
    (64, True): (Costs(3.07, 0.89, 0.55), Costs(2.70, 1.33, 1.20), Costs(2.93, 1.81, 1.45)),
    (128, False): (Costs(2.42, 1.75, 0.458), Costs(2.17, 2.42, 1.59), Costs(1.40, 2.58, 1.46)),
    (128, True): (Costs(2.98, 1.51, 0.470), Costs(2.77, 2.46, 1.50), Costs(2.18, 1.66, 1.42)),
}

#: By the padded head size: up to so many keys tiles serve what they have places for. Measured for
#: heads of 32 alone: there a block of 64 keys costs tiles 0.16 us of a busy multiprocessor, and
#: half a microsecond of an idle one.
SHORT: Final = {32: 1024, 64: 256, 128: 256, 256: 256}

#: What the names of flash kernels begin with.
PREFIX: Final = "flash_"

_FAR = 1 << 20  # rows; what is beyond is served as this is
_FAR_KEYS = 1 << 15
_CELLS_AN_OCTAVE = 4
_MOST_WAVES = 4  # of tiles: up to these, a boundary between cells lies where one more begins
_TOLERANCE = 0.03
_LOSS = 0.2  # of the time, by the second-best kernel: what 64 queries a tile differ from 128 in


def serves(problem: AttentionProblem) -> bool:
    """Whether flash kernels can compute a problem, as far as is known."""
    return padded(problem.head) == padded(problem.value) and misfit(problem, known=True) is None


def candidates(problem: AttentionProblem) -> tuple[FlashSchedule, ...]:
    """The schedules to choose from.

    Under a causal limit tiles of 192 queries of 128 level the work of multiprocessors out less
    well, and gain nothing.
    """
    size = padded(problem.head)
    if problem.mask is not None and not problem.masks_keys:
        return MASKED_TIERS[size]
    if problem.causal is not None and size == 128:
        return tuple(each for each in TIERS[size] if each.consumers < 3)
    return TIERS[size]


def predicted(problem: AttentionProblem, rows: Array, keys: Array, device: Device) -> Array:
    """The times of the candidates in microseconds.

    Args:
        problem: one that flash kernels serve.
        rows: queries of all batches and heads.
        keys: of each row; of the same shape, or one that is broadcast with it.
        device: the GPU.

    Returns:
        Of the shape of both, with the candidates as the last axis.
    """
    is_causal = problem.causal is not None
    size = padded(problem.head)
    costs = zip(TIERS[size], _COSTS[max(min(size, 128), 64), is_causal], strict=False)
    times = []
    for schedule, (measured, cost) in zip(candidates(problem), costs, strict=False):
        # Of a schedule that differs from the measured one in its keys, in proportion.
        block = cost.block * schedule.keys / measured.keys
        tiles = np.maximum(np.ceil(rows / schedule.rows), 1.0)
        last = np.maximum(np.ceil(keys / schedule.keys), 1.0)
        each = tiles / device.multiprocessors
        if is_causal:
            # Tiles see half of the keys, and half of their own length beyond the limit. Longest
            # first: who has the longest tile, or its share of the work, is the last.
            mean = np.minimum((keys + schedule.rows) / (2 * schedule.keys) + 0.5, last)
            work = np.maximum(each * mean, last) * block
            times.append(cost.launch + np.maximum(each, 1.0) * cost.tile + work)
        else:
            # Of many waves, how full the last one is depends on more than a cell of a grid.
            waves = np.where(each <= _MOST_WAVES, np.ceil(each), each + 0.5)
            times.append(cost.launch + waves * (cost.tile + last * block))
    return np.stack(times, axis=-1)


def replaces_large_tiles(problem: AttentionProblem) -> bool:
    """Whether flash kernels also serve short sequences of which not all tiles have a place at once.

    Not those of heads of 32: for these there is a measured schedule of the kind tiles.
    """
    return padded(problem.head) > 32


def with_flash(
    problem: AttentionProblem,
    heads: int,
    bounds: tuple[Bounds, Bounds],
    last: int | None,
    tiled: Sequence[Bucket],
    device: Device,
) -> list[Bucket]:
    """Buckets over rows and keys, of tiles for short sequences and of flash kernels for the rest.

    Args:
        problem: one that flash kernels serve.
        heads: that each row has.
        bounds: of rows, queries of all batches, and of keys.
        last: rows up to which tiles serve short sequences; None for all.
        tiled: the buckets that tiles have along the rows, or a single one on no axis.
        device: the GPU.
    """
    rows, keys = bounds
    (low, high), short = keys, SHORT[padded(problem.head)]
    found: list[Bucket] = []
    if low <= short:
        most = short if high is None else min(high, short)
        end = rows[1] if last is None else last
        for lower, upper, variant, reason in tiled:
            (first,), (until,) = (lower, upper) if lower else ((rows[0],), (rows[1],))
            until = end if until is None else until if end is None else min(until, end)
            if until is None or until >= first:
                reason = f"up to {short} keys; {reason}"
                found.append(((first, low), (until, most), variant, reason))
        if last is not None and (rows[1] is None or rows[1] > last):
            beyond = (max(rows[0], last + 1), rows[1])
            found += flash_buckets(problem, heads, beyond, (low, most), device)
    if high is None or high > short:
        found += flash_buckets(problem, heads, rows, (max(low, short + 1), high), device)
    return found


def flash_buckets(
    problem: AttentionProblem, heads: int, rows: Bounds, keys: Bounds, device: Device
) -> list[Bucket]:
    """The flash kernels for all sizes in a rectangle.

    Args:
        problem: one that flash kernels serve.
        heads: that each row has.
        rows: the least and the greatest number of queries of all batches.
        keys: the same of keys.
        device: the GPU.

    Returns:
        Disjoint buckets over rows and keys that cover the rectangle.
    """
    schedules = candidates(problem)
    starts = _row_starts(schedules, heads, rows, device)
    if len(schedules) == 1:
        boxes = [Box((0,), (len(starts) - 1,), 0)]
    else:
        key_starts = _starts(*keys, _FAR_KEYS, 1)
        row_sizes = _middles(starts, rows[1], _FAR) * heads
        key_sizes = _middles(key_starts, keys[1], _FAR_KEYS)
        times = predicted(problem, row_sizes[:, None], key_sizes[None, :], device)
        # The mean over all numbers of keys: which kernel is best depends on these little.
        mean = np.average(np.log(times), axis=1, weights=_lengths(key_starts, keys[1]))
        weights = _lengths(starts, rows[1])
        boxes = partition(np.exp(mean), weights / weights.sum(), len(schedules), _TOLERANCE)
    return [_bucket(box, starts, rows[1], keys, schedules) for box in boxes]


def stake(
    problem: AttentionProblem, heads: int, rows: Bounds, keys: Bounds, device: Device
) -> float:
    """What the second-best kernel costs, in microseconds, at the middle of a rectangle of sizes.

    Args:
        problem, heads, rows, keys, device: as of `flash_buckets`.
    """
    middle = [
        _middles([low], high, far)[0] for (low, high), far in ((rows, _FAR), (keys, _FAR_KEYS))
    ]
    times = predicted(problem, np.array([middle[0] * heads]), np.array([middle[1]]), device)
    return _LOSS * float(times.min())


def _bucket(
    box: Box,
    starts: Sequence[int],
    high: int | None,
    keys: Bounds,
    schedules: Sequence[FlashSchedule],
) -> Bucket:
    [first], [last] = box.lower, box.upper
    until = starts[last + 1] - 1 if last + 1 < len(starts) else high
    schedule = schedules[box.candidate]
    reason = f"flash, least time by the model with tiles of {schedule.rows} queries"
    return (starts[first], keys[0]), (until, keys[1]), str(schedule), reason


def _row_starts(
    schedules: Sequence[FlashSchedule], heads: int, bounds: Bounds, device: Device
) -> list[int]:
    """The first rows of the cells: also where a wave of tiles begins, for the first waves."""
    low, high = bounds
    waves = {
        wave * device.multiprocessors * schedule.rows // heads + 1
        for schedule in schedules
        for wave in range(1, _MOST_WAVES + 1)
    }
    inside = {each for each in waves if each > low and (high is None or each <= high)}
    return sorted({*_starts(low, high, _FAR, _CELLS_AN_OCTAVE), *inside})


def _starts(low: int, high: int | None, far: int, an_octave: int) -> list[int]:
    """Starts of cells in equal ratios."""
    end = far if high is None else min(high, far)
    starts, step = [low], 1
    while True:
        following = int(2 ** (step / an_octave))
        step += 1
        if following > end:
            return starts
        if following > starts[-1]:
            starts.append(following)


def _middles(starts: Sequence[int], high: int | None, far: int) -> Array:
    first = np.array(starts, float)
    last = np.append(first[1:] - 1, far if high is None else high)
    middles: Array = np.sqrt(np.maximum(first, 1) * np.maximum(last, 1))
    return middles


def _lengths(starts: Sequence[int], high: int | None) -> Array:
    """On a logarithmic scale."""
    first = np.array(starts, float)
    end = 2 * starts[-1] + 1 if high is None else high + 1
    lengths: Array = np.log1p(np.append(first[1:], end)) - np.log1p(first)
    return lengths
