# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cache: code by key, from memory, from disk, or built once."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from shapejit import logs
from shapejit.cache import pressure
from shapejit.cache.disk import DiskTier
from shapejit.cache.entry import Header
from shapejit.cache.key import CHOICE, PROGRAM, Key
from shapejit.cache.memory import Lease, MemoryTier
from shapejit.cache.reports import CacheStats

Origin: TypeAlias = Literal["memory", "disk", "built", "shared"]

_LOG = logs.logger("cache")

_PRESSURE_SHARE = 8  # of the bound stays when the system is short of memory
_PRESSURE_SECONDS = 1.0  # between two looks at the system's memory


@dataclass(frozen=True)
class Fetched:
    """Code from the cache.

    Attributes:
        lease: what keeps the code in memory; a program holds it as long as it uses the code.
        origin: where the code was found; ``shared`` if another thread built it meanwhile.
    """

    lease: Lease
    origin: Origin

    @property
    def data(self) -> bytes:
        """The code."""
        return self.lease.data


@dataclass
class _Counters:
    memory_hits: int = 0
    disk_hits: int = 0
    built: int = 0
    shared: int = 0
    failed: int = 0
    rebuilt: int = 0
    refused: int = 0
    read_bytes: int = 0
    built_bytes: int = 0
    build_seconds: float = 0.0
    saved_seconds: float = 0.0
    program_memory_hits: int = 0
    program_disk_hits: int = 0
    program_built: int = 0


class _Flight:
    """A build under way, and its outcome for the threads that wait for it."""

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.done = threading.Event()
        self.lease: Lease | None = None
        self.error: Exception | None = None


