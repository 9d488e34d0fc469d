# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Schedules in order of the sizes that they serve, and the buckets that follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shapejit.passes.gpu_loops.schedule import LoopSchedule
from shapejit.symbolic import Expr, Ranges

Bucket: TypeAlias = tuple[tuple[int, ...], tuple[int | None, ...], str, str]
Choice: TypeAlias = tuple[list[Expr], list[Bucket]]


@dataclass(frozen=True)
class Tier:
    """A schedule for up to so much of two sizes; None for any.

    Attributes:
        first: of the size that is looked at first, such as the length of rows.
        second: of the other one, such as the number of rows.
    """

    first: int | None
    second: int | None
    schedule: LoopSchedule
    reason: str


def boxes(
    axes: Sequence[Expr],
    tiers: Sequence[Tier],
    ranges: Ranges,
    text: Callable[[LoopSchedule], str],
) -> Choice:
    """The buckets of tiers, without those that no legal sizes reach.

    Args:
        axes: both sizes.
        tiers: by the first size and, of one bound on that, by the second, the last one of which has
            no bound on it. The last tier of all has none.
        ranges: of the symbols.
        text: the name of a schedule.
    """
    (least, greatest), (fewest, most) = (
        (max(low or 0, 0), high) for low, high in map(ranges.bounds, axes)
    )
    buckets: list[Bucket] = []
    first, second = least, fewest
    for tier in tiers:
        last, end = _least(tier.first, greatest), _least(tier.second, most)
        if (last is not None and last < first) or (end is not None and end < second):
            continue
        buckets.append(((first, second), (last, end), text(tier.schedule), tier.reason))
        if end != most:
            assert end is not None
            second = end + 1
            continue
        if last == greatest:
            break
        assert last is not None
        first, second = last + 1, fewest
    if len({variant for _, _, variant, _ in buckets}) == 1:
        return [], [((), (), *buckets[0][2:])]
    return _without_needless(axes, buckets)


def _without_needless(axes: Sequence[Expr], buckets: Sequence[Bucket]) -> Choice:
    """The choice without an axis that all buckets span in whole."""
    spans = [
        {(lower[axis], upper[axis]) for lower, upper, _, _ in buckets} for axis in range(len(axes))
    ]
    needed = [axis for axis, found in enumerate(spans) if len(found) > 1]
    return [axes[axis] for axis in needed], [
        (
            tuple(lower[axis] for axis in needed),
            tuple(upper[axis] for axis in needed),
            variant,
            reason,
        )
        for lower, upper, variant, reason in buckets
    ]


def _least(bound: int | None, other: int | None) -> int | None:
    if bound is None or other is None:
        return other if bound is None else bound
    return min(bound, other)
