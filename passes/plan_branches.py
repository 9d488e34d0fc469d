# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-plan-branches: which launches run side by side.

Why: a program is a list of launches, and on a GPU one that runs under constant graphs may run those
that do not depend on each other at the same time. Two towers of a model at few rows, each of which
leaves most multiprocessors idle, take little more than one. But a kernel that fills the machine, or
that moves bytes as fast as the memory can, gains nothing beside another one; and where branches
meet, the next kernel cannot start early, which a chain of kernels can. So it is decided here, by
what launches are estimated to take (`passes/branches/cost.py`, `passes/branches/makespan.py`), for
each region of sizes: before memory is planned, since values of launches that run at the same time
must not share any.

Before::

    %0 = shapejit.launch @text .. (%ids, ..)
    %1 = shapejit.launch @text .. (%0, ..)
    %2 = shapejit.launch @image .. (%pixels, ..)
    %3 = shapejit.launch @image .. (%2, ..)
    %4 = shapejit.launch @together .. (%1, %3)

After::

    func.func @main(..) attributes {shapejit.branches = [
      [array<i64: 0, 3>, array<i64: 0, 2>, "2 branches at batch 4: 30.1 us, one by one 48.0 us"]
    ]} { .. }

In regions 0 and 2 launches 0 to 3 wait only for what they depend on: launches that write what they
read, and that read or write what they write. In other regions, and before and behind them, every
launch waits for the one ahead of it.

Launches run side by side in a region if that saves at least 2 us and 5 % of what they take, as the
mean of sizes all over the region, and at none of these takes over 1 % longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, register_pass
from shapejit.passes.branches.cost import LaunchCosts, PlannedLaunch, some_of
from shapejit.passes.branches.launches import (
    Section,
    accesses_of,
    kernel_name,
    launches_of,
    write_sections,
)
from shapejit.passes.branches.makespan import Work, makespan, serial
from shapejit.passes.branches.order import Accesses, Order, order_with, sections_of
from shapejit.passes.buckets.bindings import bindings_of
from shapejit.passes.buckets.device import device_of_target
from shapejit.passes.buckets.samples import Samples, spread_samples
from shapejit.passes.host.dispatches import dispatches, interfaces, variants_of
from shapejit.passes.host.regions import BoundLaunch, Regions
from shapejit.symbolic import Expr, map_exprs

#: Microseconds, and part of the time one by one, that running side by side has to save.
LEAST_GAIN: Final = 2.0
LEAST_SHARE: Final = 0.05

#: Part of the time one by one by which it may be slower at a size: less than estimates tell apart.
MOST_LOSS: Final = 0.01

# Sizes of a region at which launches are looked at.
_POINTS: Final = 8

