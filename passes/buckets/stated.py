# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels whose families state their buckets themselves: loops and attention.

Their few variants follow from simple rules, without a cost model. They still take part in the
alignment of breakpoints over all kernels of a module, as each breakpoint makes regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit.passes.buckets.bindings import Bindings
from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.grid import Cells
from shapejit.passes.buckets.partition import Box
from shapejit.passes.nvgpu.families import Family, StatedBucket
from shapejit.symbolic import Expr


@dataclass(frozen=True)
class StatedKernel:
    """A kernel with the buckets that its family states.

    Attributes:
        name: of the kernel.
        op: ``shapejit.kernel``.
        bindings: its launches.
        axes: what the buckets are about, over the kernel's symbols.
        buckets: disjoint, and together all sizes.
        stakes: of each bucket, what another one's variant costs a call, in microseconds.
    """

    name: str
    op: Any
    bindings: Bindings
    axes: tuple[Expr, ...]
    buckets: tuple[StatedBucket, ...]
    stakes: tuple[float, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        """The distinct variants, in the order of the buckets."""
        return tuple(dict.fromkeys(variant for _, _, variant, _ in self.buckets))

    def breakpoints(self, axis: int) -> list[int]:
        """The sizes on an axis at which some bucket begins."""
        return sorted({lower[axis] for lower, _, _, _ in self.buckets})

    def boxes(self, cells: Sequence[Cells]) -> tuple[tuple[Box, ...], tuple[float, ...]]:
        """The buckets as boxes of cells; the candidate of a box is the number of its variant.

        Args:
            cells: of each axis; some begin at every breakpoint that is in range.

        Returns:
            The boxes, sorted, and their stakes.
        """
        numbers = {variant: number for number, variant in enumerate(self.variants)}
        boxes = []
        for (lower, upper, variant, _), stake in zip(self.buckets, self.stakes, strict=True):
            first = [c.cell(low) for c, low in zip(cells, lower, strict=True)]
            last = [
                len(c) - 1 if high is None else c.cell(high)
                for c, high in zip(cells, upper, strict=True)
            ]
            outside = any(
                (high is not None and high < int(c.starts[0]))
                or (c.high is not None and low > c.high)
                for c, low, high in zip(cells, lower, upper, strict=True)
            )
            if not outside:
                boxes.append((Box(tuple(first), tuple(last), numbers[variant]), stake))
        boxes.sort()
        return tuple(box for box, _ in boxes), tuple(stake for _, stake in boxes)

    def reason(self, variant: str) -> str:
        """Why a variant is among those of the kernel: what its first bucket says."""
        return next(reason for _, _, name, reason in self.buckets if name == variant)


def stated_kernel(
    name: str, kernel: Any, bindings: Bindings, family: Family, device: Device
) -> StatedKernel:
    """What a family states of one of its kernels.

    Raises:
        LoweringError: the family cannot lower it.
    """
    symbols = range(ir.IntegerAttr(kernel.attributes["symbols"]).value)
    bounds = [bindings.range(Expr.symbol(number)) for number in symbols]
    sizes = {number: (low or 0, high) for number, (low, high) in enumerate(bounds)}
    axes, buckets = family.choose(kernel, sizes, device)
    stakes = tuple(family.stake(kernel, sizes, device, axes, bucket) for bucket in buckets)
    units = [bindings.unit(axis) for axis in axes]
    counted = tuple(axis // unit for axis, unit in zip(axes, units, strict=True))
    inside = [
        (_in_units(bucket, units), stake) for bucket, stake in zip(buckets, stakes, strict=True)
    ]
    kept = [(bucket, stake) for bucket, stake in inside if bucket is not None]
    return StatedKernel(
        name,
        kernel,
        bindings,
        counted,
        tuple(bucket for bucket, _ in kept),
        tuple(stake for _, stake in kept),
    )


def _in_units(bucket: StatedBucket, units: Sequence[int]) -> StatedBucket | None:
    """A bucket along axes that count units, as those of products do; None if it has no size."""
    lower, upper, variant, reason = bucket
    first = tuple(-(-low // unit) for low, unit in zip(lower, units, strict=True))
    last = tuple(
        None if high is None else high // unit for high, unit in zip(upper, units, strict=True)
    )
    if any(high is not None and low > high for low, high in zip(first, last, strict=True)):
        return None
    return first, last, variant, reason