class ObjectCache:
    """Code by key. Thread-safe, and usable after a fork in parent and child.

    Args:
        memory_bytes: bound of the memory tier.
        disk: the disk tier, if any.
    """

    def __init__(self, memory_bytes: int, disk: DiskTier | None = None) -> None:
        self._memory = MemoryTier(memory_bytes)
        self._disk = disk
        self._flights: dict[str, _Flight] = {}
        self._counters = _Counters()
        self._pressure_checked = 0.0
        # Held for moments only: never during a build or while the disk is used.
        self._lock = threading.Lock()
        _instances.add(self)

    @property
    def disk(self) -> DiskTier | None:
        """The disk tier, if any."""
        return self._disk

    def reconfigure(self, memory_bytes: int, disk: DiskTier | None) -> None:
        """Change the bound and the disk tier; what is in memory stays."""
        with self._lock:
            before, self._disk = self._disk, disk
            self._memory.limit = memory_bytes
        if before is not None and before is not disk:
            before.close()

    def get(self, key: Key) -> Fetched | None:
        """Code that is there; it is not waited for if another thread is building it."""
        with self._lock:
            lease = self._from_memory(key)
            disk = self._disk
        if lease is not None:
            return _fetched(key, lease, "memory")
        lease = self._from_disk(key, disk)
        return None if lease is None else _fetched(key, lease, "disk")

    def get_or_build(self, key: Key, build: Callable[[], bytes], *, note: str = "") -> Fetched:
        """Code that is there, or else that `build` makes.

        Each key is built once at a time: threads that ask for it meanwhile wait, and get the same
        code or the same exception.

        Args:
            key: what determines the code.
            build: makes it; called without locks held, at most once.
            note: explains the entry to a reader, for example by the IR it is made from.

        Raises:
            RuntimeError: `build` itself asks for this key.
            Exception: what `build` raises.
        """
        digest = key.digest
        while True:
            with self._lock:
                lease = self._from_memory(key)
                flight = self._flights.get(digest)
                if lease is None and flight is None:
                    flight = self._flights[digest] = _Flight()
                    break
            if lease is not None:
                return _fetched(key, lease, "memory")
            assert flight is not None
            if flight.owner == threading.get_ident():
                raise RuntimeError(f"building cache entry {digest[:16]} asks for that entry")
            flight.done.wait()
            if flight.lease is not None:
                with self._lock:
                    self._counters.shared += 1
                return _fetched(key, flight.lease, "shared")
            if flight.error is not None:
                raise flight.error
            # The builder was interrupted, which is no result for others: try again.
        try:
            return self._fetch(key, build, note, flight)
        except Exception as error:
            flight.error = error
            raise
        finally:
            self._land(digest, flight)

    def _fetch(self, key: Key, build: Callable[[], bytes], note: str, flight: _Flight) -> Fetched:
        """From disk, or built. Waiting threads go on before the disk is written."""
        disk = self._disk
        flight.lease = self._from_disk(key, disk)
        if flight.lease is not None:
            return _fetched(key, flight.lease, "disk")
        data, seconds = self._built(key, build)
        with self._lock:
            flight.lease = lease = self._memory.add(key.digest, data, seconds)
        self._land(key.digest, flight)
        self._relieve()
        if disk is not None:
            disk.put(key.digest, Header(key.record(), seconds, time.time(), note), data)
        return _fetched(key, lease, "built")

    def _built(self, key: Key, build: Callable[[], bytes]) -> tuple[bytes, float]:
        start = time.perf_counter()
        try:
            data = build()
            if not isinstance(data, bytes):
                raise TypeError(f"a cache entry must be built as bytes, got {type(data).__name__}")
        except BaseException:
            with self._lock:
                self._counters.failed += _is_kernel(key)
            raise
        seconds = time.perf_counter() - start
        with self._lock:
            # The code that a program consists of is counted where it is built.
            if _is_program(key):
                self._counters.program_built += 1
            elif _is_kernel(key):
                self._counters.built += 1
                self._counters.built_bytes += len(data)
                self._counters.build_seconds += seconds
        return data, seconds

    def _from_memory(self, key: Key) -> Lease | None:
        """Called with the lock held."""
        lease = self._memory.get(key.digest)
        if lease is not None:
            if _is_program(key):
                self._counters.program_memory_hits += 1
            elif _is_kernel(key):
                self._counters.memory_hits += 1
            self._counters.saved_seconds += lease.seconds
        return lease

    def _from_disk(self, key: Key, disk: DiskTier | None) -> Lease | None:
        if disk is None:
            return None
        digest = key.digest
        found = disk.get(digest)
        with self._lock:
            counters = self._counters
            counters.rebuilt += found.status == "damaged"
            counters.refused += found.status == "refused"
            if found.header is None:
                return None
            if _is_program(key):
                counters.program_disk_hits += 1
            elif _is_kernel(key):
                counters.disk_hits += 1
                counters.read_bytes += len(found.payload)
            counters.saved_seconds += found.header.seconds
            lease = self._memory.add(digest, found.payload, found.header.seconds)
        self._relieve()
        return lease

    def _land(self, digest: str, flight: _Flight) -> None:
        """The build is over; may be called twice."""
        with self._lock:
            if self._flights.get(digest) is flight:
                del self._flights[digest]
        flight.done.set()

    def _relieve(self) -> None:
        """Give memory back if the system is short of it."""
        now = time.monotonic()
        with self._lock:
            due = now - self._pressure_checked >= _PRESSURE_SECONDS
            if due:
                self._pressure_checked = now
        if due and pressure.is_short():
            _LOG.info("the system is short of memory: giving code back")
            self.trim(self._memory.limit // _PRESSURE_SHARE)

    def trim(self, memory_bytes: int) -> None:
        """Let go of code in memory until at most so many bytes of it are kept alive."""
        with self._lock:
            self._memory.trim(memory_bytes)

    def clear_memory(self) -> None:
        """Forget all code in memory. Programs keep what they use."""
        with self._lock:
            self._memory.clear()

    def stats(self) -> CacheStats:
        """Counters of this process and what the tiers hold now."""
        disk = self._disk
        entries, size = (0, 0) if disk is None else disk.usage()
        with self._lock:
            memory = self._memory
            return CacheStats(
                **vars(self._counters),
                evicted=memory.evicted,
                evicted_bytes=memory.evicted_bytes,
                pruned=0 if disk is None else disk.pruned,
                pruned_bytes=0 if disk is None else disk.pruned_bytes,
                write_errors=0 if disk is None else disk.write_errors,
                memory_entries=len(memory),
                memory_bytes=memory.kept_bytes,
                pinned_bytes=memory.pinned_bytes,
                memory_limit=memory.limit,
                disk_entries=entries,
                disk_bytes=size,
                disk_limit=0 if disk is None else disk.max_bytes,
                disk_path=None if disk is None else str(disk.root),
                disk_state="off" if disk is None else disk.state,
            )

    # A fork happens while this process holds all locks, so that the child finds whole data. It has
    # none of the other threads: their builds are not waited for, their locks are made new.

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork_in_parent(self) -> None:
        self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._flights = {}
        if self._disk is not None:
            self._disk = self._disk.copy()


def _is_program(key: Key) -> bool:
    return key.kind == PROGRAM


def _is_kernel(key: Key) -> bool:
    """Whether it is of code that counters count one by one."""
    return key.kind not in (PROGRAM, CHOICE)


def _fetched(key: Key, lease: Lease, origin: Origin) -> Fetched:
    if _LOG.isEnabledFor(logging.INFO):
        _LOG.info(
            "%s %s: %s, %d bytes that take %.3f s to build",
            key.kind,
            key.digest[:16],
            origin,
            len(lease.data),
            lease.seconds,
        )
    return Fetched(lease, origin)


_instances: weakref.WeakSet[ObjectCache] = weakref.WeakSet()
_forking = threading.local()  # the caches that this thread has locked for its fork


def _before_fork() -> None:
    _forking.caches = list(_instances)
    for cache in _forking.caches:
        cache._before_fork()


def _after_fork_in_parent() -> None:
    for cache in _forking.caches:
        cache._after_fork_in_parent()
    del _forking.caches


def _after_fork_in_child() -> None:
    for cache in _forking.caches:
        cache._after_fork_in_child()
    del _forking.caches


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
