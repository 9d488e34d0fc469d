# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Working memory of calls: a bounded, thread-safe pool of arenas."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

import torch
from torch import Tensor

_SMALLEST = 4096


class ArenaError(RuntimeError):
    """torch cannot allocate working memory; the text says why."""


class ArenaPool:
    """Lends each running call an arena of its own.

    An arena that comes back is kept for the next call, up to `limit` idle ones (by default one
    for each CPU this process may use); further ones are freed. An idle arena that is too small is
    replaced by a larger one, so the memory held is at most `limit` times the largest need so far,
    plus that of the calls that run now.

    On a GPU a call is over before the kernels that it queued in a stream have run. So an arena
    serves the calls of one stream only, one after the other as the stream runs them; the streams
    used longest ago give theirs up first.

    Args:
        device: where the arenas are.
        limit: most arenas to keep while idle.
    """

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self._device = device
        self._limit = len(os.sched_getaffinity(0)) if limit is None else limit
        self._lock = threading.Lock()
        # By stream; the one that was used last comes last. No list is empty.
        self._idle: OrderedDict[int, list[Tensor]] = OrderedDict()
        self._idle_count = 0
        self._lent = 0

    @property
    def bytes(self) -> int:
        """Bytes held now, by idle arenas and by those in use."""
        with self._lock:
            idle = sum(arena.numel() for arenas in self._idle.values() for arena in arenas)
            return self._lent + idle

    def acquire(self, size: int, stream: int = 0) -> Tensor:
        """An arena of at least `size` bytes: uint8, 1-d.

        It is aligned to 64 bytes on the CPU and to 256 bytes on a GPU, where torch's allocator ties
        it to the current stream.

        Args:
            size: in bytes.
            stream: the stream that will use it, which is the current one; 0 on the CPU.

        Raises:
            ArenaError: torch cannot allocate it.
        """
        with self._lock:
            arena = self._take(stream)
            if arena is not None and arena.numel() >= size:
                self._lent += arena.numel()
                return arena
        del arena  # too small: give its memory back before asking for more
        arena = new_arena(_rounded(size), self._device)
        with self._lock:
            self._lent += arena.numel()
        return arena

    def release(self, arena: Tensor, stream: int = 0) -> None:
        """Take back an arena from `acquire` that only the stream's kernels, if any, still use."""
        with self._lock:
            self._lent -= arena.numel()
            if not self._limit:
                return
            self._idle.setdefault(stream, []).append(arena)
            self._idle.move_to_end(stream)
            self._idle_count += 1
            if self._idle_count > self._limit:
                self._take(next(iter(self._idle)))

    def _take(self, stream: int) -> Tensor | None:
        """The arena of a stream that came back last. Called with the lock held."""
        arenas = self._idle.get(stream)
        if arenas is None:
            return None
        arena = arenas.pop()
        self._idle_count -= 1
        if not arenas:
            del self._idle[stream]
        return arena


def new_arena(size: int, device: torch.device) -> Tensor:
    """An arena that belongs to no pool: uint8, 1-d.

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
