# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What launches take alone, by size: the cost model of products, and stated rates of all others.

An estimate decides about branches only, so where nothing is fitted it errs to the short side: what
takes longer gains more from running beside something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shapejit import ir as sir
from shapejit.gpu.interface import KernelInterface
from shapejit.passes.analysis.accesses import space_of
from shapejit.passes.branches.makespan import Work
from shapejit.passes.buckets.bindings import Bindings
from shapejit.passes.buckets.constants import constants_of
from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.grid import SizeOnAxis
from shapejit.passes.buckets.kernels import GemmKernel, conv_kernel, gemm_kernel
from shapejit.passes.buckets.model import CostModel
from shapejit.passes.buckets.problem import GemmSizes
from shapejit.passes.buckets.samples import Samples
from shapejit.passes.host.dispatches import Dispatch
from shapejit.passes.nvgpu.families import CONV, MODELLED, Family, family_of
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.plan_memory import source_of
from shapejit.symbolic import Expr, product

Floats = npt.NDArray[np.float64]

# Operations of attention a microsecond: what its kernels reach on long sequences.
_ATTENTION_RATE: Final = 600e6


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch with its variants.

    Attributes:
        op: ``shapejit.launch``.
        sizes: what the kernel's symbols stand for, over the module's symbols.
        dispatch: of the kernel.
        variants: the interfaces of its variants, in the order of the dispatch.
    """

    op: Any
    sizes: tuple[Expr, ...]
    dispatch: Dispatch
    variants: tuple[KernelInterface, ...]

    def size(self, expr: Expr) -> Expr:
        """An expression of the kernel's symbols over those of the module."""
        return expr.substitute(symbols=dict(enumerate(self.sizes)))


@dataclass(frozen=True)
class LaunchCosts:
    """The costs of launches of a module.

    Attributes:
        module: with the kernels.
        device: the GPU.
        bindings: of the kernels.
        samples: values of the module's symbols, all over their ranges.
    """

    module: Any
    device: Device
    bindings: Mapping[str, Bindings]
    samples: Samples
    _products: dict[str, GemmKernel] = field(default_factory=dict)

    def works(self, launch: PlannedLaunch, variant: int, at: Samples) -> list[Work]:
        """What a launch takes at some sizes by a variant, by its number."""
        kernel = sir.kernels(self.module)[launch.dispatch.kernel]
        family = family_of(kernel)
        moved = self._bytes(launch, at)
        rate = 1e3 * constants_of(self.device.name).memory_rate
        if family in MODELLED:
            times = self._product_times(launch, kernel, family, variant, at)
        else:
            times = self._stated_times(launch, kernel, moved / rate, at)
        held = self._multiprocessors(launch, launch.variants[variant], at)
        read = np.minimum(moved / rate / times, 1.0)
        return [Work(*map(float, each)) for each in zip(times, held, read, strict=True)]

    def _product_times(
        self, launch: PlannedLaunch, kernel: Any, family: Family, variant: int, at: Samples
    ) -> Floats:
        found = self._product(launch.dispatch.kernel, kernel, family)
        schedule = GemmSchedule.parse(launch.dispatch.variants[variant])
        sizes: dict[str, Any] = {
            name: _at_axis(found, launch, size, at) if isinstance(size, SizeOnAxis) else size
            for name, size in found.sizes.items()
        }
        model = CostModel(self.device, [schedule], found.traits)
        times: Floats = np.broadcast_to(
            model.times(GemmSizes(**sizes, traits=found.traits))[:, 0], len(at)
        )
        return times

    def _product(self, name: str, kernel: Any, family: Family) -> GemmKernel:
        if name not in self._products:
            bindings = self.bindings[name]
            self._products[name] = (
                conv_kernel(name, kernel, bindings, self.samples)
                if family is CONV
                else gemm_kernel(name, kernel, bindings)
            )
        return self._products[name]

    def _stated_times(
        self, launch: PlannedLaunch, kernel: Any, moving: Floats, at: Samples
    ) -> Floats:
        c = constants_of(self.device.name)
        operations = np.zeros(len(at))
        for op in sir.operations(sir.body(kernel)):
            if op.name == "shapejit.attention":
                operations = operations + _operations(launch, op, at)
        times: Floats = c.launch + c.latency + np.maximum(moving, operations / _ATTENTION_RATE)
        return times

    def _bytes(self, launch: PlannedLaunch, at: Samples) -> Floats:
        """Bytes that a launch reads and writes. Of weights no more than of the results, where no
        product reads all of them: tables are looked up in."""
        kernel = sir.kernels(self.module)[launch.dispatch.kernel]
        results = sum(_bytes(value, at) for value in launch.op.results)
        total = np.zeros(len(at)) + results
        for value in launch.op.operands:
            own = _bytes(value, at)
            if family_of(kernel) not in MODELLED and sir.defining_op(source_of(value)) is None:
                own = np.minimum(own, results)
            total += own
        return total

    def _multiprocessors(
        self, launch: PlannedLaunch, interface: KernelInterface, at: Samples
    ) -> Floats:
        """The share of the multiprocessors that the CTAs of a launch hold."""
        units = np.ones(len(at))
        for value, tile in interface.grid.tiles:
            size = launch.size(Expr.parse(interface.values[value]))
            units *= np.maximum(np.ceil(at.evaluate(size) / tile), 1)
        together = interface.grid.ctas_per_sm or self.device.max_threads // interface.threads
        room = max(together, 1) * self.device.multiprocessors
        share: Floats = np.minimum(units * interface.cluster / room, 1.0)
        return share


def _at_axis(kernel: GemmKernel, launch: PlannedLaunch, size: SizeOnAxis, at: Samples) -> Any:
    return size.function(at.evaluate(launch.size(kernel.axes[size.axis])))


def _operations(launch: PlannedLaunch, op: Any, at: Samples) -> Floats:
    """Multiplications and additions of an attention, half of them if it is causal."""
    *_, depth, width = space_of(op)
    points = product(space_of(op)[:-2]) * (depth + width)
    each = 1.0 if "causal" in op.attributes else 2.0
    found: Floats = each * at.evaluate(launch.size(points)).astype(np.float64)
    return found


def _bytes(value: Any, at: Samples) -> Floats:
    found: Floats = at.evaluate(sir.bytes_of(value.type)).astype(np.float64)
    return found


def some_of(samples: Samples, numbers: Sequence[int], most: int) -> Samples:
    """Some samples, spread evenly.

    Args:
        numbers: of the samples to choose from.
        most: how many.
    """
    step = max(math.ceil(len(numbers) / most), 1)
    chosen = np.array([*numbers[::step], numbers[-1]], dtype=np.int64)
    chosen = np.unique(chosen)
    return Samples({s: values[chosen] for s, values in samples.values.items()}, complete=True)
