# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for GPUs out of the cache, or built in the background.

::

    builder = cubin_builder()
    future = builder.build_async(unit)             # a caller that has something else to run
    kernels = builder.build_all(units)             # a compilation, which needs them all

However many ask for a key, it is built once, and no more builds run at a time than
``compile_workers`` says. What fails is told to all that asked, and tried again for the next.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from shapejit.cache import object_cache
from shapejit.cache.cubins import CachedCubin, CubinEntry, CubinUnit
from shapejit.cache.key import VariantKey
from shapejit.cache.objects import ObjectCache
from shapejit.codegen.workers import Job, Workers
from shapejit.knobs import knobs

if TYPE_CHECKING:
    from shapejit.dump import Dump


@dataclass(frozen=True)
class BuildStats:
    """What a builder did. Counters run from its creation.

    Attributes:
        requests: kernels asked for: the sum of the six that follow.
        memory, disk: found there.
        built: built for this request.
        shared: given by a build that another request had begun.
        failed: requests that ended in an error.
        pending: requests that are not answered yet.
        running: builds under way.
        most_running: most builds that were under way at a time.
        build_seconds: time spent in builds, summed over threads.
    """

    requests: int
    memory: int
    disk: int
    built: int
    shared: int
    failed: int
    pending: int
    running: int
    most_running: int
    build_seconds: float


@dataclass
class _Flight:
    """A build that was asked for and is not over.

    Attributes:
        future: of the request that began it.
        followers: of the requests for the same key since then.
        job: its place in the queue; None until it has one.
        urgent: whether that is before all that are not.
    """

    future: Future[CachedCubin]
    followers: list[Future[CachedCubin]] = field(default_factory=list)
    job: Job | None = None
    urgent: bool = False


BuildFunction: TypeAlias = "Callable[[CubinUnit, Dump | None], CubinEntry]"


def _build(unit: CubinUnit, dump: Dump | None) -> CubinEntry:
    # It brings MLIR, which kernels from the cache do without.
    from shapejit.codegen.cubin import build_cubin

    return build_cubin(unit, dump)


