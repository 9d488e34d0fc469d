# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The axes along which kernels are divided; kernels whose sizes are the same size share one.

A kernel numbers its symbols itself, so two kernels that are launched with the same rows do not show
it. What their symbols are bound to does: axes that have an expression of the module's symbols in
common are one axis, with one set of cells, so that their breakpoints can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shapejit.passes.buckets.grid import (
    Cells,
    SizeFunction,
    SizeOnAxis,
    cut,
    max_cells,
    tile_lengths,
)
from shapejit.passes.buckets.histogram import Counts, cell_weights
from shapejit.passes.buckets.kernels import GemmKernel
from shapejit.passes.buckets.problem import Array
from shapejit.passes.buckets.regions import SampledSizes
from shapejit.passes.buckets.samples import Samples
from shapejit.passes.buckets.stated import StatedKernel
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.symbolic import Expr


class SharedAxes:
    """The axes of all kernels of a module.

    Args:
        kernels: the gemms of the module.
        schedules: the candidates of each.
        stated: the kernels whose buckets are known.

    Attributes:
        of_kernel: for each kernel, the gemms first, the numbers of its axes.
        cells: of each axis; some begin where a stated bucket does.
        copies: how many distinct sizes of the program lie along each axis.
    """

    def __init__(
        self,
        kernels: Sequence[GemmKernel],
        schedules: Sequence[Sequence[GemmSchedule]],
        stated: Sequence[StatedKernel] = (),
    ) -> None:
        self._gemms = kernels
        self._kernels: list[GemmKernel | StatedKernel] = [*kernels, *stated]
        self._sizes: list[tuple[Expr, ...]] = []
        self.of_kernel: list[tuple[int, ...]] = []
        members = self._group()
        self.copies = [max(len(sizes), 1) for sizes in self._sizes]
        self.cells = [self._cells(axes, schedules) for axes in members]

    @property
    def count(self) -> int:
        """The number of axes."""
        return len(self.cells)

    def weights(self, axis: int, expected: Mapping[int, Counts]) -> Array:
        """How often each cell of an axis is expected."""
        facts = self._kernels[0].bindings.facts  # those of the module
        ranges = {s: (low or 0, high) for s, (low, high) in facts.symbol_ranges.items()}
        return cell_weights(self.cells[axis], self._sizes[axis], expected, ranges)

    def sampled(self, samples: Samples) -> SampledSizes:
        """The sizes along the axes at samples of the module's symbols."""
        numbers = [number for number, sizes in enumerate(self._sizes) for _ in sizes]
        cells = [
            np.searchsorted(self.cells[number].starts, samples.evaluate(size), side="right") - 1
            for number, sizes in enumerate(self._sizes)
            for size in sizes
        ]
        # Sizes below all cells are of no kernel.
        return SampledSizes(
            tuple(numbers), np.maximum(np.array(cells, dtype=np.int64), 0), self.copies
        )

    def _group(self) -> list[list[tuple[int, int]]]:
        """The (kernel, own axis) pairs of each shared axis; joined if they share a size."""
        pairs = [(i, a) for i, kernel in enumerate(self._kernels) for a in range(len(kernel.axes))]
        sizes = {(i, a): self._bound(i, a) for i, a in pairs}
        groups: list[tuple[set[Expr], list[tuple[int, int]]]] = []
        for pair in pairs:
            joined = [g for g in groups if g[0] & set(sizes[pair])]
            groups = [g for g in groups if g not in joined]
            union = set(sizes[pair]).union(*(g[0] for g in joined))
            groups.append((union, sorted([pair, *(p for g in joined for p in g[1])])))
        groups.sort(key=lambda g: g[1])
        numbers = {pair: number for number, (_, members) in enumerate(groups) for pair in members}
        self._sizes = [tuple(sorted(s, key=lambda e: e.sort_key)) for s, _ in groups]
        self.of_kernel = [
            tuple(numbers[i, a] for a in range(len(kernel.axes)))
            for i, kernel in enumerate(self._kernels)
        ]
        return [members for _, members in groups]

    def _bound(self, kernel: int, axis: int) -> tuple[Expr, ...]:
        return self._kernels[kernel].bindings.bound(self._kernels[kernel].axes[axis])

    def _cells(
        self, members: Sequence[tuple[int, int]], schedules: Sequence[Sequence[GemmSchedule]]
    ) -> Cells:
        ranges = [self._kernels[i].bindings.range(self._kernels[i].axes[a]) for i, a in members]
        highs = [high for _, high in ranges if high is not None]
        gemms = [(i, a) for i, a in members if i < len(self._gemms)]
        rank = max((len(self._gemms[i].axes) for i, _ in gemms), default=1)
        cells = cut(
            min(low or 0 for low, _ in ranges),
            max(highs) if len(highs) == len(ranges) else None,
            list(self._functions(gemms, schedules)),
            max_cells(rank),
        )
        return cells.cut_at(
            size
            for i, a in members
            if isinstance(kernel := self._kernels[i], StatedKernel)
            for size in kernel.breakpoints(a)
        )

    def _functions(
        self, members: Sequence[tuple[int, int]], schedules: Sequence[Sequence[GemmSchedule]]
    ) -> Iterator[tuple[SizeFunction, int]]:
        for i, a in members:
            for name, size in self._gemms[i].sizes.items():
                if isinstance(size, SizeOnAxis) and size.axis == a:
                    for tile in tile_lengths(schedules[i], name):
                        yield size.function, tile
