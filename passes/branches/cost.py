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
from functools import cached_property
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

# Operations a microsecond: what kernels of attention reach on long sequences, and what there are of
# float32 without tensor cores.
_ATTENTION_RATE: Final = 600e6
_SIMT_RATE: Final = 67e6
# Of the tensor cores of a multiprocessor, of 16 bits.
_OPERATIONS_PER_CYCLE: Final = 4096


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

    @cached_property
    def _kernels(self) -> dict[str, tuple[Any, Family | None]]:
        """The kernels with their families."""
        return {name: (op, family_of(op)) for name, op in sir.kernels(self.module).items()}

    def works(self, launch: PlannedLaunch, variant: int, at: Samples) -> list[Work]:
        """What a launch takes at some sizes by a variant, by its number."""
        kernel, family = self._kernels[launch.dispatch.kernel]
        moving = self._bytes(launch, at) / (1e3 * constants_of(self.device.name).memory_rate)
        if family is not None and family in MODELLED:
            times, computing = self._product_times(launch, kernel, family, variant, at)
        else:
            times, computing = self._stated_times(launch, kernel, moving, at)
        room = self._room(launch, launch.variants[variant], at)
        busy = np.minimum(np.maximum(moving, computing) / times, 1.0)
        return [Work(*map(float, each)) for each in zip(times, room, busy, strict=True)]

    def _product_times(
        self, launch: PlannedLaunch, kernel: Any, family: Family, variant: int, at: Samples
    ) -> tuple[Floats, Floats]:
        """Of the product, and what all multiprocessors together would take to multiply."""
        found = self._product(launch.dispatch.kernel, kernel, family)
        schedule = GemmSchedule.parse(launch.dispatch.variants[variant])
        sizes: dict[str, Any] = {
            name: _at_axis(found, launch, size, at) if isinstance(size, SizeOnAxis) else size
            for name, size in found.sizes.items()
        }
        problem = GemmSizes(**sizes, traits=found.traits)
        model = CostModel(self.device, [schedule], found.traits)
        times: Floats = np.broadcast_to(model.times(problem)[:, 0], len(at))
        [points] = np.prod(np.stack(problem.arrays()), axis=0)
        computing: Floats = np.broadcast_to(
            2.0 * points * found.traits.weights / self._rate(schedule), len(at)
        )
        return times, computing

    def _rate(self, schedule: GemmSchedule) -> float:
        """Multiplications and additions of all multiprocessors in a microsecond."""
        if schedule.family == "simt":
            return _SIMT_RATE
        efficiency = constants_of(self.device.name).tensor_efficiency
        each = _OPERATIONS_PER_CYCLE / (2 if schedule.tf32 else 6 if schedule.tf32x3 else 1)
        return 1e3 * efficiency * self.device.multiprocessors * self.device.clock_ghz * each

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
    ) -> tuple[Floats, Floats]:
        c = constants_of(self.device.name)
        operations = np.zeros(len(at))
        for op in sir.operations(sir.body(kernel)):
            if op.name == "shapejit.attention":
                operations = operations + _operations(launch, op, at)
        computing: Floats = operations / _ATTENTION_RATE
        times: Floats = c.launch + c.latency + np.maximum(moving, computing)
        return times, computing

    def _bytes(self, launch: PlannedLaunch, at: Samples) -> Floats:
        """Bytes that a launch reads and writes. Of weights no more than of the results, where no
        product reads all of them: tables are looked up in."""
        _, family = self._kernels[launch.dispatch.kernel]
        results = sum(_bytes(value, at) for value in launch.op.results)
        total = np.zeros(len(at)) + results
        for value in launch.op.operands:
            own = _bytes(value, at)
            if family not in MODELLED and sir.defining_op(source_of(value)) is None:
                own = np.minimum(own, results)
            total += own
        return total

    def _room(self, launch: PlannedLaunch, interface: KernelInterface, at: Samples) -> Floats:
        """The share of the multiprocessors' shared memory, or of their threads, that CTAs take."""
        units = np.ones(len(at))
        for value, tile in interface.grid.tiles:
            size = launch.size(Expr.parse(interface.values[value]))
            units *= np.maximum(np.ceil(at.evaluate(size) / tile), 1)
        device = self.device
        shared = (interface.shared_bytes + device.shared_reserved) / device.shared_bytes
        each = max(shared, interface.threads / device.max_threads)
        ctas = units * interface.cluster
        if interface.grid.ctas_per_sm:
            ctas = np.minimum(ctas, interface.grid.ctas_per_sm * device.multiprocessors)
        room: Floats = np.minimum(ctas * each / device.multiprocessors, 1.0)
        return room


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
