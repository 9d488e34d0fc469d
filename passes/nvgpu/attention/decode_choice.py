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
other; two warpgroups share these, and leave the tensor cores idle most of the time.

Where there are more tiles than multiprocessors, a CTA has several, and between two of them its ring
runs empty: about 1.5 us, a tenth of a tile of 1000 keys of 128. Then two CTAs a multiprocessor with
a warpgroup each are better: one reads while the other one is between tiles. Where there are fewer,
two CTAs would only make twice as many parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from shapejit.passes.buckets.device import Device
from shapejit.passes.nvgpu.attention.decode_rows import group_of
from shapejit.passes.nvgpu.attention.decode_schedule import SplitSchedule
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.attention.tiles import padded
from shapejit.passes.nvgpu.wgmma import ROWS
from shapejit.symbolic import Expr, Ranges
from shapejit.symbolic.expr import product

Bounds: TypeAlias = "tuple[int, int | None]"
Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"

#: By the padded head size: while there is at most a tile for each multiprocessor.
SCHEDULES: Final = {
    32: SplitSchedule.parse("split_64x64_g2_s8_c1"),
    64: SplitSchedule.parse("split_64x64_g2_s6_c1"),
    128: SplitSchedule.parse("split_64x32_g2_s6_c1"),
    256: SplitSchedule.parse("split_64x32_g2_s3_c1"),
}
#: The same with more tiles; of heads of 256 two CTAs have no room.
MANY_TILES: Final = {
    32: SplitSchedule.parse("split_64x64_s8_c2"),
    64: SplitSchedule.parse("split_64x64_s6_c2"),
    128: SplitSchedule.parse("split_64x64_s3_c2"),
    256: SCHEDULES[256],
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


def with_few_queries(
    problem: AttentionProblem,
    sizes: Mapping[int, Bounds],
    most: int,
    device: Device,
    axes: list[Expr],
    buckets: list[Bucket],
) -> tuple[list[Expr], list[Bucket]]:
    """A choice with the sizes of few queries taken out of it.

    Args:
        problem: of the kernel.
        sizes: bounds of its symbols.
        most: up to how many queries, see `most_queries`; not 0.
        device: the GPU.
        axes, buckets: what serves all sizes otherwise.

    Returns:
        Axes and buckets, those of few queries first.
    """
    queries = problem.space[2]
    low, high = _limits(queries, sizes)
    if low > most:
        return axes, buckets
    tiles, few = _by_tiles(problem, sizes, most, device)
    if high is not None and high <= most:
        return (tiles, few) if len(few) > 1 else ([], [((), (), few[0][2], few[0][3])])
    if len(few) == 1:
        tiles, few = [], [((), (), few[0][2], few[0][3])]
    found = [*([] if queries in axes else [queries]), *axes]
    found += [axis for axis in tiles if axis not in found]
    bounds = {axis: _limits(axis, sizes) for axis in found}

    def box(own: Sequence[Expr], bucket: Bucket, of_queries: Bounds) -> Bucket | None:
        """A bucket over some axes as one over all, with so many queries at the least and most."""
        lower, upper, name, reason = bucket
        reach = dict(bounds)
        for axis, start, end in zip(own, lower, upper, strict=True):
            reach[axis] = _both(reach[axis], (start, end))
        reach[queries] = _both(reach[queries], of_queries)
        if any(end is not None and end < start for start, end in reach.values()):
            return None
        return (
            tuple(reach[axis][0] for axis in found),
            tuple(reach[axis][1] for axis in found),
            name,
            reason,
        )

    made = [box(tiles, each, (low, most)) for each in few]
    made += [box(axes, each, (most + 1, None)) for each in buckets]
    return found, [each for each in made if each is not None]


def _by_tiles(
    problem: AttentionProblem, sizes: Mapping[int, Bounds], most: int, device: Device
) -> tuple[list[Expr], list[Bucket]]:
    """The schedules of few queries by how many tiles there are: a batch and group of heads each."""
    group = group_of(problem)
    batch, heads = problem.space[:2]
    if heads.constant is not None:
        axis, last = batch, device.multiprocessors * group // max(heads.constant, 1)
    else:
        axis, last = product([batch, heads]), device.multiprocessors * group
    size = max(padded(problem.head), padded(problem.value))
    shared = f" of {group} heads" if group > 1 else ""
    reason = f"up to {most} queries{shared} are a tile, whose keys "
    few = ((0,), (last,), str(SCHEDULES[size]), f"{reason}all multiprocessors share")
    many = ((last + 1,), (None,), str(MANY_TILES[size]), f"{reason}two CTAs read in turn")
    low, high = _limits(axis, sizes)
    if (high is not None and high <= last) or few[2] == many[2]:
        return [axis], [few]
    if low > last:
        return [axis], [many]
    return [axis], [((low,), *few[1:]), (*many[:1], (high,), *many[2:])]


def _both(one: Bounds, other: Bounds) -> Bounds:
    """What lies in two intervals."""
    ends = [end for end in (one[1], other[1]) if end is not None]
    return max(one[0], other[0]), min(ends, default=None)


def _limits(axis: Expr, sizes: Mapping[int, Bounds]) -> Bounds:
    low, high = Ranges(dict(sizes)).bounds(axis)
    return max(low or 0, 0), high
