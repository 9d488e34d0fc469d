# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kernels of one kind of products on one GPU: which one serves which sizes.

How they are built and loaded is the same for all operators, see `shapejit.ops.kernels`.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from shapejit import logs
from shapejit.cache.cubins import CachedCubin, CubinRecipe, CubinUnit, unit_of
from shapejit.cache.key import text_digest
from shapejit.cache.problem import Problem
from shapejit.codegen.ptxas import find_ptxas
from shapejit.gpu.device import Device
from shapejit.gpu.interface import KernelInterface
from shapejit.ops.choices import recall
from shapejit.ops.gemm_layout import GemmLayout
from shapejit.ops.gemm_spec import GemmKind, KernelText
from shapejit.ops.kernels import Build, CodeMemory, LoadedKernel, Variants
from shapejit.passes.buckets.problem import GemmTraits
from shapejit.passes.buckets.table import ScheduleTable
from shapejit.passes.nvgpu.body_cost import body_cycles
from shapejit.passes.nvgpu.schedule import (
    ALL_CANDIDATES,
    GENERIC,
    SIMT_GENERIC,
    STREAMING_TILES,
    UNALIGNED,
    GemmSchedule,
    candidates_for,
)

_LOG = logs.logger("bucket")

MAX_VARIANTS = 20
"""Most variants that the products with one weight choose from."""

LOWERING = "shapejit-lower-gemm-to-nvgpu"
"""The pass that makes kernels of them."""


def suited(schedule: GemmSchedule, n: int) -> GemmSchedule:
    """The schedule for results of n columns, which kernels that take any do not know by
    themselves."""
    if schedule.family == "small_m" and n >= STREAMING_TILES * schedule.rows:
        return _reading_once(schedule)
    return schedule


@functools.cache
def _reading_once(schedule: GemmSchedule) -> GemmSchedule:
    return dataclasses.replace(schedule, once=True)


@dataclass
class KindKernels:
    """The kernels of a kind on a device. Thread-safe.

    Attributes:
        kind: of the products.
        device: where they run.
        memory: bounds what is loaded.
        build: begins a build of a unit, see `CubinBuilder.build_async`.
    """

    kind: GemmKind
    device: Device
    memory: CodeMemory
    build: Build
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _refused: dict[GemmSchedule, str] = field(default_factory=dict)
    _table: ScheduleTable | None = None

    def __post_init__(self) -> None:
        # No bound method: kernels of a kind that is gone go with it, without a garbage collection.
        make_unit = functools.partial(_unit, self.kind, self.device)
        self._variants = Variants(self.device, self.memory, self.build, make_unit, _interface)

    @property
    def refused(self) -> dict[GemmSchedule, str]:
        """Schedules that cannot be built for this kind, and why."""
        with self._lock:
            return dict(self._refused)

    def loaded(self) -> list[LoadedKernel[GemmSchedule]]:
        """The kernels in device memory."""
        return self._variants.loaded()

    def choose_rows(self, layout: GemmLayout, rows: int) -> GemmSchedule:
        """The schedule that the cost model takes to be the fastest one for a call like `layout`
        with that many rows."""
        if self._only_unaligned:
            return UNALIGNED
        table = self._table
        if table is None:
            table = self._make_table()
        return suited(table.choose(rows, layout.n, layout.k, layout.batch), layout.n)

    def by_rows(self, layout: GemmLayout) -> list[tuple[int, GemmSchedule]]:
        """What `choose_rows` gives, from which number of rows on; the first from 0 on."""
        if self._only_unaligned:
            return [(0, UNALIGNED)]
        intervals = self._make_table().intervals(layout.n, layout.k, layout.batch)
        return [(each.low, suited(each.schedule, layout.n)) for each in intervals]

    def _make_table(self) -> ScheduleTable:
        with self._lock:
            if self._table is None:
                traits = _traits(self.kind)
                known = candidates_for(
                    traits, ALL_CANDIDATES, maps=self.kind.aligned, rounds=self.kind.tf32
                )
                candidates = [each for each in known if each not in self._refused]
                self._table = ScheduleTable(
                    traits, candidates, max_variants=MAX_VARIANTS, early=True
                )
            return self._table

    @property
    def _only_unaligned(self) -> bool:
        """Whether one schedule alone serves the kind."""
        return self._generic == UNALIGNED

    @property
    def _generic(self) -> GemmSchedule:
        """What serves all calls of the kind."""
        if self.kind.is_float:
            return SIMT_GENERIC
        return GENERIC if self.kind.aligned else UNALIGNED

    def schedules(self, layout: GemmLayout, rows: tuple[int, int]) -> list[GemmSchedule]:
        """The schedules that `choose_rows` gives for m from ``rows[0]`` to ``rows[1]``."""
        if self._only_unaligned:
            return [UNALIGNED]
        low, high = rows
        table = self._make_table()
        recall(table, layout.n, layout.k, layout.batch)
        intervals = table.intervals(layout.n, layout.k, layout.batch)
        found = [
            suited(each.schedule, layout.n)
            for each in intervals
            if each.low <= high and (each.high is None or each.high >= low)
        ]
        return list(dict.fromkeys(found))

    def get(
        self, layout: GemmLayout, rows: int, *, final: bool
    ) -> tuple[LoadedKernel[GemmSchedule], bool]:
        """The kernel for a call, and whether it is the one that is chosen for it.

        Args:
            layout: of a call like it.
            rows: its m.
            final: whether to wait for the chosen one.

        Raises:
            Exception: what `build_cubin` raised, if no kernel can be built.
        """
        return self._variants.obtain(
            lambda: self.choose_rows(layout, rows), self._generic, self._refuse, final=final
        )

    def begin(self, schedules: list[GemmSchedule]) -> list[Future[CachedCubin]]:
        """Begins the builds of several kernels, of those first that take longest."""
        longest_first = sorted(schedules, key=_build_work, reverse=True)
        begun = {each: self._variants.begin(each, urgent=True) for each in longest_first}
        return [begun[each] for each in schedules]

    def load(self, schedule: GemmSchedule) -> LoadedKernel[GemmSchedule]:
        """A kernel, after it was built.

        Raises:
            Exception: what `build_cubin` raised.
        """
        return self._variants.load(schedule)

    def _refuse(self, chosen: GemmSchedule, error: BaseException) -> bool:
        """Chooses a schedule that cannot be built no more; says whether there is another one."""
        if chosen == self._generic:
            return False
        _LOG.warning("%s cannot be built; it is not used for %s: %s", chosen, self.kind, error)
        with self._lock:
            self._refused[dataclasses.replace(chosen, once=False, early=False)] = str(error)
            self._table = None
        return True


