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
from functools import cached_property
from typing import Protocol

import numpy as np

from shapejit.passes.buckets.grid import Integers
from shapejit.passes.buckets.partition import Box, losses, merge_equal
from shapejit.passes.buckets.problem import Array


class Table(Protocol):
    """A kernel with the partition that it would have alone.

    Attributes:
        axes: number of the shared axis of each of its own.
        boxes: its partition.
    """

    @property
    def axes(self) -> tuple[int, ...]: ...

    @property
    def boxes(self) -> tuple[Box, ...]: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each of its axes."""

    def variants(self) -> tuple[int, ...]:
        """The candidates that serve some box."""

    def slabs(self, cuts: Sequence[Integers]) -> Array:
        """What each variant adds to the program's time in the blocks between the cuts.

        Args:
            cuts: of each shared axis, the cells before which it is cut.

        Returns:
            (blocks along each of the table's axes.., variants).
        """


@dataclass(frozen=True)
class KernelTable:
    """A kernel of which the time of every candidate is known; see `Table`.

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

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        shape: tuple[int, ...] = self.weights.shape
        return shape

    def variants(self) -> tuple[int, ...]:
        """The candidates that serve some box."""
        return tuple(sorted({box.candidate for box in self.boxes}))

    def mean_time(self) -> float:
        """The geometric mean time of a run's calls."""
        return self.calls * math.exp(
            float((np.log(self.times.min(axis=-1)) * self.weights).sum() / self.weights.sum())
        )

    def slabs(self, cuts: Sequence[Integers]) -> Array:
        """See `Table`."""
        weighted = self._weighted
        for own, shared in enumerate(self.axes):
            weighted = np.add.reduceat(weighted, _starts(cuts[shared]), axis=own)
        return weighted

    @cached_property
    def _weighted(self) -> Array:
        """What serving a cell by a variant adds to the program's time, in its mean time's unit."""
        loss = losses(self.times)[..., list(self.variants())]
        result: Array = loss * self.weights[..., np.newaxis] * self.mean_time()
        return result


@dataclass(frozen=True)
class StatedTable:
    """A kernel whose family states its buckets, and no times; see `Table`.

    Serving sizes of a bucket by the variant of another one is taken to cost a time that is stated.

    Attributes:
        axes: number of the shared axis of each of its own.
        weights: of the cells of each axis; they sum to 1.
        boxes: its buckets, with the numbers of the variants as candidates.
        stakes: of each box that time of a call, in microseconds.
        calls: of the kernel in a run of the program.
    """

    axes: tuple[int, ...]
    weights: tuple[Array, ...]
    boxes: tuple[Box, ...]
    stakes: tuple[float, ...]
    calls: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return tuple(map(len, self.weights))

    def variants(self) -> tuple[int, ...]:
        """The variants that serve some box."""
        return tuple(sorted({box.candidate for box in self.boxes}))

    def slabs(self, cuts: Sequence[Integers]) -> Array:
        """See `Table`."""
        slabs = self._own_slabs
        for own, shared in enumerate(self.axes):
            shares = self._overlaps(own, cuts[shared])
            slabs = np.moveaxis(np.tensordot(shares, slabs, axes=(1, own)), 0, own)
        return slabs

    @cached_property
    def _own_cuts(self) -> list[Integers]:
        return [
            np.array(sorted({box.lower[own] for box in self.boxes} - {0}), dtype=np.int64)
            for own in range(len(self.axes))
        ]

    @cached_property
    def _own_slabs(self) -> Array:
        """The loss of every variant in the blocks between the kernel's own breakpoints."""
        starts = [_starts(cuts) for cuts in self._own_cuts]
        variants = self.variants()
        loss = np.zeros((*map(len, starts), len(variants)))
        for block in np.ndindex(loss.shape[:-1]):
            cell = tuple(int(s[i]) for s, i in zip(starts, block, strict=True))
            serving, stake = next(
                (box.candidate, stake)
                for box, stake in zip(self.boxes, self.stakes, strict=True)
                if _holds(box, cell)
            )
            loss[block] = [stake * (variant != serving) for variant in variants]
        return loss * self.calls

    def _overlaps(self, own: int, cuts: Integers) -> Array:
        """The weight that each block between the cuts has of each between the own breakpoints."""
        pieces = np.union1d(_starts(cuts), _starts(self._own_cuts[own]))
        masses = np.add.reduceat(self.weights[own], pieces)
        result = np.zeros((len(cuts) + 1, len(self._own_cuts[own]) + 1))
        rows = np.searchsorted(cuts, pieces, side="right")
        columns = np.searchsorted(self._own_cuts[own], pieces, side="right")
        result[rows, columns] = masses
        return result


def _holds(box: Box, cell: Sequence[int]) -> bool:
    return all(low <= i <= high for i, low, high in zip(cell, box.lower, box.upper, strict=True))


def _starts(cuts: Integers) -> Integers:
    starts: Integers = np.concatenate([[0], cuts]).astype(np.int64)
    return starts


class Sizes(Protocol):
    """The sizes that calls of a program have along the shared axes."""

    @property
    def copies(self) -> Sequence[int]:
        """Of each axis, how many distinct sizes of the program lie along it."""

    def merged(self, cuts: Sequence[Integers]) -> Sizes:
        """The same, as far as they differ when the axes are cut before these cells."""

    def regions(self, cuts: Sequence[Integers]) -> int:
        """How many regions there are when the axes are cut before these cells."""


@dataclass(frozen=True)
class IndependentSizes:
    """Sizes of which any combination may come; see `Sizes`."""

    copies: Sequence[int]

    def merged(self, cuts: Sequence[Integers]) -> IndependentSizes:
        """See `Sizes`."""
        return self

    def regions(self, cuts: Sequence[Integers]) -> int:
        """See `Sizes`."""
        return math.prod((len(c) + 1) ** n for c, n in zip(cuts, self.copies, strict=True))


@dataclass(frozen=True)
class SampledSizes:
    """Sizes that depend on each other, as batch and batch times length do; see `Sizes`.

    Attributes:
        axes: the number of the axis of each size.
        cells: the cell in which it lies in each sample, (sizes, samples).
        copies: see `Sizes`.
    """

    axes: tuple[int, ...]
    cells: Integers
    copies: Sequence[int]

    def merged(self, cuts: Sequence[Integers]) -> SampledSizes:
        """See `Sizes`."""
        if not self.axes:
            return SampledSizes((), np.zeros((0, 1), np.int64), self.copies)
        starts = [
            _starts(cuts[axis])[np.searchsorted(cuts[axis], cells, side="right")]
            for axis, cells in zip(self.axes, self.cells, strict=True)
        ]
        return SampledSizes(self.axes, np.unique(np.array(starts), axis=1), self.copies)

    def regions(self, cuts: Sequence[Integers]) -> int:
        """See `Sizes`."""
        return int(self.merged(cuts).cells.shape[1])


def align_regions(tables: Sequence[Table], sizes: Sizes, max_regions: int) -> list[list[Box]]:
    """The partitions of all kernels with at most `max_regions` regions.

    Args:
        tables: the kernels.
        sizes: along the shared axes.
        max_regions: at least 1.

    Returns:
        The boxes of each kernel: its own ones if nothing had to be dropped.
    """
    cuts = [_own_cuts(tables, axis) for axis in range(len(sizes.copies))]
    # Cuts are only dropped, and fewer do not tell apart what these do not.
    sizes = sizes.merged(cuts)
    if sizes.regions(cuts) <= max_regions:
        return [list(table.boxes) for table in tables]
    while sizes.regions(cuts) > max_regions:
        axis, position = _cheapest_cut(tables, cuts, sizes.copies)
        cuts[axis] = np.delete(cuts[axis], position)
    return [_served(table, cuts) for table in tables]


def _own_cuts(tables: Sequence[Table], axis: int) -> Integers:
    """The cells before which some kernel's box starts, without the first cell."""
    found = {
        box.lower[own]
        for table in tables
        for own, shared in enumerate(table.axes)
        if shared == axis
        for box in table.boxes
    }
    return np.array(sorted(found - {0}), dtype=np.int64)


def _cheapest_cut(
    tables: Sequence[Table], cuts: Sequence[Integers], copies: Sequence[int]
) -> tuple[int, int]:
    """The axis and the position of the cut whose loss is least for the regions that it saves."""
    added = [np.zeros(len(c)) for c in cuts]
    for table in tables:
        slabs = table.slabs(cuts)
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


def _served(table: Table, cuts: Sequence[Integers]) -> list[Box]:
    """A box for each block between the cuts, joined where one variant serves neighbours."""
    variants, best = table.variants(), table.slabs(cuts).argmin(axis=-1)
    starts = [_starts(cuts[shared]) for shared in table.axes]
    ends = [np.append(s[1:], size) - 1 for s, size in zip(starts, table.shape, strict=True)]
    boxes = [
        Box(
            tuple(int(s[i]) for s, i in zip(starts, block, strict=True)),
            tuple(int(e[i]) for e, i in zip(ends, block, strict=True)),
            variants[int(best[block])],
        )
        for block in np.ndindex(best.shape)
    ]
    return merge_equal(boxes)
