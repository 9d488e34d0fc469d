# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kernels of one kind of operator calls on one GPU: built in the background, loaded.

A call never waits for the best kernel when another one that serves all sizes is at hand: it gets
that one, and calls after the build get the best. Only the first call of a kind waits. Device memory
for machine code is bounded; the kernels used longest ago go first, and come back from the cache.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from typing import Generic, TypeAlias, TypeVar

from shapejit.cache.cubins import CachedCubin, CubinUnit
from shapejit.codegen.builder import cubin_builder
from shapejit.codegen.ptxas import find_ptxas
from shapejit.gpu.device import Device
from shapejit.gpu.interface import KernelInterface
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.symbolic import Expr

DEFAULT_CODE_BYTES = 256 << 20
"""Most bytes of machine code that stay loaded on a device."""

Build: TypeAlias = Callable[[CubinUnit, bool], "Future[CachedCubin]"]
"""Begins a build of a unit, urgent or not; see `CubinBuilder.build_async`."""

S = TypeVar("S", bound=Hashable)


class LoadedKernel(Generic[S]):
    """A kernel in device memory, until it is evicted.

    Attributes:
        kernel: to launch; None once it was evicted.
        schedule: how it works.
        values: the expressions of its interface.
        used: when it was used last, on the clock of its `CodeMemory`.
    """

    __slots__ = ("cubin", "kernel", "schedule", "used", "values")

    def __init__(
        self, schedule: S, cubin: CachedCubin, interface: KernelInterface, device: Device
    ) -> None:
        self.schedule = schedule
        # Holds the entry of the cache, so that its machine code is not read again and again.
        self.cubin = cubin
        self.kernel: Kernel | None = Kernel(interface, Module(cubin.cubin, device))
        self.values = tuple(Expr.parse(text) for text in interface.values)
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
        self._loaded: list[LoadedKernel[Hashable]] = []

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

    def tick(self, loaded: LoadedKernel[S]) -> None:
        """Marks a kernel as used now."""
        loaded.used = next(self.clock)

    def add(self, loaded: LoadedKernel[S]) -> None:
        """Admits a kernel, and lets those used longest ago go if there are too many.

        A graph that one was captured into goes on; see `shapejit.gpu.module`.
        """
        with self._lock:
            self.tick(loaded)
            self._loaded.append(loaded)  # type: ignore[arg-type]
            self._trim(loaded)

    def _trim(self, needed: LoadedKernel[S] | None) -> None:
        """Evicts what is beyond the bound, but for one kernel. Called with the lock."""
        total = sum(each.bytes for each in self._loaded)
        for each in sorted(self._loaded, key=lambda one: one.used):
            if total <= self._max_bytes or each is needed:
                break
            total -= each.bytes
            each.kernel = None
            self.evictions += 1
        self._loaded = [each for each in self._loaded if each.kernel is not None]


class Variants(Generic[S]):
    """The kernels of a kind on a device, by their schedules. Thread-safe.

    Args:
        device: where they run.
        memory: bounds what is loaded.
        build: begins a build.
        make_unit: the unit of a schedule's kernel.
        interface: how a schedule's kernel is launched, from what was built; as that says if None.
    """

    def __init__(
        self,
        device: Device,
        memory: CodeMemory,
        build: Build,
        make_unit: Callable[[S], CubinUnit],
        interface: Callable[[S, KernelInterface], KernelInterface] | None = None,
    ) -> None:
        self._device, self._memory, self._build = device, memory, build
        self._make_unit = make_unit
        self._interface = interface or (lambda _, built: built)
        self._lock = threading.RLock()
        self._loaded: dict[S, LoadedKernel[S]] = {}
        self._units: dict[S, CubinUnit] = {}
        self._building: dict[S, Future[CachedCubin]] = {}

    def loaded(self) -> list[LoadedKernel[S]]:
        """The kernels in device memory."""
        with self._lock:
            return [each for each in self._loaded.values() if each.kernel is not None]

    def find(self, schedule: S) -> LoadedKernel[S] | None:
        """A kernel, if it is in device memory."""
        loaded = self._loaded.get(schedule)
        return loaded if loaded is not None and loaded.kernel is not None else None

    def begin(self, schedule: S, *, urgent: bool) -> Future[CachedCubin]:
        """Begins a kernel's build, unless it runs or is done."""
        with self._lock:
            if (loaded := self.find(schedule)) is not None:  # by another thread, meanwhile
                ready: Future[CachedCubin] = Future()
                ready.set_result(loaded.cubin)
                return ready
            running = self._building.get(schedule)
            if running is not None and (not running.done() or running.exception() is None):
                return running
            if schedule not in self._units:
                self._units[schedule] = self._make_unit(schedule)
            future = self._build(self._units[schedule], urgent)
            self._building[schedule] = future
            return future

    def load(self, schedule: S) -> LoadedKernel[S]:
        """A kernel, after it was built.

        Raises:
            Exception: what its build raised.
        """
        found = self.find(schedule)
        return found or self._load(schedule, self.begin(schedule, urgent=True))

    def obtain(
        self,
        choose: Callable[[], S],
        generic: S,
        refuse: Callable[[S, BaseException], bool],
        *,
        final: bool,
    ) -> tuple[LoadedKernel[S], bool]:
        """The kernel for a call, and whether it is the one that is chosen for it.

        Args:
            choose: the schedule that is best for the call.
            generic: one that serves all calls of the kind.
            refuse: told of a schedule that cannot be built, and why; says whether `choose` will
                give another one.
            final: whether to wait for the chosen one.

        Raises:
            Exception: what the build of the chosen kernel raised, if there is no other one.
        """
        chosen = choose()
        if (loaded := self.find(chosen)) is not None:
            return loaded, True
        future = self.begin(chosen, urgent=final)
        if not final and not future.done():
            if (loaded := self.find(generic)) is not None:
                return loaded, False
            # The first call of a kind: whatever is there first.
            other = self.begin(generic, urgent=True)
            wait((future, other), return_when=FIRST_COMPLETED)
            if not future.done() and other.exception() is None:
                return self._load(generic, other), False
        if (error := future.exception()) is None:
            return self._load(chosen, future), True
        if not refuse(chosen, error):
            raise error
        return self.obtain(choose, generic, refuse, final=final)

    def _load(self, schedule: S, future: Future[CachedCubin]) -> LoadedKernel[S]:
        cubin = future.result()
        with self._lock:
            if (loaded := self.find(schedule)) is not None:
                return loaded
            interface = self._interface(schedule, cubin.interface)
            loaded = LoadedKernel(schedule, cubin, interface, self._device)
            self._loaded[schedule] = loaded
            # Once it is evicted, the cache is asked again, which may have let it go, too.
            self._building.pop(schedule, None)
        self._memory.add(loaded)
        return loaded


@contextmanager
def asking_ptxas() -> Iterator[None]:
    """Has ``ptxas`` say its version, which keys need, while the block runs."""

    def ask() -> None:
        with suppress(Exception):  # whoever needs it is told
            find_ptxas()

    thread = threading.Thread(target=ask, name="shapejit-ptxas")
    with suppress(RuntimeError):  # no more threads, or the interpreter ends: it is asked later
        thread.start()
    try:
        yield
    finally:
        if thread.ident is not None:
            thread.join()


@functools.cache
def code_memory(device_number: int) -> CodeMemory:
    """What bounds the machine code of operators' kernels on a device."""
    return CodeMemory()


def begin_build(unit: CubinUnit, urgent: bool) -> Future[CachedCubin]:
    """Begins a build in the process's pool of workers."""
    return cubin_builder().build_async(unit, urgent=urgent)