def _build_work(schedule: GemmSchedule) -> int:
    """What a kernel's build takes, in no unit: most of the code is about sums."""
    return schedule.rows * schedule.columns * (2 if schedule.turns else 1)


def _unit(kind: GemmKind, device: Device, schedule: GemmSchedule) -> CubinUnit:
    # Keys are made from the text: kernels from the cache do without MLIR, whose import takes longer
    # than all that they need. Code that can start early serves launches that do not, too.
    recipe = CubinRecipe(
        schedule=str(dataclasses.replace(schedule, early=False)),
        arch=device.arch,
        alignment=1 if schedule.takes_any_address else 16,
        programmatic=True,
    )
    return unit_of(problem_of_kind(kind), LOWERING, recipe, find_ptxas())


def _interface(schedule: GemmSchedule, built: KernelInterface) -> KernelInterface:
    """How a schedule's code is launched."""
    return dataclasses.replace(built, programmatic=schedule.early)


@functools.lru_cache(maxsize=64)
def problem_of_kind(kind: GemmKind) -> Problem:
    """What the kernels of a kind compute."""
    written = KernelText(kind)
    return Problem(
        kind="gemm",
        text=written.text("gemm"),
        dtypes=(*(operand.element for operand in kind.operands), kind.result),
        layouts=tuple(map(written.map, range(len(kind.operands)))),
        epilogue=text_digest(written.body()),
    )


def _traits(kind: GemmKind) -> GemmTraits:
    batch = range(kind.batch_dims)
    k = kind.batch_dims + 2
    return GemmTraits(
        element_bytes=4 if kind.is_float else 2,
        result_bytes=4 if kind.result == "f32" else 2,
        extra_bytes=kind.extra_bytes,
        weights=len(kind.weights),
        lhs_shared=not any(kind.lhs.moves[dim] for dim in batch),
        rhs_shared=not any(kind.weights[0].moves[dim] for dim in batch),
        lhs_k_major=kind.lhs.unit == k,
        rhs_k_major=all(weight.unit == k for weight in kind.weights),
        body_cycles=body_cycles(KernelText(kind).body_ops()),
    )
