# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kernels of one kind of products on one GPU: chosen, built in the background, loaded.

A call never waits for the best kernel when another one that serves all sizes is at hand: it gets
that one, and calls after the build get the best. Only the first call of a kind waits. Device memory
for machine code is bounded; the kernels used longest ago go first, and come back from the cache.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from shapejit import logs
from shapejit.cache.cubins import CachedCubin, CubinRecipe, CubinUnit, unit_of
from shapejit.cache.key import text_digest
from shapejit.cache.problem import Problem
from shapejit.codegen.ptxas import find_ptxas
from shapejit.gpu.device import Device
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.ops.gemm_layout import GemmLayout
from shapejit.ops.gemm_spec import GemmKind, KernelText
from shapejit.passes.buckets.problem import GemmTraits
from shapejit.passes.buckets.table import ScheduleTable
from shapejit.passes.nvgpu.schedule import (
    CANDIDATES,
    GENERIC,
    STREAMING_TILES,
    UNALIGNED,
    GemmSchedule,
)
from shapejit.symbolic import Expr

_LOG = logs.logger("bucket")

MAX_VARIANTS = 16
"""Most variants that the products with one weight choose from."""

LOWERING = "shapejit-lower-gemm-to-nvgpu"
"""The pass that makes kernels of them."""

DEFAULT_CODE_BYTES = 256 << 20
"""Most bytes of machine code that stay loaded on a device."""


def starts_early(schedule: GemmSchedule) -> bool:
    """Whether a kernel is launched before the one ahead of it in the stream ends, and waits itself.

    Measured on an H200: kernels that share K gain 4 to 11 % by it, as their CTAs have a cluster to
    set up; some others lose more than that.
    """
    return schedule.split > 1


def suited(schedule: GemmSchedule, n: int) -> GemmSchedule:
    """The schedule for results of n columns, which kernels that take any do not know by
    themselves."""
    if schedule.family == "small_m" and n >= STREAMING_TILES * schedule.rows:
        return _reading_once(schedule)
    return schedule


@functools.cache
def _reading_once(schedule: GemmSchedule) -> GemmSchedule:
    return dataclasses.replace(schedule, once=True)


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
        evictions: kernels that went so far.
        clock: what `LoadedKernel.used` is read from.
    """

    def __init__(self, max_bytes: int = DEFAULT_CODE_BYTES) -> None:
        self._max_bytes = max_bytes
        self.evictions = 0
        self.clock = itertools.count(1)
        self._lock = threading.Lock()
        self._loaded: list[LoadedKernel] = []

    @property
    def max_bytes(self) -> int:
        """The bound; what one call needs is loaded in any case. It takes effect at once."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        with self._lock:
            self._max_bytes = value
            self._trim(None)

    @property
    def bytes(self) -> int:
        """Of all loaded kernels."""
        with self._lock:
            return sum(each.bytes for each in self._loaded)

    def tick(self, loaded: LoadedKernel) -> None:
        """Marks a kernel as used now."""
        loaded.used = next(self.clock)

    def add(self, loaded: LoadedKernel) -> None:
        """Admits a kernel, and lets those used longest ago go if there are too many.

        A graph that one was captured into goes on; see `shapejit.gpu.module`.
        """
        with self._lock:
            self.tick(loaded)
            self._loaded.append(loaded)
            self._trim(loaded)

    def _trim(self, needed: LoadedKernel | None) -> None:
        """Evicts what is beyond the bound, but for one kernel. Called with the lock."""
        total = sum(each.bytes for each in self._loaded)
        for each in sorted(self._loaded, key=lambda one: one.used):
            if total <= self._max_bytes or each is needed:
                break
            total -= each.bytes
            each.kernel = None
            self.evictions += 1
        self._loaded = [each for each in self._loaded if each.kernel is not None]


@dataclass
class KindKernels:
    """The kernels of a kind on a device. Thread-safe.

    Attributes:
        kind: of the products.
        device: where they run.
        memory: bounds what is loaded.
        build: begins a build of a unit, see `CubinBuilder.build_async`.
        early: which kernels start early, see `starts_early`.
    """

    kind: GemmKind
    device: Device
    memory: CodeMemory
    build: Callable[[CubinUnit, bool], Future[CachedCubin]]
    early: Callable[[GemmSchedule], bool] = starts_early
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

    def loaded(self) -> list[LoadedKernel]:
        """The kernels in device memory."""
        with self._lock:
            return [each for each in self._loaded.values() if each.kernel is not None]

    def choose_rows(self, layout: GemmLayout, rows: int) -> GemmSchedule:
        """The schedule that the cost model takes to be the fastest one for a call like `layout`
        with that many rows."""
        if not self.kind.aligned:
            return UNALIGNED
        table = self._table
        if table is None:
            table = self._make_table()
        return suited(table.choose(rows, layout.n, layout.k, layout.batch), layout.n)

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
            suited(each.schedule, layout.n)
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
                self._refused[dataclasses.replace(chosen, once=False)] = str(error)
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
            self._units[schedule] = self._make_unit(schedule)
        return self._units[schedule]

    def _make_unit(self, schedule: GemmSchedule) -> CubinUnit:
        # Keys are made from the text: kernels from the cache do without MLIR, whose import takes
        # longer than all that they need.
        recipe = CubinRecipe(
            schedule=str(schedule),
            arch=self.device.arch,
            alignment=16 if self.kind.aligned else 1,
            programmatic=self.early(schedule),
        )
        return unit_of(problem_of_kind(self.kind), LOWERING, recipe, find_ptxas())


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
        element_bytes=2,
        result_bytes=4 if kind.result == "f32" else 2,
        extra_bytes=kind.extra_bytes,
        weights=len(kind.weights),
        lhs_shared=not any(kind.lhs.moves[dim] for dim in batch),
        rhs_shared=not any(kind.weights[0].moves[dim] for dim in batch),
        lhs_k_major=kind.lhs.unit == k,
        rhs_k_major=all(weight.unit == k for weight in kind.weights),
    )
