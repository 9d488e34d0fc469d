# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""When the keys of few queries are divided among CTAs, and how many CTAs and blocks there are.

An attention with one tile of 64 rows a batch and group of heads reads every key once, whatever the
schedule. What differs is how many multiprocessors read: with whole tiles, as many as there are
batches and groups, of which a model in decode has 8 or 32; with divided keys, all of them. So keys
are divided where queries times heads of a group fit a tile and keys may be many more than queries.
Where all tiles of the same kernel fill the GPU it takes them whole (`decode_work`), which is what
other schedules would do; so sizes on the other axes need no bucket of their own.

The schedules keep memory busy. An H200 delivers 4.8 TB/s with a latency near 0.8 us, which asks for
29 kB on their way to each of 132 multiprocessors; the rings hold three to six times as much, since
a block's copies start together. A block of 32 kB (16 kB for heads of 32) takes a multiprocessor 0.9
us (0.45 us) at that rate, about twice what its products, softmax and barriers take one after the
other; several warpgroups share these, and leave the tensor cores idle most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from shapejit.passes.nvgpu.attention.decode_rows import group_of
from shapejit.passes.nvgpu.attention.decode_schedule import SplitSchedule
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.attention.tiles import padded
from shapejit.passes.nvgpu.wgmma import ROWS
from shapejit.symbolic import Expr, Ranges

Bounds: TypeAlias = "tuple[int, int | None]"
Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"

#: By the padded head size.
SCHEDULES: Final = {
    32: SplitSchedule.parse("split_64x32_g4_s8_c1"),
    64: SplitSchedule.parse("split_64x32_g4_s6_c1"),
    128: SplitSchedule.parse("split_64x32_g2_s6_c1"),
    256: SplitSchedule.parse("split_64x32_g2_s3_c1"),
}

#: Keys up to which there is nothing to divide: two blocks.
_FEW_KEYS = 256


def most_queries(problem: AttentionProblem, sizes: Mapping[int, Bounds]) -> int:
    """Up to how many queries the keys of a problem are divided; 0 for never.

    Args:
        problem: of the kernel.
        sizes: bounds of its symbols.
    """
    queries, keys = problem.space[2:4]
    _, most = Ranges(dict(sizes)).bounds(keys)
    if queries == keys or (most is not None and most <= _FEW_KEYS):
        return 0
    if max(padded(problem.head), padded(problem.value)) not in SCHEDULES:
        return 0
    return ROWS // group_of(problem)


def schedule_of(problem: AttentionProblem) -> SplitSchedule:
    """The schedule that divides a problem's keys."""
    return SCHEDULES[max(padded(problem.head), padded(problem.value))]


def with_few_queries(
    problem: AttentionProblem,
    sizes: Mapping[int, Bounds],
    most: int,
    axes: list[Expr],
    buckets: list[Bucket],
) -> tuple[list[Expr], list[Bucket]]:
    """A choice with the sizes of few queries taken out of it.

    Args:
        problem: of the kernel.
        sizes: bounds of its symbols.
        most: up to how many queries, see `most_queries`; not 0.
        axes, buckets: what serves all sizes otherwise.

    Returns:
        Axes and buckets, the one of few queries first.
    """
    queries = problem.space[2]
    low, high = Ranges(dict(sizes)).bounds(queries)
    low = max(low or 0, 0)
    if low > most:
        return axes, buckets
    group = group_of(problem)
    variant = str(schedule_of(problem))
    shared = f" of {group} heads" if group > 1 else ""
    why = f"up to {most} queries{shared} are one tile, whose keys all multiprocessors share"
    if high is not None and high <= most:
        return [], [((), (), variant, why)]
    if queries not in axes:
        axes = [queries, *axes]
        buckets = [
            ((most + 1, *lower), (high, *upper), name, reason)
            for lower, upper, name, reason in buckets
        ]
    place = axes.index(queries)
    bounds = [_limits(axis, sizes) for axis in axes]
    bounds[place] = (low, most)
    few = (tuple(low for low, _ in bounds), tuple(high for _, high in bounds), variant, why)
    return axes, [few, *filter(None, (_from(each, place, most + 1) for each in buckets))]


def _from(bucket: Bucket, axis: int, first: int) -> Bucket | None:
    """What a bucket has from a size on an axis on, if anything."""
    lower, upper, name, reason = bucket
    end = upper[axis]
    if end is not None and end < first:
        return None
    start = max(lower[axis], first)
    return (*lower[:axis], start, *lower[axis + 1 :]), upper, name, reason


def _limits(axis: Expr, sizes: Mapping[int, Bounds]) -> Bounds:
    low, high = Ranges(dict(sizes)).bounds(axis)
    return max(low or 0, 0), high
