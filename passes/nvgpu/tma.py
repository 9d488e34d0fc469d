# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensor maps: what TMA loads and stores tiles through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, llvm, nvgpu, nvvm

from shapejit.gpu.interface import Im2colMap, TensorMap
from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    cast,
    constant,
    index,
    integer,
    pointer,
    value,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.ring import Ring, Slot, barrier_pointer
from shapejit.passes.nvgpu.shared import SharedMemory

_MAP_BYTES = 128


@dataclass(frozen=True)
class Descriptor:
    """A tensor map with the box that one TMA moves.

    Attributes:
        map: ``!nvgpu.tensormap.descriptor``.
        pointer: its address, generic.
        box: elements in every dim, the fastest moving one first.
        element: of the tensor.
        resident: whether the map is in device memory that may change between launches.
        smaller: the same tensor in smaller boxes, if there are.
        taps: spatial dims of an image that is read in im2col mode, 0 for a tiled tensor.
    """

    map: Value
    pointer: Value
    box: tuple[int, ...]
    element: Type
    resident: bool
    smaller: Descriptor | None = None
    taps: int = 0

    @staticmethod
    def make(
        function: KernelFunction,
        record: TensorMap | Im2colMap,
        element: Type,
        smaller: tuple[int, ...] | None = None,
    ) -> Descriptor:
        """Asks a kernel's caller for a tensor map, and for a second one with smaller boxes."""
        sizes = "x".join(map(str, reversed(record.box)))
        type_ = ir.Type.parse(
            f"!nvgpu.tensormap.descriptor<tensor = memref<{sizes}x{element}, 3>, "
            f"swizzle = swizzle_{record.swizzle}b, l2promo = l2promo_{record.promotion}b, "
            "oob = zero, interleave = none>"
        )
        address = function.tensor_map(record)
        second = None
        if smaller is not None:
            second = Descriptor.make(function, record.with_box(smaller), element)
        taps = len(record.steps) if isinstance(record, Im2colMap) else 0
        return Descriptor(
            cast(address, type_), address, record.box, element, function.block, second, taps
        )

    def prefetch(self) -> None:
        """Starts to fetch a grid constant; a resident map may not be fetched before `acquire`."""
        if not self.resident:
            nvgpu.tma_prefetch_descriptor(self.map)
        if self.smaller is not None:
            self.smaller.prefetch()

    def acquire(self) -> None:
        """Makes this thread's TMAs see a resident map as it is now.

        Every thread that issues one calls it, once a launch, before the first. Without it a map
        that another kernel or a copy rewrote is read from a stale cache: nearly every result is
        then wrong. A grid constant is never rewritten.
        """
        if self.resident:
            scope = ir.Attribute.parse("#nvvm.mem_scope<sys>")
            nvvm.fence_proxy_acquire(scope, self.pointer, constant(_MAP_BYTES))
            # No prefetch here: with it MiniLM's graph took 5 to 40 % longer on an H200.
        if self.smaller is not None:
            self.smaller.acquire()

    def load(
        self,
        memory: SharedMemory,
        offset: Num,
        ring: Ring,
        slot: Slot,
        coordinates: Sequence[Num],
        multicast: Num | None = None,
    ) -> None:
        """Starts the load of a box to an offset; it arrives on the slot's full barrier.

        Args:
            coordinates: of the box's first element, fastest moving dim first. What lies outside of
                the tensor is read as 0. In im2col mode the offsets of the tap follow, from the
                fastest moving spatial dim on.
            multicast: mask of the cluster's CTAs that get the box, at the same offset, i16.
        """
        if self.taps:
            self._load_pixels(memory, offset, ring, slot, coordinates, multicast)
            return
        nvgpu.TmaAsyncLoadOp(
            memory.view(offset, self.box[::-1], self.element),
            ring.full,
            self.map,
            [index(coordinate) for coordinate in coordinates],
            index(slot.stage),
            multicastMask=multicast,
        )

    def _load_pixels(
        self,
        memory: SharedMemory,
        offset: Num,
        ring: Ring,
        slot: Slot,
        coordinates: Sequence[Num],
        multicast: Num | None,
    ) -> None:
        """The same in im2col mode, which the nvgpu dialect does not have."""
        places, offsets = coordinates[: -self.taps], coordinates[-self.taps :]
        i16 = integer(16)
        nvvm.CpAsyncBulkTensorGlobalToSharedClusterOp(
            llvm.AddrSpaceCastOp(pointer(7), memory.pointer(offset)).result,
            self.pointer,
            list(map(value, places)),
            barrier_pointer(ring.full, ring.stages, slot.stage),
            [
                constant(each, i16) if isinstance(each, int) else arith.trunci(i16, each)
                for each in offsets
            ],
            multicastMask=multicast,
            mode=ir.Attribute.parse("#nvvm.tma_load_mode<im2col>"),
        )

    def fetch(self, coordinates: Sequence[Num]) -> None:
        """Starts to bring a box of a tiled tensor to the second-level cache."""
        nvvm.CpAsyncBulkTensorPrefetchOp(self.pointer, list(map(value, coordinates)), [])

    def store(self, memory: SharedMemory, offset: Num, coordinates: Sequence[Num]) -> None:
        """Starts the store of a box from an offset; what lies outside of the tensor is dropped."""
        nvgpu.TmaAsyncStoreOp(
            memory.view(offset, self.box[::-1], self.element),
            self.map,
            [index(value(coordinate)) for coordinate in coordinates],
        )
