# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kernels of one kind of products on one GPU: chosen, built in the background, loaded.

A call never waits for the best kernel when another one that serves all sizes is at hand: it gets
that one, and calls after the build get the best. Only the first call of a kind waits. Device memory
for machine code is bounded; the kernels used longest ago go first, and come back from the cache.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shapejit import logs
from shapejit.gpu.device import Device
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.ops.gemm_layout import GemmLayout
from shapejit.ops.gemm_spec import GemmKind, kernel_text
from shapejit.passes.buckets.problem import GemmTraits
from shapejit.passes.buckets.table import ScheduleTable
from shapejit.passes.nvgpu.schedule import (
    CANDIDATES,
    GENERIC,
    UNALIGNED,
    GemmSchedule,
)
from shapejit.symbolic import Expr

if TYPE_CHECKING:
    from shapejit.cache.cubins import CachedCubin, CubinUnit

_LOG = logs.logger("bucket")

MAX_VARIANTS = 16
"""Most variants that the products with one weight choose from."""

DEFAULT_CODE_BYTES = 256 << 20
"""Most bytes of machine code that stay loaded on a device."""


class LoadedKernel:
    """A kernel in device memory, until it is evicted.

    Attributes:
        kernel: to launch; None once it was evicted.
        schedule: how it works.
        values: the expressions of its interface.
        used: when it was used last, on the clock of its `CodeMemory`.
    """

    __slots__ = ("cubin", "kernel", "schedule", "used", "values")

    def __init__(self, schedule: GemmSchedule, cubin: CachedCubin, device: Device) -> None:
        self.schedule = schedule
        # Holds the entry of the cache, so that its machine code is not read again and again.
        self.cubin = cubin
        self.kernel: Kernel | None = Kernel(cubin.interface, Module(cubin.cubin, device))
        self.values = tuple(Expr.parse(text) for text in cubin.interface.values)
        self.used = 0

    @property
    def bytes(self) -> int:
        """Size of its machine code."""
        return 0 if self.kernel is None else self.kernel.module.image_bytes


