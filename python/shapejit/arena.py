# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Working memory of calls: a bounded, thread-safe pool of arenas."""

from __future__ import annotations

import os
import threading

import torch
from torch import Tensor

_SMALLEST = 4096


class ArenaPool:
    """Lends each running call an arena of its own.

    An arena that comes back is kept for the next call, up to `limit` idle ones (by default one
    for each CPU this process may use); further ones are freed. An idle arena that is too small is
    replaced by a larger one, so the memory held is at most `limit` times the largest need so far,
    plus that of the calls that run now.

    Args:
        device: where the arenas are.
        limit: most arenas to keep while idle.
    """

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self._device = device
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
        """An arena of at least `size` bytes, 64-byte aligned: uint8, 1-d.

        Raises:
            RuntimeError: torch cannot allocate it.
        """
        with self._lock:
            arena = self._idle.pop() if self._idle else None
            if arena is not None and arena.numel() >= size:
                self._lent += arena.numel()
                return arena
        del arena  # too small: give its memory back before asking for more
        arena = torch.empty(_rounded(size), dtype=torch.uint8, device=self._device)
        with self._lock:
            self._lent += arena.numel()
        return arena

    def release(self, arena: Tensor) -> None:
        """Take back an arena from `acquire` that no kernel uses any more."""
        with self._lock:
            self._lent -= arena.numel()
            if len(self._idle) < self._limit:
                self._idle.append(arena)


def _rounded(size: int) -> int:
    """`size` rounded up by at most an eighth, so that slowly growing needs rarely reallocate."""
    step = max(_SMALLEST, 1 << max(size.bit_length() - 4, 0))
    return -(-size // step) * step
