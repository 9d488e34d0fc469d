# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The memory tier: which code stays in this process for the next program that needs it.

A program holds a `Lease` of all code that it uses. Code with a living lease is found whatever the
bound says, since letting go of it would free nothing. Beyond that the tier keeps code alive up to a
bound in bytes, by size:

=======  =====================================================================================
small    stays: it is cheap to keep. A quarter of the bound, least recently used go first
medium   the rest of the bound; what goes first is cheap to build for its size and rarely used
huge     more than an eighth of the bound: used and freed, it would drive out too much else
=======  =====================================================================================
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

SMALL_BYTES = 16 * 1024
SMALL_SHARE = 4  # of the bound: one part in so many
HUGE_SHARE = 8


class Lease:
    """Code in use: whoever holds the lease keeps the code findable.

    Attributes:
        data: the code.
        seconds: time that it took to build.
    """

    __slots__ = ("__weakref__", "data", "seconds")

    def __init__(self, data: bytes, seconds: float) -> None:
        self.data = data
        self.seconds = seconds


@dataclass
class _Slot:
    """What is known of one piece of code.

    Attributes:
        size: bytes.
        seconds: time that it took to build.
        kept: the code, if the tier keeps it alive; then the slot is in a segment.
        lease: the lease that is out, if it is alive.
        uses: how often it was asked for since it came.
        rank: the medium segment gives up the lowest first.
    """

    size: int
    seconds: float
    kept: bytes | None
    lease: weakref.ref[Lease]
    uses: int = 1
    rank: float = 0.0


class MemoryTier:
    """Code by digest, bounded in bytes. Not thread-safe: its owner locks.

    Attributes:
        evicted, evicted_bytes: code that the tier no longer keeps and that no lease held.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots: dict[str, _Slot] = {}
        self._small: OrderedDict[str, _Slot] = OrderedDict()
        self._medium: dict[str, _Slot] = {}
        self._small_bytes = 0
        self._medium_bytes = 0
        # The rank of what went last. Newcomers start from it, so that old merits fade.
        self._clock = 0.0
        # Filled by the garbage collector at any moment, hence without a lock.
        self._ended: deque[str] = deque()
        self.evicted = 0
        self.evicted_bytes = 0

    @property
    def limit(self) -> int:
        """Most bytes that the tier keeps alive."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self.trim(limit)

    @property
    def kept_bytes(self) -> int:
        """Bytes that the tier keeps alive."""
        return self._small_bytes + self._medium_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of code with a living lease, whether the tier keeps it too or not."""
        return sum(slot.size for slot in self._slots.values() if slot.lease() is not None)

    def __len__(self) -> int:
        self._forget_ended()
        return len(self._slots)

    def get(self, digest: str) -> Lease | None:
        """The code, if it is here."""
        slot = self._slots.get(digest)
        if slot is None:
            return None
        lease = slot.lease()
        if lease is None:
            if slot.kept is None:
                return None
            lease = Lease(slot.kept, slot.seconds)
            slot.lease = self._watched(digest, lease)
        slot.uses += 1
        self._promote(digest, slot)
        return lease

    def add(self, digest: str, data: bytes, seconds: float) -> Lease:
        """Take in new code; what was there under this digest is replaced."""
        self._forget_ended()
        if digest in self._slots:
            self._drop(digest)
        lease = Lease(data, seconds)
        slot = _Slot(len(data), seconds, None, self._watched(digest, lease))
        self._slots[digest] = slot
        if slot.size <= self._limit // HUGE_SHARE:
            slot.kept = data
            self._enter(digest, slot)
            self.trim(self._limit)
        return lease

    def trim(self, limit: int) -> None:
        """Let go of code until at most `limit` bytes are kept alive."""
        while self.kept_bytes > limit:
            digest = self._next_victim(limit)
            slot = self._slots[digest]
            self._leave(digest, slot)
            if slot.lease() is None:
                del self._slots[digest]
                self.evicted += 1
                self.evicted_bytes += slot.size
        self._forget_ended()

    def clear(self) -> None:
        """Forget everything, also what is in use."""
        for digest in list(self._slots):
            self._drop(digest)
        self._ended.clear()

    # Segments.

    def _enter(self, digest: str, slot: _Slot) -> None:
        if slot.size <= SMALL_BYTES:
            self._small[digest] = slot
            self._small_bytes += slot.size
        else:
            self._medium[digest] = slot
            self._medium_bytes += slot.size
        self._promote(digest, slot)

    def _promote(self, digest: str, slot: _Slot) -> None:
        if digest in self._small:
            self._small.move_to_end(digest)
        slot.rank = self._clock + slot.uses * slot.seconds / max(slot.size, 1)

    def _leave(self, digest: str, slot: _Slot) -> None:
        slot.kept = None
        if self._small.pop(digest, None) is not None:
            self._small_bytes -= slot.size
        elif self._medium.pop(digest, None) is not None:
            self._medium_bytes -= slot.size

    def _next_victim(self, limit: int) -> str:
        if not self._medium or self._small_bytes > limit // SMALL_SHARE:
            return next(iter(self._small))
        digest = min(self._medium, key=lambda name: self._medium[name].rank)
        self._clock = max(self._clock, self._medium[digest].rank)
        return digest

    def _drop(self, digest: str) -> None:
        slot = self._slots.pop(digest)
        self._leave(digest, slot)

    # Leases.

    def _watched(self, digest: str, lease: Lease) -> weakref.ref[Lease]:
        ended = self._ended
        return weakref.ref(lease, lambda _: ended.append(digest))

    def _forget_ended(self) -> None:
        """Drop the slots of code that is neither kept nor in use any more."""
        for digest in _drain(self._ended):
            slot = self._slots.get(digest)
            if slot is not None and slot.kept is None and slot.lease() is None:
                del self._slots[digest]


def _drain(queue: deque[str]) -> Iterable[str]:
    while queue:
        yield queue.popleft()