class CubinBuilder:
    """Kernels by unit, from a cache or built in the background. Thread-safe, usable after a fork.

    Futures cannot be cancelled: others may wait for the same build. A forked child does not get the
    results of its parent's builds; it asks again.

    Args:
        cache: gives the cache to use; asked for each request.
        dump: receives what every build makes.
        workers: the threads that build; shared by the builders of a process.
        build: builds one kernel.
    """

    def __init__(
        self,
        cache: Callable[[], ObjectCache] = object_cache,
        *,
        dump: Dump | None = None,
        workers: Workers | None = None,
        build: BuildFunction = _build,
    ) -> None:
        self._cache = cache
        self._dump = dump
        self._workers = process_workers if workers is None else workers
        self._build = build
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight] = {}
        self._counts = dict.fromkeys(("memory", "disk", "built", "shared", "failed"), 0)
        self._requests = 0
        self._pending = 0
        self._running = 0
        self._most_running = 0
        self._build_seconds = 0.0

    def build_async(self, unit: CubinUnit, *, urgent: bool = False) -> Future[CachedCubin]:
        """A kernel, now if the cache has it, and else when it is built.

        Args:
            unit: what to build.
            urgent: before all builds that are not.

        Returns:
            A future; its exception is what `build_cubin` raises.
        """
        digest = unit.key.digest
        future = _uncancellable()
        with self._lock:
            self._requests += 1
            self._pending += 1
            if self._join(digest, future, urgent):
                return future
        try:
            fetched = self._cache().get(unit.key)
            found = None if fetched is None else CachedCubin.of(unit.key, fetched)
        except Exception as error:
            self._settle([future], error)
            return future
        if found is not None:
            self._settle([future], found)
            return future
        with self._lock:
            # Another request may have come first while the disk was looked at.
            if self._join(digest, future, urgent):
                return future
            flight = self._flights[digest] = _Flight(future, urgent=urgent)
        try:
            flight.job = self._workers.submit(
                lambda: self._run(unit, flight), lambda: self._drop(unit, flight), urgent=urgent
            )
        except Exception as error:  # the limit cannot be had
            self._settle(self._landed(unit, flight), error)
            return future
        if flight.urgent and not urgent:  # since a request that came while it had no place yet
            self._workers.hasten(flight.job)
        return future

    def build_all(self, units: Iterable[CubinUnit]) -> dict[VariantKey, CachedCubin]:
        """Several kernels by key, after all were found or built; before what is not urgent.

        Not for callbacks of futures: they run in the threads that are waited for.

        Raises:
            Exception: what `build_cubin` raised for the first unit that failed; the others were
                built all the same.
        """
        wanted = {unit.key: unit for unit in units}
        futures = {key: self.build_async(unit, urgent=True) for key, unit in wanted.items()}
        wait(futures.values())
        return {key: future.result() for key, future in futures.items()}

    def stats(self) -> BuildStats:
        """Counters, and what is under way."""
        with self._lock:
            return BuildStats(
                requests=self._requests,
                **self._counts,
                pending=self._pending,
                running=self._running,
                most_running=self._most_running,
                build_seconds=self._build_seconds,
            )

    def _join(self, digest: str, future: Future[CachedCubin], urgent: bool) -> bool:
        """Adds a request to a build that is not over, if there is one. Called with the lock."""
        flight = self._flights.get(digest)
        if flight is None:
            return False
        flight.followers.append(future)
        if urgent and not flight.urgent:
            flight.urgent = True
            if flight.job is not None:
                self._workers.hasten(flight.job)
        return True

    # In a thread of the workers.

    def _run(self, unit: CubinUnit, flight: _Flight) -> None:
        try:
            fetched = self._cache().get_or_build(
                unit.key, lambda: self._timed(unit).encode(), note=unit.text
            )
            result = CachedCubin.of(unit.key, fetched)
        except BaseException as error:
            self._settle(self._landed(unit, flight), error)
        else:
            self._settle(self._landed(unit, flight), result)

    def _timed(self, unit: CubinUnit) -> CubinEntry:
        start = time.perf_counter()
        with self._lock:
            self._running += 1
            self._most_running = max(self._most_running, self._running)
        try:
            return self._build(unit, self._dump)
        finally:
            with self._lock:
                self._running -= 1
                self._build_seconds += time.perf_counter() - start

    def _drop(self, unit: CubinUnit, flight: _Flight) -> None:
        error = RuntimeError(f"{unit.name} is not built, since the interpreter ends")
        self._settle(self._landed(unit, flight), error)

    def _landed(self, unit: CubinUnit, flight: _Flight) -> list[Future[CachedCubin]]:
        """Takes a build off the list; gives the futures that wait for it, its own first."""
        with self._lock:
            if self._flights.get(unit.key.digest) is flight:
                del self._flights[unit.key.digest]
            return [flight.future, *flight.followers]

    def _settle(
        self, futures: list[Future[CachedCubin]], result: CachedCubin | BaseException
    ) -> None:
        """Answers requests, and counts the answers before anyone sees them."""
        first, *others = futures
        failed = isinstance(result, BaseException)
        with self._lock:
            self._pending -= len(futures)
            self._counts["failed"] += len(futures) if failed else 0
            if isinstance(result, CachedCubin):
                self._counts[result.origin] += 1
                self._counts["shared"] += len(others)
        if isinstance(result, BaseException):
            for future in futures:
                future.set_exception(result)
            return
        first.set_result(result)
        for future in others:
            future.set_result(dataclasses.replace(result, origin="shared"))


def _uncancellable() -> Future[CachedCubin]:
    future: Future[CachedCubin] = Future()
    future.set_running_or_notify_cancel()
    return future


# The builder of this process.

process_workers = Workers(knobs.compile_threads)
"""The threads that build kernels: `compile_workers` at most."""


def cubin_builder() -> CubinBuilder:
    """The builder of this process.

    With the knob `dump_to` it does without the cache, so that a dump shows every kernel.
    """
    folder = knobs.dump_to
    with _builders_lock:
        if folder not in _builders:
            _builders[folder] = CubinBuilder() if folder is None else dumping_builder(folder)
        return _builders[folder]


def dumping_builder(folder: str, name: str = "gpu-kernels") -> CubinBuilder:
    """A builder that leaves what it builds in a new folder under `folder`, and keeps no cache."""
    from shapejit.dump import Dump

    cache = ObjectCache(0)
    return CubinBuilder(lambda: cache, dump=Dump(folder, name))


_builders: dict[str | None, CubinBuilder] = {}
_builders_lock = threading.Lock()
_instances: weakref.WeakSet[CubinBuilder] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A child has none of the threads, so nothing that they build will come."""
    global _builders_lock
    _builders_lock = threading.Lock()
    for builder in list(_instances):
        builder._reset()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = [
    "BuildStats",
    "CubinBuilder",
    "cubin_builder",
    "dumping_builder",
    "process_workers",
]
