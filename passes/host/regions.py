# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The regions of a program: in which sizes every launch has its fixed variant.

Buckets are about sizes of a kernel; its launches say what these are sizes of. So all buckets of a
program cut a few *axes*, expressions of the module's symbols, at breakpoints. Between them lie
cells, in each of which all variants are fixed; cells with the same variants are one region. Regions
are numbered in the order of their first cells.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shapejit.passes.buckets.samples import Integers, Samples
from shapejit.passes.host.dispatches import Dispatch
from shapejit.symbolic import Expr

#: More cells than this are no choice any more; `shapejit-choose-buckets` keeps far below.
MOST_CELLS = 1 << 14


@dataclass(frozen=True)
class BoundLaunch:
    """A launch of a kernel with its symbols bound.

    Attributes:
        dispatch: of the kernel.
        sizes: what the kernel's symbols stand for, over the module's symbols.
    """

    dispatch: Dispatch
    sizes: tuple[Expr, ...]

    def axes(self) -> tuple[Expr, ...]:
        """The axes of the dispatch over the module's symbols."""
        bound = dict(enumerate(self.sizes))
        return tuple(axis.substitute(symbols=bound) for axis in self.dispatch.axes)


@dataclass(frozen=True)
class Axis:
    """A size by which variants are chosen.

    Attributes:
        size: over the module's symbols.
        breakpoints: the sizes from which on a choice may be another one, ascending.
    """

    size: Expr
    breakpoints: tuple[int, ...]

    def least(self, cell: int) -> int:
        """A size in a cell: its first one, or for the first cell one below all breakpoints."""
        if cell:
            return self.breakpoints[cell - 1]
        return self.breakpoints[0] - 1


@dataclass(frozen=True)
class Regions:
    """The regions of a program.

    Attributes:
        axes: with the cells between their breakpoints; the last axis moves fastest.
        of_cell: the number of the region of each cell, cells in row-major order.
        variants: of each region, the number of the variant of each launch among those of its
            kernel.
    """

    axes: tuple[Axis, ...]
    of_cell: tuple[int, ...]
    variants: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(launches: Sequence[BoundLaunch]) -> Regions:
        """The regions of a program with these launches.

        Raises:
            ValueError: buckets cut sizes into more than `MOST_CELLS` cells.
        """
        axes = _axes(launches)
        count = math.prod(len(axis.breakpoints) + 1 for axis in axes)
        if count > MOST_CELLS:
            raise ValueError(
                f"has buckets that cut its sizes into {count} cells, of which there may be "
                f"{MOST_CELLS}; give shapejit-choose-buckets a smaller max-regions"
            )
        numbers: dict[tuple[int, ...], int] = {}
        of_cell = []
        for cell in itertools.product(*(range(len(axis.breakpoints) + 1) for axis in axes)):
            sizes = {axis.size: axis.least(i) for axis, i in zip(axes, cell, strict=True)}
            chosen = _chosen(launches, sizes)
            of_cell.append(numbers.setdefault(chosen, len(numbers)))
        return Regions(axes, tuple(of_cell), tuple(numbers))

    def of_samples(self, samples: Samples) -> Integers:
        """The number of the region of each sample."""
        cells = np.zeros(len(samples), dtype=np.int64)
        for axis in self.axes:
            breakpoints = np.array(axis.breakpoints)
            place = np.searchsorted(breakpoints, samples.evaluate(axis.size), side="right")
            cells = cells * (len(axis.breakpoints) + 1) + place
        regions: Integers = np.array(self.of_cell)[cells]
        return regions

    def first_samples(self, samples: Samples) -> dict[int, dict[int, int]]:
        """Symbols' values in each region that has samples, the regions with most of them first."""
        found, first, counts = np.unique(
            self.of_samples(samples), return_index=True, return_counts=True
        )
        order = sorted(range(len(found)), key=lambda i: (-int(counts[i]), int(found[i])))
        return {
            int(found[i]): {s: int(values[first[i]]) for s, values in samples.values.items()}
            for i in order
        }

    def most(self, values: Integers, samples: Samples) -> list[int]:
        """The greatest of some values in each region; 0 where there is no sample.

        Args:
            values: one a sample, at least 1.
            samples: over all regions.
        """
        most = np.zeros(len(self.variants), dtype=np.int64)
        np.maximum.at(most, self.of_samples(samples), values)
        return [int(value) for value in most]


def _axes(launches: Sequence[BoundLaunch]) -> tuple[Axis, ...]:
    breakpoints: dict[Expr, set[int]] = {}
    for launch in dict.fromkeys(launches):
        for number, size in enumerate(launch.axes()):
            if size.constant is None:
                breakpoints.setdefault(size, set()).update(_breakpoints(launch.dispatch, number))
    return tuple(Axis(size, tuple(sorted(found))) for size, found in breakpoints.items() if found)


def _breakpoints(dispatch: Dispatch, axis: int) -> set[int]:
    """Where one bucket ends on an axis and another begins."""
    lows = {bucket.lower[axis] for bucket in dispatch.buckets}
    highs = {bucket.upper[axis] for bucket in dispatch.buckets}
    ends = {high + 1 for high in highs if high is not None}
    # Nothing is chosen below the least size of the kernel, or beyond the greatest.
    outside = {min(lows)} if None in highs else {min(lows), max(ends)}
    return (lows | ends) - outside


def _chosen(launches: Sequence[BoundLaunch], sizes: Mapping[Expr, int]) -> tuple[int, ...]:
    """The numbers of the variants of all launches at a cell's sizes."""

    def number(launch: BoundLaunch) -> int:
        # An axis without breakpoints decides nothing.
        at = [
            axis.constant if axis.constant is not None else sizes.get(axis)
            for axis in launch.axes()
        ]
        return launch.dispatch.number(at)

    known = {launch: number(launch) for launch in dict.fromkeys(launches)}
    return tuple(known[launch] for launch in launches)
