# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Axes of sizes, cut into cells in which no count of tiles changes.

Between two sizes at which some ``ceil(size / tile)`` jumps, the time of every candidate is smooth
and nearly constant, so one evaluation a cell says what all its sizes cost. Far out, where a tile
more is a small part of the whole, cells are thinned to about equal ratios. A size of 0 has nothing
to compute and is served by what serves 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shapejit.passes.buckets.problem import Array, GemmSizes, GemmTraits
from shapejit.passes.nvgpu.schedule import GemmSchedule

Integers: TypeAlias = npt.NDArray[np.int64]
SizeFunction: TypeAlias = Callable[[Integers], Integers]
"""The values of a size, from those of the axis that it depends on; it never falls."""

# Where an axis without an upper bound is cut off: its last cell stands for all that is beyond.
FAR = 1 << 14
# Ratio of the cells beyond it on an axis that has one, such as the pixels of all images: so many
# tiles are many waves of them, of which one more or less is a small part.
_FAR_RATIO = 1.02
# Halvings of the interval in which the ratio of thinned cells is sought.
_BISECTIONS = 10
_MAX_CELLS = {1: 1024, 2: 64, 3: 20, 4: 8}


def max_cells(axes: int) -> int:
    """How many cells an axis of a problem with so many axes may have."""
    return _MAX_CELLS.get(axes, 4)


@dataclass(frozen=True)
class Cells:
    """An axis from `starts[0]` on, cut before every later start.

    Attributes:
        starts: the first size of each cell, ascending.
        high: the last size of the last cell; None if there is none.
    """

    starts: Integers
    high: int | None

    def __len__(self) -> int:
        return len(self.starts)

    def cell(self, size: int) -> int:
        """The cell that a size is in; of one out of range, the nearest cell."""
        return max(int(np.searchsorted(self.starts, size, side="right")) - 1, 0)

    def cut_at(self, sizes: Iterable[int]) -> Cells:
        """The same cells, cut further before each of these sizes that is in range."""
        first, high = int(self.starts[0]), self.high
        inside = [s for s in sizes if s > first and (high is None or s <= high)]
        return Cells(np.union1d(self.starts, np.array(inside, dtype=np.int64)), high)

    def end(self, cell: int) -> int | None:
        """The last size of a cell."""
        return int(self.starts[cell + 1]) - 1 if cell + 1 < len(self) else self.high

    def middles(self) -> Integers:
        """A size of each cell; of the last unbounded one, its first."""
        last = int(self.starts[-1]) if self.high is None else self.high
        ends = np.append(self.starts[1:] - 1, last)
        middles: Integers = np.minimum((self.starts + ends + 1) // 2, ends)
        return middles

    def log_lengths(self) -> Array:
        """The lengths of the cells on a logarithmic scale; beyond `FAR`, an octave counts."""
        last = 2 * int(self.starts[-1]) + 1 if self.high is None else self.high
        ends = np.append(self.starts[1:], last + 1)
        # From 0 on, as sizes of 0 exist: log(1 + size).
        lengths: Array = np.log1p(ends) - np.log1p(self.starts)
        return lengths


def cut(
    low: int, high: int | None, functions: Iterable[tuple[SizeFunction, int]], limit: int
) -> Cells:
    """Cells of the sizes from `low` to `high` (None: all from `low` on).

    Args:
        low: the first size.
        high: the last one.
        functions: sizes that depend on the axis, each with a tile by which it is divided.
        limit: the most cells.

    Raises:
        ValueError: there are no sizes between the bounds.
    """
    if low < 0 or (high is not None and high < low):
        raise ValueError(f"there are no sizes from {low} to {high}")
    far = max(FAR, low) if high is None else min(high, max(FAR, low))
    values = np.arange(low, far + 1, dtype=np.int64)
    jumps = np.zeros(len(values), dtype=bool)
    for function, tile in functions:
        tiles = -(-np.maximum(function(values), 1) // tile)
        jumps[1:] |= tiles[1:] != tiles[:-1]
    jumps[0] = True
    starts = np.concatenate([values[jumps], _beyond(far, far if high is None else high)])
    return Cells(_thinned(starts, limit), high)


def _beyond(far: int, high: int) -> Integers:
    """Starts of cells between two sizes, the first one left out."""
    count = int(math.log(max(high, 1) / max(far, 1)) / math.log(_FAR_RATIO))
    spread: Integers = np.rint(np.geomspace(max(far, 1), max(high, 1), count + 1)).astype(np.int64)
    later: Integers = spread[1:]
    # Ascending as they are; np.unique would first import a module for masked arrays.
    return later[np.diff(later, prepend=-1) > 0]


def _thinned(starts: Integers, limit: int) -> Integers:
    """At most `limit` starts, the first one among them, in ratios as small as that allows."""
    if len(starts) <= limit:
        return starts
    first, last = max(int(starts[0]), 1), max(int(starts[-1]), 2)
    # Steps of this ratio reach the end in time; where sizes are dense, smaller ones do too.
    low, high = 0.0, math.log(last / first) / max(limit - 1, 1) + 1e-9
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _spaced(starts, math.exp(middle), limit) is None:
            low = middle
        else:
            high = middle
    kept = _spaced(starts, math.exp(high), limit)
    return starts[:1] if kept is None else starts[kept]


def _spaced(sizes: Integers, ratio: float, limit: int) -> list[int] | None:
    """Places of sizes a ratio apart, or at least one place; None if there are more than `limit`."""
    apart = np.searchsorted(sizes, np.maximum(sizes * ratio, 1.0))
    following = np.maximum(apart, np.arange(1, len(sizes) + 1)).tolist()
    kept, place, end = [0], 0, len(following)
    for _ in range(limit):
        place = following[place]
        if place >= end:
            return kept
        kept.append(place)
    return None


@dataclass(frozen=True)
class SizeOnAxis:
    """A size of a gemm as a function of one of the axes."""

    axis: int
    function: SizeFunction


GemmSize: TypeAlias = "int | SizeOnAxis"


def grid_sizes(
    axes: Sequence[Cells], sizes: Mapping[str, GemmSize], traits: GemmTraits
) -> tuple[GemmSizes, tuple[int, ...]]:
    """The sizes of a gemm at the middle of every cell, in row-major order, and the grid's shape.

    Args:
        axes: of the grid.
        sizes: by the names of `GemmSizes`: m, n, k, batch.
        traits: of the gemm.
    """
    shape = tuple(map(len, axes))
    columns: dict[str, int | Integers] = {}
    for name, size in sizes.items():
        if isinstance(size, int):
            columns[name] = size
            continue
        along = np.maximum(size.function(axes[size.axis].middles()), 1)
        spread = [1] * len(shape)
        spread[size.axis] = len(along)
        columns[name] = np.broadcast_to(along.reshape(spread), shape).ravel()
    if not shape:
        columns = {name: np.atleast_1d(column) for name, column in columns.items()}
    return GemmSizes(**columns, traits=traits), shape


def tile_lengths(schedules: Iterable[GemmSchedule], size: str) -> list[int]:
    """By what a size (m, n, k or batch) is divided into the tiles of a cluster; ascending."""

    def length(schedule: GemmSchedule) -> int:
        match size:
            case "m" | "n" if (size == "m") == schedule.swapped:
                return schedule.columns * schedule.rows_shared
            case "m" | "n":
                return schedule.rows * schedule.columns_shared
            case "k":
                return schedule.depth * schedule.cluster_split
            case _:
                return 1

    return sorted(set(map(length, schedules)))