class CodeMemory:
    """The machine code that stays loaded on a device, bounded in bytes.

    Attributes:
        max_bytes: the bound. What one call needs is loaded in any case.
        evictions: kernels that went so far.
    """

    def __init__(self, max_bytes: int = DEFAULT_CODE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.evictions = 0
        self._clock = itertools.count(1)
        self._lock = threading.Lock()
        self._loaded: list[LoadedKernel] = []

    @property
    def bytes(self) -> int:
        """Of all loaded kernels."""
        with self._lock:
            return sum(each.bytes for each in self._loaded)

    def tick(self, loaded: LoadedKernel) -> None:
        """Marks a kernel as used now."""
        loaded.used = next(self._clock)

    def add(self, loaded: LoadedKernel) -> None:
        """Admits a kernel, and lets those used longest ago go if there are too many.

        A graph that one was captured into goes on; see `shapejit.gpu.module`.
        """
        with self._lock:
            self.tick(loaded)
            self._loaded = [each for each in self._loaded if each.kernel is not None]
            self._loaded.append(loaded)
            total = sum(each.bytes for each in self._loaded)
            for each in sorted(self._loaded, key=lambda one: one.used):
                if total <= self.max_bytes or each is loaded:
                    break
                total -= each.bytes
                each.kernel = None
                self.evictions += 1


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
    build: Callable[[CubinUnit, bool], Future[CachedCubin]]
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _loaded: dict[GemmSchedule, LoadedKernel] = field(default_factory=dict)
    _units: dict[GemmSchedule, CubinUnit] = field(default_factory=dict)
    _building: dict[GemmSchedule, Future[CachedCubin]] = field(default_factory=dict)
    _refused: dict[GemmSchedule, str] = field(default_factory=dict)
    _table: ScheduleTable | None = None

    @property
    def refused(self) -> dict[GemmSchedule, str]:
        """Schedules that cannot be built for this kind, and why."""
        with self._lock:
            return dict(self._refused)

    def choose_rows(self, layout: GemmLayout, rows: int) -> GemmSchedule:
        """The schedule that the cost model takes to be the fastest one for a call like `layout`
        with that many rows."""
        if not self.kind.aligned:
            return UNALIGNED
        table = self._table
        if table is None:
            table = self._make_table()
        return table.choose(rows, layout.n, layout.k, layout.batch)

    def _make_table(self) -> ScheduleTable:
        with self._lock:
            if self._table is None:
                candidates = [each for each in CANDIDATES if each not in self._refused]
                self._table = ScheduleTable(
                    _traits(self.kind), candidates, max_variants=MAX_VARIANTS
                )
            return self._table

    def schedules(self, layout: GemmLayout, rows: tuple[int, int]) -> list[GemmSchedule]:
        """The schedules that `choose_rows` gives for m from ``rows[0]`` to ``rows[1]``."""
        if not self.kind.aligned:
            return [UNALIGNED]
        low, high = rows
        intervals = self._make_table().intervals(layout.n, layout.k, layout.batch)
        found = [
            each.schedule
            for each in intervals
            if each.low <= high and (each.high is None or each.high >= low)
        ]
        return list(dict.fromkeys(found))

    def get(self, layout: GemmLayout, rows: int, *, final: bool) -> tuple[LoadedKernel, bool]:
        """The kernel for a call, and whether it is the one that is chosen for it.

        Args:
            layout: of a call like it.
            rows: its m.
            final: whether to wait for the chosen one.

        Raises:
            Exception: what `build_cubin` raised, if no kernel can be built.
        """
        chosen = self.choose_rows(layout, rows)
        if (loaded := self._find(chosen)) is not None:
            return loaded, True
        future = self._begin(chosen, urgent=final)
        if final or future.done():
            return self._finish(chosen, future, layout, rows, final=final)
        if (loaded := self._find(GENERIC)) is not None:
            return loaded, False
        # The first call of a kind: whatever is there first.
        generic = self._begin(GENERIC, urgent=True)
        wait((future, generic), return_when=FIRST_COMPLETED)
        if future.done() or generic.exception() is not None:
            return self._finish(chosen, future, layout, rows, final=final)
        return self._load(GENERIC, generic), False

    def begin(self, schedules: list[GemmSchedule]) -> list[Future[CachedCubin]]:
        """Begins the builds of several kernels."""
        return [self._begin(each, urgent=True) for each in schedules]

    def load(self, schedule: GemmSchedule) -> LoadedKernel:
        """A kernel, after it was built.

        Raises:
            Exception: what `build_cubin` raised.
        """
        return self._find(schedule) or self._load(schedule, self._begin(schedule, urgent=True))

    def _finish(
        self,
        chosen: GemmSchedule,
        future: Future[CachedCubin],
        layout: GemmLayout,
        rows: int,
        *,
        final: bool,
    ) -> tuple[LoadedKernel, bool]:
        """The chosen kernel when its build ends; another one if it cannot be built."""
        error = future.exception()
        if error is not None:
            if not self.kind.aligned or chosen == GENERIC:
                raise error
            _LOG.warning("%s cannot be built; it is not used for %s: %s", chosen, self.kind, error)
            with self._lock:
                self._refused[chosen] = str(error)
                self._table = None
            return self.get(layout, rows, final=final)
        return self._load(chosen, future), True

    def _find(self, schedule: GemmSchedule) -> LoadedKernel | None:
        loaded = self._loaded.get(schedule)
        return loaded if loaded is not None and loaded.kernel is not None else None

    def _begin(self, schedule: GemmSchedule, *, urgent: bool) -> Future[CachedCubin]:
        with self._lock:
            if (loaded := self._find(schedule)) is not None:  # by another thread, meanwhile
                ready: Future[CachedCubin] = Future()
                ready.set_result(loaded.cubin)
                return ready
            running = self._building.get(schedule)
            if running is not None and (not running.done() or running.exception() is None):
                return running
            future = self.build(self._unit(schedule), urgent)
            self._building[schedule] = future
            return future

    def _load(self, schedule: GemmSchedule, future: Future[CachedCubin]) -> LoadedKernel:
        cubin = future.result()
        with self._lock:
            if (loaded := self._find(schedule)) is not None:
                return loaded
            loaded = LoadedKernel(schedule, cubin, self.device)
            self._loaded[schedule] = loaded
            # Once it is evicted, the cache is asked again, which may have let it go, too.
            self._building.pop(schedule, None)
        self.memory.add(loaded)
        return loaded

    def _unit(self, schedule: GemmSchedule) -> CubinUnit:
        if schedule not in self._units:
            self._units[schedule] = _unit(self.kind, schedule, self.device.arch)
        return self._units[schedule]


def _unit(kind: GemmKind, schedule: GemmSchedule, arch: str) -> CubinUnit:
    # They bring MLIR, which calls of kernels that are loaded already do without.
    import mlir.ir as ir

    from shapejit import ir as sir
    from shapejit.cache.cubins import CubinRecipe, cubin_unit
    from shapejit.codegen.ptx import private_context
    from shapejit.codegen.ptxas import find_ptxas

    recipe = CubinRecipe(
        schedule=str(schedule),
        arch=arch,
        alignment=16 if kind.aligned else 1,
        programmatic=False,
    )
    with private_context():
        module = ir.Module.parse(kernel_text(kind))
        [kernel] = sir.kernels(module).values()
        return cubin_unit(kernel, recipe, find_ptxas())


def _traits(kind: GemmKind) -> GemmTraits:
    batch = range(kind.batch_dims)
    k = kind.batch_dims + 2
    return GemmTraits(
        element_bytes=2,
        result_bytes=4 if kind.result == "f32" else 2,
        extra_bytes=kind.extra_bytes,
        weights=len(kind.weights),
        lhs_shared=not any(kind.lhs.moves[dim] for dim in batch),
        rhs_shared=not any(kind.weights[0].moves[dim] for dim in batch),
        lhs_k_major=kind.lhs.unit == k,
        rhs_k_major=all(weight.unit == k for weight in kind.weights),
    )
