# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The buckets of all kernels of a module: times, partitions, regions, reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shapejit.passes.buckets.axes import SharedAxes
from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.grid import Cells, grid_sizes
from shapejit.passes.buckets.histogram import Counts
from shapejit.passes.buckets.kernels import GemmKernel
from shapejit.passes.buckets.model import Bound, CostModel, Parts, fitting
from shapejit.passes.buckets.partition import Box, partition
from shapejit.passes.buckets.problem import Array
from shapejit.passes.buckets.regions import KernelTable, StatedTable, Table, align_regions
from shapejit.passes.buckets.samples import Samples
from shapejit.passes.buckets.stated import StatedKernel
from shapejit.passes.nvgpu.schedule import (
    ALL_CANDIDATES,
    UNALIGNED,
    GemmSchedule,
    candidates_for,
    worth_trying,
)


@dataclass(frozen=True)
class ChoiceOptions:
    """How to choose.

    Attributes:
        max_variants: of a kernel.
        max_regions: of the module.
        tolerance: loss for which neighbouring intervals become one.
        expected: sizes of the module's symbols, by id.
        candidates: schedules to choose from.
    """

    max_variants: int = 8
    max_regions: int = 16
    tolerance: float = 0.02
    expected: Mapping[int, Counts] = field(default_factory=dict)
    candidates: tuple[GemmSchedule, ...] = ALL_CANDIDATES


class ChoiceError(ValueError):
    """A kernel has no schedule; the text continues "this kernel ..."."""

    def __init__(self, kernel: GemmKernel, message: str) -> None:
        super().__init__(message)
        self.kernel = kernel


@dataclass(frozen=True)
class Bucket:
    """Sizes that one variant serves.

    Attributes:
        lower: the first size on each axis.
        upper: the last one; None if there is none.
        variant: text of the schedule.
        reason: why it was chosen.
    """

    lower: tuple[int, ...]
    upper: tuple[int | None, ...]
    variant: str
    reason: str

    def __str__(self) -> str:
        """The text of the attribute."""
        reason = self.reason.replace("\\", "\\\\").replace('"', '\\"')
        lower = ", ".join(map(str, self.lower))
        upper = ", ".join("?" if size is None else str(size) for size in self.upper)
        return f'#shapejit.bucket<[{lower}], [{upper}], "{self.variant}", "{reason}">'


def choose_for_kernels(
    kernels: Sequence[GemmKernel],
    stated: Sequence[StatedKernel],
    device: Device,
    options: ChoiceOptions,
    samples: Samples,
) -> list[list[Bucket]]:
    """The buckets of each kernel, the gemms first, in the order of their lower corners.

    Args:
        kernels: the gemms.
        stated: the other kernels.
        device: the GPU.
        options: how to choose.
        samples: values of the module's symbols, which say what combinations of sizes come.

    Raises:
        ChoiceError: no candidate fits a gemm.
    """
    models = [_model(kernel, device, options) for kernel in kernels]
    axes = SharedAxes(kernels, [model.schedules for model in models], stated)
    weights = [axes.weights(number, options.expected) for number in range(axes.count)]
    parts: list[Parts] = []
    tables: list[KernelTable] = []
    for kernel, model, own in zip(kernels, models, axes.of_kernel, strict=False):
        problems, shape = grid_sizes([axes.cells[a] for a in own], kernel.sizes, kernel.traits)
        parts.append(model.parts(problems))
        times = parts[-1].time.reshape(*shape, len(model.schedules))
        weight = _outer([weights[a] for a in own])
        boxes = partition(times, weight, options.max_variants, options.tolerance)
        calls = max(len(kernel.bindings.launches), 1)
        tables.append(KernelTable(own, times, weight, tuple(boxes), calls))
    others = [
        StatedTable(
            own,
            tuple(weights[a] for a in own),
            *other.boxes([axes.cells[a] for a in own]),
            max(len(other.bindings.launches), 1),
        )
        for other, own in zip(stated, axes.of_kernel[len(kernels) :], strict=True)
    ]
    every: list[Table] = [*tables, *others]
    aligned = align_regions(every, axes.sampled(samples), options.max_regions)
    return [
        *(
            _Reasons(
                kernel, model, part, table.weights, [axes.cells[a] for a in table.axes]
            ).buckets(boxes)
            for kernel, model, part, table, boxes in zip(
                kernels, models, parts, tables, aligned, strict=False
            )
        ),
        *(
            _stated_buckets(other, [axes.cells[a] for a in table.axes], boxes)
            for other, table, boxes in zip(stated, others, aligned[len(kernels) :], strict=True)
        ),
    ]


