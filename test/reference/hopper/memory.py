# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Memory of the simulated GPU: global memory with bounds, shared memory, barriers, tensor maps.

Memory is checked rather than fast: an access outside of what was allocated raises, shared memory
starts as NaN, and bytes written by threads may be read by the asynchronous proxy (tensor cores,
bulk copies) only after a proxy fence of the writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Addresses = npt.NDArray[np.uint64]

GLOBAL_BASE = 0x7F00_0000_0000
SHARED_BYTES = 232448
#: Shared addresses of the CTAs of a cluster are so far apart.
WINDOW = 1 << 24


class SimulationError(AssertionError):
    """The kernel did what the hardware forbids or what would be a race or a hang on it."""


def expand(addresses: Addresses, width: int) -> Addresses:
    """Addresses of all bytes: [n] to [n, width]."""
    return addresses[..., None] + np.arange(width, dtype=np.uint64)


class GlobalMemory:
    """One arena; allocations have a gap between them that may not be touched."""

    def __init__(self, size: int = 1 << 26) -> None:
        self._bytes = np.zeros(size, np.uint8)
        self._valid = np.zeros(size, bool)
        self._next = 4096

    def allocate(self, size: int, alignment: int = 256, shift: int = 0) -> int:
        """The address of new memory, ``shift`` bytes past a multiple of the alignment."""
        start = -(-self._next // alignment) * alignment + shift
        self._next = start + size + 512
        if self._next > self._bytes.size:
            raise MemoryError(f"the simulated GPU has {self._bytes.size} bytes")
        self._valid[start : start + size] = True
        return GLOBAL_BASE + start

    def write(self, address: int, data: Bytes) -> None:
        """Sets memory from the host."""
        start = address - GLOBAL_BASE
        self._bytes[start : start + data.size] = data

    def read(self, address: int, size: int) -> Bytes:
        """Gets memory to the host."""
        start = address - GLOBAL_BASE
        return self._bytes[start : start + size].copy()

    def _offsets(self, addresses: Addresses, width: int, what: str) -> npt.NDArray[np.int64]:
        offsets = addresses.astype(np.int64) - GLOBAL_BASE
        if width > 1 and (offsets % width).any():
            raise SimulationError(f"misaligned {what} of {width} bytes in global memory")
        offsets = expand(offsets.astype(np.uint64), width).astype(np.int64)
        inside = (offsets >= 0) & (offsets < self._bytes.size)
        if not inside.all() or not self._valid[offsets].all():
            raise SimulationError(f"{what} out of bounds in global memory")
        return offsets

    def load(self, addresses: Addresses, width: int) -> Bytes:
        """[..] addresses to [.., width] bytes."""
        return self._bytes[self._offsets(addresses, width, "load")]

    def store(self, addresses: Addresses, data: Bytes) -> None:
        """The inverse of `load`."""
        self._bytes[self._offsets(addresses, data.shape[-1], "store")] = data


class SharedMemory:
    """Shared memory of one CTA; addresses are offsets."""

    def __init__(self) -> None:
        self._bytes = np.full(SHARED_BYTES, 0xFF, np.uint8)
        self._writer = np.zeros(SHARED_BYTES, np.uint16)
        self._coming = np.zeros(SHARED_BYTES, bool)
        self.barriers: dict[int, MBarrier] = {}
        self.alive = True

    def _offsets(self, addresses: Addresses, width: int, what: str) -> npt.NDArray[np.int64]:
        if not self.alive:
            raise SimulationError(f"{what} of shared memory of a CTA that has exited")
        offsets = expand(addresses, width).astype(np.int64)
        if width > 1 and (addresses % width).any():
            raise SimulationError(f"misaligned {what} of {width} bytes in shared memory")
        if (offsets >= SHARED_BYTES).any():
            raise SimulationError(f"{what} out of bounds in shared memory")
        if self._coming[offsets].any():
            raise SimulationError(f"{what} where a store by another CTA may happen at any time")
        return offsets

    def announce(self, addresses: Addresses, width: int) -> None:
        """A store by a thread of another CTA is on its way: until `arrive` nobody may touch it."""
        self._coming[self._offsets(addresses, width, "asynchronous store")] = True

    def arrive(self, addresses: Addresses, data: Bytes, warp: int) -> None:
        """What was announced happens."""
        self._coming[expand(addresses, data.shape[-1]).astype(np.int64)] = False
        self.store(addresses, data, warp)

    def load(self, addresses: Addresses, width: int) -> Bytes:
        return self._bytes[self._offsets(addresses, width, "load")]

    def store(self, addresses: Addresses, data: Bytes, warp: int) -> None:
        """A store by threads of a warp (numbered from 1 in the whole grid)."""
        offsets = self._offsets(addresses, data.shape[-1], "store")
        self._bytes[offsets] = data
        self._writer[offsets] = warp

    def fence(self, warp: int) -> None:
        """fence.proxy.async: what the warp wrote may be read by the asynchronous proxy."""
        self._writer[self._writer == warp] = 0

    def async_load(self, addresses: Addresses, width: int = 1) -> Bytes:
        """A read by the asynchronous proxy."""
        offsets = self._offsets(addresses, width, "asynchronous load")
        if self._writer[offsets].any():
            raise SimulationError("the asynchronous proxy reads bytes written without a fence")
        return self._bytes[offsets]

    def async_store(self, addresses: Addresses, data: Bytes) -> None:
        """A write by the asynchronous proxy."""
        offsets = self._offsets(addresses, data.shape[-1], "asynchronous store")
        self._bytes[offsets] = data
        self._writer[offsets] = 0

    def barrier(self, address: int) -> MBarrier:
        """The mbarrier at an offset."""
        if not self.alive:
            raise SimulationError("arrival at a barrier of a CTA that has exited")
        if address not in self.barriers:
            raise SimulationError(f"no mbarrier was initialised at shared address {address:#x}")
        return self.barriers[address]


class MBarrier:
    """A transaction barrier in shared memory.

    Attributes:
        phase: phases completed.
    """

    def __init__(self, count: int) -> None:
        self._count = self._pending = count
        self._bytes = 0
        self.phase = 0

    def arrive(self, count: int = 1, expected_bytes: int = 0) -> None:
        if count > self._pending:
            raise SimulationError(f"{count} arrivals at a barrier that waits for {self._pending}")
        self._bytes += expected_bytes
        self._pending -= count
        self._advance()

    def complete(self, count: int) -> None:
        """Bytes have arrived."""
        self._bytes -= count
        self._advance()

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity is complete."""
        return (self.phase & 1) != parity

    def _advance(self) -> None:
        if self._pending == 0 and self._bytes == 0:
            self.phase += 1
            self._pending = self._count


# Swizzles and tensor maps -------------------------------------------------------------------------


def swizzled(addresses: Addresses, swizzle: int) -> Addresses:
    """Where a byte of a swizzled tile lies: 16-byte chunks exchanged by the row of 128 bytes."""
    if swizzle <= 16:
        return addresses
    mask = np.uint64(swizzle // 16 - 1)
    return addresses ^ (((addresses >> np.uint64(7)) & mask) << np.uint64(4))


def rounded_to_tf32(data: Bytes) -> Bytes:
    """float32 numbers with the 11 bits of significand nearest to theirs, of two the even one."""
    words = np.ascontiguousarray(data).view(np.uint32)
    nearest = words + np.uint32(0xFFF) + ((words >> np.uint32(13)) & np.uint32(1))
    finite = (words & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    return np.where(finite, nearest & np.uint32(0xFFFFE000), words).view(np.uint8)


@dataclass(frozen=True)
class TiledMap:
    """A TMA descriptor of a tiled tensor; dims from the fastest on, strides of all in bytes.

    With ``tf32``, elements are float32 that loads round to 11 bits of significand.

    Raises:
        ValueError: the driver would refuse it.
    """

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    tf32: bool = False

    def __post_init__(self) -> None:
        if self.address % 16 or any(stride % 16 for stride in self.strides[1:]):
            raise ValueError(f"base or stride is no multiple of 16 bytes: {self}")
        if not all(1 <= size <= 256 for size in self.box) or not all(self.dims):
            raise ValueError(f"box or size out of range: {self}")
        if self.swizzle and self.box[0] * self.element_bytes > self.swizzle:
            raise ValueError(f"box is wider than the swizzle: {self}")
        if not 1 <= len(self.dims) <= 5:
            raise ValueError(f"rank out of range: {self}")

    @property
    def box_bytes(self) -> int:
        return int(np.prod(self.box)) * self.element_bytes

    def _elements(self, corner: Sequence[int]) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Global addresses of a box's elements (slowest dim first) and which are in bounds."""
        address = np.full(self.box[::-1], self.address, np.int64)
        inside = np.ones(self.box[::-1], bool)
        rank = len(self.box)
        for dim, (start, size) in enumerate(zip(corner, self.box, strict=True)):
            index = start + np.arange(size, dtype=np.int64)
            index = index.reshape([size if axis == rank - 1 - dim else 1 for axis in range(rank)])
            stride = self.strides[dim]
            address = address + index * stride
            inside = inside & (index >= 0) & (index < self.dims[dim])
        return address.astype(np.uint64).reshape(-1), inside.reshape(-1)

    def _shared(self, base: int) -> Addresses:
        """Shared addresses of the same elements."""
        count = self.box_bytes // self.element_bytes
        linear = base + np.arange(count, dtype=np.uint64) * np.uint64(self.element_bytes)
        return swizzled(linear, self.swizzle)

    def load(
        self, memory: GlobalMemory, corner: Sequence[int], base: int
    ) -> tuple[Addresses, Bytes]:
        """Shared addresses and bytes of a box; zeros out of bounds."""
        if base % 128:
            raise SimulationError("the target of a tensor map is no multiple of 128 bytes")
        addresses, inside = self._elements(corner)
        data = np.zeros((addresses.size, self.element_bytes), np.uint8)
        data[inside] = memory.load(addresses[inside], self.element_bytes)
        return self._shared(base), rounded_to_tf32(data) if self.tf32 else data

    def store(
        self, memory: GlobalMemory, corner: Sequence[int], base: int, shared: SharedMemory
    ) -> None:
        """Writes a box from shared memory; out of bounds is left out."""
        if base % 128:
            raise SimulationError("the source of a tensor map is no multiple of 128 bytes")
        addresses, inside = self._elements(corner)
        data = shared.async_load(self._shared(base), self.element_bytes)
        memory.store(addresses[inside], data[inside])