# Where a section borders on launches that run alone: what these take does not matter.
_BORDER: Final = Work(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class _Estimate:
    """What a section takes at some sizes of a region, in microseconds.

    Attributes:
        at: the sizes, as text.
        alone: its launches one by one.
        together: side by side.
    """

    at: str
    alone: float
    together: float

    @property
    def gain(self) -> float:
        """What running side by side saves."""
        return self.alone - self.together


def pays(estimates: Sequence[_Estimate]) -> bool:
    """Whether launches are to run side by side, from what they take at sizes of a region."""
    if not estimates or any(each.gain < -MOST_LOSS * each.alone for each in estimates):
        return False
    mean = sum(each.gain for each in estimates) / len(estimates)
    alone = sum(each.alone for each in estimates) / len(estimates)
    return mean >= max(LEAST_GAIN, LEAST_SHARE * alone)


def branch_count(order: Order, section: range) -> int:
    """How many launches of a section can run at once, at most, as far as chains tell: launches that
    do not continue the one that a launch ahead of them continues."""
    continued: set[int] = set()
    count = 0
    for number in section:
        free = [k for k in order.waits[number] if k in section and k not in continued]
        continued.update(free[:1])
        count += not free
    return count


def _bordered(order: Order, section: range) -> Order:
    """The order of a section's launches, behind one that all wait for, before one that waits for
    all."""
    first = section.start
    inner = [tuple(k - first + 1 for k in order.waits[n] if k in section) or (0,) for n in section]
    waited = {k for waits in inner for k in waits}
    last = tuple(k for k in range(1, len(section) + 1) if k not in waited)
    return Order(((), *inner, last))


class _Planner:
    """Decides for one function."""

    def __init__(self, module: Any, function: Any, accesses: Sequence[Accesses]) -> None:
        self._module, self._accesses = module, accesses
        self._symbols = sir.symbols(module)
        found, known = dispatches(module), interfaces(module)
        self._launches = []
        for op in launches_of(function):
            try:
                dispatch, variants = variants_of(kernel_name(op), found, known)
            except LookupError as error:
                raise PassFailure(op, str(error)) from error
            sizes = tuple(map_exprs(op.attributes["sizes"].value))
            self._launches.append(PlannedLaunch(op, sizes, dispatch, tuple(variants)))
        device = device_of_target(ir.StringAttr(module.attributes["shapejit.target"]).value)
        self._samples = spread_samples(module)
        self._costs = LaunchCosts(module, device, bindings_of(module), self._samples)
        self._regions = Regions.of([BoundLaunch(e.dispatch, e.sizes) for e in self._launches])
        self._points = self._points_of_regions()
        self._known: dict[tuple[str, tuple[Expr, ...], int, int], list[Work]] = {}

    def _points_of_regions(self) -> dict[int, Samples]:
        regions = self._regions.of_samples(self._samples)
        return {
            int(region): some_of(self._samples, np.flatnonzero(regions == region).tolist(), _POINTS)
            for region in np.unique(regions)
        }

    def section(self, launches: range) -> Section | None:
        """The decision for some launches; None if they run side by side nowhere."""
        order = order_with(self._accesses, [launches])
        chosen: dict[int, _Estimate] = {}
        for region, points in self._points.items():
            estimates = self._estimates(launches, _bordered(order, launches), region, points)
            if pays(estimates):
                chosen[region] = max(estimates, key=lambda each: each.gain / each.alone)
        if not chosen:
            return None
        best = max(chosen.values(), key=lambda each: each.gain / each.alone)
        at = f" at {best.at}" if best.at else ""
        reason = (
            f"{branch_count(order, launches)} branches{at}: {best.together:.1f} us, one by one "
            f"{best.alone:.1f} us"
        )
        return Section(launches, tuple(sorted(chosen)), reason)

    def _estimates(
        self, launches: range, order: Order, region: int, points: Samples
    ) -> list[_Estimate]:
        variants = self._regions.variants[region]
        columns = [self._works(self._launches[n], variants[n], region, points) for n in launches]
        found = []
        for number, works in enumerate(zip(*columns, strict=True)):
            together = makespan([_BORDER, *works, _BORDER], order)
            found.append(_Estimate(self._text(points, number), serial(works), together))
        return found

    def _works(
        self, launch: PlannedLaunch, variant: int, region: int, points: Samples
    ) -> list[Work]:
        """What a launch takes at points of a region; the layers of a model have equal ones."""
        key = (launch.dispatch.kernel, launch.sizes, variant, region)
        if key not in self._known:
            self._known[key] = self._costs.works(launch, variant, points)
        return self._known[key]

    def _text(self, points: Samples, number: int) -> str:
        free = [s for s in self._symbols if s.equal_to is None and s.derived is None]
        return ", ".join(f"{s.name} {points.values[s.id][number]}" for s in free)


@register_pass("shapejit-plan-branches")
@dataclass(frozen=True)
class PlanBranches(Pass):
    """Decide which launches run side by side, where the program runs under constant graphs."""

    def run(self, module: Any) -> None:
        try:
            in_blocks = any(interface.block for interface in interfaces(module).values())
        except ValueError as error:
            raise PassFailure(module, f"has an interface that cannot be read: {error}") from error
        if not in_blocks:
            return
        for function in sir.functions(module):
            accesses = accesses_of(module, function)
            found = sections_of(accesses)
            if not found:
                continue
            planner = _Planner(module, function, accesses)
            sections = map(planner.section, found)
            write_sections(function, [section for section in sections if section is not None])
