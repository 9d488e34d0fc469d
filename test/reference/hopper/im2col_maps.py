# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensor maps of the simulated GPU in im2col mode, after the PTX ISA and the driver's manual.

A *bounding box* holds the places that the first tap of a window comes to: along each spatial dim
from ``lower`` to ``size - 1 + upper``, both included. A load starts at a place and takes so many
places in order: along the fastest moving spatial dim in steps, then along the next one, then from
image to image. The pixel that is read of each place lies the im2col offsets further on; what is
outside of the tensor is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mlir import ir

from reference.hopper import hardware
from reference.hopper.machine import Warp
from reference.hopper.memory import (
    Addresses,
    Bytes,
    GlobalMemory,
    SimulationError,
    rounded_to_tf32,
    swizzled,
)
from reference.hopper.scalars import Compute

# By the number of spatial dims: bits of a corner, and of an offset.
_CORNER_BITS = {1: 16, 2: 8, 3: 5}


def places(
    sizes: Sequence[int], lower: Sequence[int], upper: Sequence[int], steps: Sequence[int]
) -> tuple[int, ...]:
    """Places of the window along each spatial dim; 0 or less if there are none."""
    return tuple(
        (size - 1 + behind - before) // step + 1
        for size, before, behind, step in zip(sizes, lower, upper, steps, strict=True)
    )


@dataclass(frozen=True)
class Im2colTensor:
    """A TMA descriptor in im2col mode; dims from the fastest on, strides of all in bytes.

    With ``tf32``, elements are float32 that loads round to 11 bits of significand.

    Raises:
        ValueError: the driver would refuse it.
    """

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    channels: int
    pixels: int
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    tf32: bool = False

    def __post_init__(self) -> None:
        rank = len(self.dims)
        if not 3 <= rank <= 5:
            raise ValueError(f"rank out of range: {self}")
        if not len(self.lower) == len(self.upper) == len(self.steps) == rank - 2:
            raise ValueError(f"not an entry for each spatial dim: {self}")
        if self.address % 16 or any(stride % 16 for stride in self.strides[1:]):
            raise ValueError(f"base or stride is no multiple of 16 bytes: {self}")
        if not 1 <= self.channels <= 256 or not 1 <= self.pixels <= 1024 or not all(self.dims):
            raise ValueError(f"channels, pixels or size out of range: {self}")
        if self.swizzle and self.channels * self.element_bytes > self.swizzle:
            raise ValueError(f"more channels than the swizzle: {self}")
        most = 1 << _CORNER_BITS[rank - 2] - 1
        if not all(-most <= corner < most for corner in (*self.lower, *self.upper)):
            raise ValueError(f"corner out of range: {self}")
        if not all(1 <= step <= 8 for step in self.steps):
            raise ValueError(f"traversal stride out of range: {self}")
        if min(self.counts) < 1:
            raise ValueError(f"empty bounding box: {self}")

    @property
    def counts(self) -> tuple[int, ...]:
        """Places along each spatial dim."""
        return places(self.dims[1:-1], self.lower, self.upper, self.steps)

    @property
    def box_bytes(self) -> int:
        return self.channels * self.pixels * self.element_bytes

    def load(
        self, memory: GlobalMemory, corner: Sequence[int], base: int
    ) -> tuple[Addresses, Bytes]:
        """Shared addresses and bytes of the pixels.

        Args:
            corner: channel, place, image, and behind them the offsets.
        """
        if base % 128:
            raise SimulationError("the target of a tensor map is no multiple of 128 bytes")
        rank = len(self.dims)
        (channel, *starts), offsets = corner[: rank - 1], corner[rank:]
        image = corner[rank - 1]
        number = image
        for start, lower, step, count in reversed(
            list(zip(starts, self.lower, self.steps, self.counts, strict=True))
        ):
            index, rest = divmod(start - lower, step)
            if rest or not 0 <= index < count:
                raise SimulationError(f"a load starts at {starts}, which is no place of {self}")
            number = number * count + index
        order = number + np.arange(self.pixels, dtype=np.int64)
        address = np.full((self.pixels, self.channels), self.address, np.int64)
        inside = np.ones((self.pixels, self.channels), bool)
        for dim, (lower, step, count, offset) in enumerate(
            zip(self.lower, self.steps, self.counts, offsets, strict=True), 1
        ):
            index = lower + order % count * step + offset
            order = order // count
            address += (index * self.strides[dim])[:, None]
            inside &= ((index >= 0) & (index < self.dims[dim]))[:, None]
        address += (order * self.strides[-1])[:, None]
        inside &= ((order >= 0) & (order < self.dims[-1]))[:, None]
        channels = channel + np.arange(self.channels, dtype=np.int64)
        address += channels * self.element_bytes
        inside &= (channels >= 0) & (channels < self.dims[0])
        flat, mask = address.reshape(-1).astype(np.uint64), inside.reshape(-1)
        data = np.zeros((flat.size, self.element_bytes), np.uint8)
        data[mask] = memory.load(flat[mask], self.element_bytes)
        linear = base + np.arange(flat.size, dtype=np.uint64) * np.uint64(self.element_bytes)
        return swizzled(linear, self.swizzle), rounded_to_tf32(data) if self.tf32 else data


def _load(op: ir.Operation) -> Compute:
    if "im2col" not in str(op.attributes["mode"]):
        raise NotImplementedError(f"cp.async.bulk.tensor in the mode {op.attributes['mode']}")
    sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))

    def load(warp: Warp, *operands: object) -> None:
        parts, start = [], 0
        for size in sizes:
            parts.append(operands[start : start + size])
            start += size
        [target], [place], coordinates, [barrier], offsets, *rest = parts
        if any(rest[1:]):
            raise NotImplementedError("a cache hint or a predicate of a load")
        tensor = hardware._descriptor(warp, place).resolve(warp)
        if not isinstance(tensor, Im2colTensor):
            raise SimulationError("a load in im2col mode through a map of another mode")
        if len(coordinates) != len(tensor.dims) or len(offsets) != len(tensor.dims) - 2:
            raise SimulationError("coordinates or offsets of another rank than the map")
        bits = _CORNER_BITS[len(offsets)]
        taps = [warp.one(each) % (1 << 16) for each in offsets]
        if any(tap >> bits for tap in taps):
            raise SimulationError(f"offsets {taps} beyond {bits} bits")
        warp.tensor_load(
            tensor,
            [*hardware._corner(warp, coordinates), *taps],
            warp.one(target),
            warp.one(barrier),
            warp.one(rest[0][0]) if rest and rest[0] else None,
        )

    return load


hardware.OPS["nvvm.cp.async.bulk.tensor.shared.cluster.global"] = _load
