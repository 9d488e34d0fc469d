# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Working memory of calls, kept from one call to the next, within bounds. Thread-safe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_SMALLEST = 4096

LARGE = 16 << 20
"""Bytes of an arena from which on it is asked for by itself: torch's allocator takes memory for
several smaller tensors at once, which costs less than to ask for each."""


class ArenaError(RuntimeError):
    """torch cannot allocate working memory; the text says why."""


class ArenaPool:
    """Lends each running call on a CPU an arena of its own.

    An arena that comes back is kept for the next call, up to `limit` idle ones (by default one
    for each CPU this process may use); further ones are freed. An idle arena that is too small is
    replaced by a larger one, so the memory held is at most `limit` times the largest need so far,
    plus that of the calls that run now.

    Args:
        limit: most arenas to keep while idle.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = len(os.sched_getaffinity(0)) if limit is None else limit
        self._lock = threading.Lock()
        self._idle: list[Tensor] = []
        self._lent = 0

    @property
    def bytes(self) -> int:
        """Bytes held now, by idle arenas and by those in use."""
        with self._lock:
            return self._lent + sum(arena.numel() for arena in self._idle)

    def acquire(self, size: int) -> Tensor:
        """An arena of at least `size` bytes: uint8, 1-d, aligned to 64 bytes.

        Raises:
            ArenaError: torch cannot allocate it.
        """
        with self._lock:
            arena = self._idle.pop() if self._idle else None
            if arena is not None and arena.numel() >= size:
                self._lent += arena.numel()
                return arena
        del arena  # too small: give its memory back before asking for more
        arena = new_arena(_rounded(size), torch.device("cpu"))
        with self._lock:
            self._lent += arena.numel()
        return arena

    def release(self, arena: Tensor) -> None:
        """Take back an arena from `acquire`."""
        with self._lock:
            self._lent -= arena.numel()
            if len(self._idle) < self._limit:
                self._idle.append(arena)

    def release_idle(self) -> None:
        """Free the arenas that no call has."""
        with self._lock:
            self._idle.clear()


class StreamArena(NamedTuple):
    """Working memory of a stream's calls; to be held until a call that uses it is queued.

    Attributes:
        size: in bytes.
        address: a multiple of 256 bytes.
        memory: what it belongs to: a tensor of torch's, whose allocator ties it to the stream, or
            the driver's own.
    """

    size: int
    address: int
    memory: object


class StreamArenas:
    """The arenas of streams of a GPU, one each.

    A call is over before the kernels that it queued have run, but a stream runs one call after the
    other. So all calls in it share an arena, from whatever threads they come. One that is too small
    is replaced by a larger one; beyond `limit` streams the one that came first gives its arena up.

    Large arenas are the driver's, where there is one. Those which calls outgrew are free for
    everybody then; torch's allocator would keep them. Where streams take each other's arenas, one
    comes and goes with every call, and the driver is not asked: it would wait for the device.

    Args:
        device: where the arenas are.
        limit: most streams that have one.
        driver: makes an arena of at least `LARGE` bytes, and raises `ArenaError` if it has no room;
            None where all memory is torch's.
    """

    def __init__(
        self,
        device: torch.device,
        limit: int,
        driver: Callable[[int], StreamArena] | None = None,
    ) -> None:
        self._device = device
        self._limit = limit
        self._driver = driver
        self._lock = threading.Lock()
        self._arenas: dict[int, StreamArena] = {}

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return sum(arena.size for arena in list(self._arenas.values()))

    def of(self, stream: int, size: int) -> StreamArena:
        """The arena of a stream, which is the current one.

        Args:
            stream: its handle.
            size: the bytes that are needed.

        Raises:
            ArenaError: torch cannot allocate it.
        """
        arena = self._arenas.get(stream)
        if arena is not None and arena.size >= size:
            return arena
        del arena
        with self._lock:
            return self._grown(stream, size)

    def release(self) -> None:
        """Free all arenas; torch's allocator, and the driver, let streams finish what uses them."""
        with self._lock:
            self._arenas.clear()

    def _grown(self, stream: int, size: int) -> StreamArena:
        # Another thread may have come first. Else its memory goes back before there is more.
        arena = self._arenas.pop(stream, None)
        if arena is None or arena.size < size:
            del arena
            arena = self._new(_rounded(size))
        self._arenas[stream] = arena
        if len(self._arenas) > self._limit:
            del self._arenas[next(iter(self._arenas))]
        return arena

    def _new(self, size: int) -> StreamArena:
        if self._driver is not None and size >= LARGE and len(self._arenas) < self._limit:
            try:
                return self._driver(size)
            except ArenaError:
                # torch's allocator may have some: it gives back what it keeps before it fails.
                pass
        return stream_arena(size, self._device)


def stream_arena(size: int, device: torch.device) -> StreamArena:
    """An arena of the current stream that is kept by nobody.

    Raises:
        ArenaError: torch cannot allocate it.
    """
    memory = new_arena(size, device)
    return StreamArena(size, memory.data_ptr(), memory)


def new_arena(size: int, device: torch.device) -> Tensor:
    """Memory that belongs to no pool: uint8, 1-d.

    Raises:
        ArenaError: torch cannot allocate it.
    """
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        raise ArenaError(str(error)) from error


def _rounded(size: int) -> int:
    """`size` rounded up by at most an eighth, so that slowly growing needs rarely reallocate."""
    step = max(_SMALLEST, 1 << max(size.bit_length() - 4, 0))
    return -(-size // step) * step