def _stated_buckets(
    kernel: StatedKernel, cells: Sequence[Cells], boxes: Sequence[Box]
) -> list[Bucket]:
    variants = kernel.variants
    return [
        Bucket(
            *_corners(cells, box),
            variants[box.candidate],
            kernel.reason(variants[box.candidate]),
        )
        for box in boxes
    ]


def _corners(cells: Sequence[Cells], box: Box) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """The first and the last sizes of a box."""
    lower = tuple(int(c.starts[i]) for c, i in zip(cells, box.lower, strict=True))
    return lower, tuple(c.end(i) for c, i in zip(cells, box.upper, strict=True))


def _model(kernel: GemmKernel, device: Device, options: ChoiceOptions) -> CostModel:
    """The candidates of a kernel with their costs."""
    candidates = _candidates(kernel, options)
    usable = fitting(device, candidates, kernel.traits)
    if not usable:
        tried = ", ".join(map(str, candidates)) or "none that uses tensor maps"
        raise ChoiceError(
            kernel, f"has no schedule that fits a multiprocessor of {device.name}; tried: {tried}"
        )
    return CostModel(device, usable, kernel.traits)


def _candidates(kernel: GemmKernel, options: ChoiceOptions) -> tuple[GemmSchedule, ...]:
    """The schedules that can compute a kernel."""
    traits = kernel.traits
    if traits.element_bytes == 4:
        maps = kernel.unaligned is None
        found = candidates_for(traits, options.candidates, maps=maps, rounds=kernel.may_round)
        found = worth_trying(found, traits.weights)
        return found if kernel.on_cuda_cores else tuple(s for s in found if s.of_floats)
    if kernel.unaligned is not None:
        return (kernel.fallback,)
    return worth_trying(candidates_for(traits, options.candidates), traits.weights)


def _outer(vectors: Sequence[Array]) -> Array:
    product = np.ones(())
    for vector in vectors:
        product = np.multiply.outer(product, vector)
    return product


class _Reasons:
    """Buckets of one kernel from its boxes, with the reasons for them."""

    def __init__(
        self,
        kernel: GemmKernel,
        model: CostModel,
        parts: Parts,
        weights: Array,
        cells: Sequence[Cells],
    ) -> None:
        self._kernel, self._model, self._cells = kernel, model, cells
        self._weights = weights
        self._times, self._bounds = parts.time, parts.bounds()

    def buckets(self, boxes: Sequence[Box]) -> list[Bucket]:
        """The buckets, sorted."""
        return [
            Bucket(
                *_corners(self._cells, box),
                str(self._model.schedules[box.candidate]),
                self._reason(box),
            )
            for box in boxes
        ]

    def _reason(self, box: Box) -> str:
        schedule = self._model.schedules[box.candidate]
        if (given := _GIVEN.get(schedule.family)) is not None:
            return f"{given}: {self._kernel.unaligned}"
        cell = self._typical(box)
        flat = int(np.ravel_multi_index(cell, self._weights.shape)) if cell else 0
        times = self._times[flat]
        at = ", ".join(str(int(c.middles()[i])) for c, i in zip(self._cells, cell, strict=True))
        bound = Bound(int(self._bounds[flat, box.candidate])).of(schedule)
        text = f"at {at}: " if at else ""
        text += f"{_microseconds(times[box.candidate])}, {bound}"
        others = [int(i) for i in np.argsort(times, kind="stable") if i != box.candidate]
        if others:
            other = others[0]
            # A variant less, or an interval less, was worth more than the faster schedule.
            word = "next" if times[other] >= times[box.candidate] else "faster alone"
            text += f"; {word} {self._model.schedules[other]} {_microseconds(times[other])}"
        return text

    def _typical(self, box: Box) -> tuple[int, ...]:
        """The middle cell of a box, by weight, along each axis."""
        block = self._weights[box.index()]
        found = []
        for axis, first in enumerate(box.lower):
            others = tuple(i for i in range(block.ndim) if i != axis)
            below = np.cumsum(block.sum(axis=others))
            found.append(first + int(np.searchsorted(below, below[-1] / 2)))
        return tuple(found)


# What is said of families that have no competitor, before why they are needed.
_GIVEN = {UNALIGNED.family: "no tensor maps", "patch": "few channels"}


def _microseconds(time: float) -> str:
    return f"{time:.3g} us" if time < 1000 else f"{time:.0f} us"
