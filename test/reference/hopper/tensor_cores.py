# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""wgmma of the simulated GPU: shared memory descriptors and one warp's share of a product."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference.hopper.memory import Addresses, SharedMemory, SimulationError, swizzled

_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Operand:
    """An operand of wgmma in shared memory: a descriptor, and whether k is the fast dimension.

    Of tf32 only the upper 19 bits of a word count.
    """

    descriptor: int
    k_major: bool
    element: str

    def read(self, shared: SharedMemory, first: int, count: int) -> Matrix:
        """Rows [first, first + count) of the operand, over the 16 elements of k, of tf32 8."""
        start = (self.descriptor & 0x3FFF) << 4
        leading = ((self.descriptor >> 16) & 0x3FFF) << 4
        stride = ((self.descriptor >> 32) & 0x3FFF) << 4
        if (self.descriptor >> 49) & 0x7:
            raise SimulationError("a matrix descriptor with a base offset")
        swizzle = _SWIZZLES[self.descriptor >> 62]
        if self.element == "tf32":
            return self._read_tf32(shared, start, swizzle, stride, first, count)
        offsets = _offsets(self.k_major, swizzle, leading, stride, first, count)
        data = shared.async_load(swizzled(np.uint64(start) + offsets, swizzle), 2)
        return decode(data.reshape(*offsets.shape, 2), self.element)

    def _read_tf32(
        self, shared: SharedMemory, start: int, swizzle: int, stride: int, first: int, count: int
    ) -> Matrix:
        if not self.k_major or not swizzle:
            raise SimulationError("wgmma of tf32 that is not K-major, or not swizzled")
        row = np.arange(first, first + count, dtype=np.uint64)[:, None]
        k = np.arange(8, dtype=np.uint64)[None, :]
        offsets = row // 8 * stride + row % 8 * swizzle + k * 4
        data = shared.async_load(swizzled(np.uint64(start) + offsets, swizzle), 4)
        words = np.ascontiguousarray(data.reshape(*offsets.shape, 4)).view(np.uint32)[..., 0]
        return (words & np.uint32(0xFFFFE000)).view(np.float32)


@functools.lru_cache(maxsize=256)
def _offsets(
    k_major: bool, swizzle: int, leading: int, stride: int, first: int, count: int
) -> Addresses:
    """Byte offsets [rows, 16] from the start address, before the swizzle (PTX ISA, "Strides")."""
    row = np.arange(first, first + count, dtype=np.uint64)[:, None]
    k = np.arange(16, dtype=np.uint64)[None, :]
    if k_major:
        if swizzle == 0:
            return row // 8 * stride + row % 8 * 16 + k // 8 * leading + k % 8 * 2
        return row // 8 * stride + row % 8 * swizzle + k * 2
    wide = (swizzle or 16) // 2
    if swizzle == 0:
        return row // wide * stride + k // 8 * leading + k % 8 * 16 + row % wide * 2
    return row // wide * leading + k // 8 * stride + k % 8 * swizzle + row % wide * 2


def decode(data: npt.NDArray[np.uint8], element: str) -> Matrix:
    """[.., 2] bytes of bf16 or f16 as f32."""
    bits = np.ascontiguousarray(data).view(np.uint16)[..., 0]
    if element == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if element == "f16":
        return bits.view(np.float16).astype(np.float32)
    raise NotImplementedError(f"wgmma on {element}")


def fragment(product: Matrix) -> list[Matrix]:
    """A warp's [16, n] rows as registers: [n / 2] of [32] lanes (PTX ISA, "Register fragments")."""
    lane = np.arange(32)
    registers = []
    for column in range(0, product.shape[1], 8):
        for half in (0, 8):
            for one in (0, 1):
                registers.append(product[lane // 4 + half, column + lane % 4 * 2 + one])
    return registers
