# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Few regions of shapes for all kernels together: breakpoints that they share.

A region is a set of sizes in which every kernel's bucket is fixed, and each region costs a graph.
Kernels whose sizes depend on the same axis mostly change their variants at different sizes; the
regions are all the pieces. Here breakpoints are dropped, the one that costs the program least
first, until the pieces are few enough; each kernel then serves each piece by one variant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shapejit.passes.buckets.grid import Integers
from shapejit.passes.buckets.partition import Box, losses, merge_equal
from shapejit.passes.buckets.problem import Array


@dataclass(frozen=True)
class KernelTable:
    """A kernel with the partition that it would have alone.

    Attributes:
        axes: number of the shared axis of each of its own.
        times: (cells.., candidates).
        weights: of the cells; they sum to 1.
        boxes: its partition.
        calls: of the kernel in a run of the program.
    """

    axes: tuple[int, ...]
    times: Array
    weights: Array
    boxes: tuple[Box, ...]
    calls: int = 1

    def variants(self) -> tuple[int, ...]:
        """The candidates that serve some box."""
        return tuple(sorted({box.candidate for box in self.boxes}))

    def mean_time(self) -> float:
        """The geometric mean time of a run's calls."""
        return self.calls * math.exp(
            float((np.log(self.times.min(axis=-1)) * self.weights).sum() / self.weights.sum())
        )


def region_count(cuts: Sequence[Integers], copies: Sequence[int]) -> int:
    """How many regions axes that are cut at these cells have; an axis counts once a copy."""
    return math.prod((len(c) + 1) ** n for c, n in zip(cuts, copies, strict=True))


def align_regions(
    tables: Sequence[KernelTable], copies: Sequence[int], max_regions: int
) -> list[list[Box]]:
    """The partitions of all kernels with at most `max_regions` regions.

    Args:
        tables: the kernels.
        copies: of each shared axis, how many independent sizes of the program lie along it.
        max_regions: at least 1.

    Returns:
        The boxes of each kernel: its own ones if nothing had to be dropped.
    """
    cuts = [_own_cuts(tables, axis) for axis in range(len(copies))]
    if region_count(cuts, copies) <= max_regions:
        return [list(table.boxes) for table in tables]
    weighted = [_weighted(table) for table in tables]
    while region_count(cuts, copies) > max_regions:
        axis, position = _cheapest_cut(tables, weighted, cuts, copies)
        cuts[axis] = np.delete(cuts[axis], position)
    return [_served(table, w, cuts) for table, w in zip(tables, weighted, strict=True)]


def _own_cuts(tables: Sequence[KernelTable], axis: int) -> Integers:
    """The cells before which some kernel's box starts, without the first cell."""
    found = {
        box.lower[own]
        for table in tables
        for own, shared in enumerate(table.axes)
        if shared == axis
        for box in table.boxes
    }
    return np.array(sorted(found - {0}), dtype=np.int64)


def _weighted(table: KernelTable) -> Array:
    """What serving a cell by a variant adds to the program's time, in its mean time's unit."""
    loss = losses(table.times)[..., list(table.variants())]
    result: Array = loss * table.weights[..., np.newaxis] * table.mean_time()
    return result


def _slabs(table: KernelTable, weighted: Array, cuts: Sequence[Integers]) -> Array:
    """The sums over the blocks between the cuts, (blocks.., variants)."""
    for own, shared in enumerate(table.axes):
        starts = np.concatenate([[0], cuts[shared]]).astype(np.int64)
        weighted = np.add.reduceat(weighted, starts, axis=own)
    return weighted


def _cheapest_cut(
    tables: Sequence[KernelTable],
    weighted: Sequence[Array],
    cuts: Sequence[Integers],
    copies: Sequence[int],
) -> tuple[int, int]:
    """The axis and the position of the cut whose loss is least for the regions that it saves."""
    added = [np.zeros(len(c)) for c in cuts]
    for table, weight in zip(tables, weighted, strict=True):
        slabs = _slabs(table, weight, cuts)
        for own, shared in enumerate(table.axes):
            along = np.moveaxis(slabs, own, 0)
            apart = along.min(axis=-1)
            joined = (along[1:] + along[:-1]).min(axis=-1) - apart[1:] - apart[:-1]
            added[shared] += joined.sum(axis=tuple(range(1, joined.ndim)))
    ranked = [
        (float(loss) / (copies[axis] * math.log1p(1 / len(losses_))), axis, position)
        for axis, losses_ in enumerate(added)
        for position, loss in enumerate(losses_)
    ]
    _, axis, position = min(ranked)
    return axis, position


def _served(table: KernelTable, weighted: Array, cuts: Sequence[Integers]) -> list[Box]:
    """A box for each block between the cuts, joined where one variant serves neighbours."""
    slabs = _slabs(table, weighted, cuts)
    variants, best = table.variants(), slabs.argmin(axis=-1)
    starts = [np.concatenate([[0], cuts[shared]]).astype(np.int64) for shared in table.axes]
    ends = [np.append(s[1:], size) - 1 for s, size in zip(starts, table.weights.shape, strict=True)]
    boxes = [
        Box(
            tuple(int(s[i]) for s, i in zip(starts, block, strict=True)),
            tuple(int(e[i]) for e, i in zip(ends, block, strict=True)),
            variants[int(best[block])],
        )
        for block in np.ndindex(best.shape)
    ]
    return merge_equal(boxes)
