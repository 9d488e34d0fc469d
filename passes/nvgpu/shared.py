# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Dynamic shared memory of a kernel: who has which bytes."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, gpu, llvm, memref

from shapejit.passes.nvgpu.builder import Num, Type, Value, add, i32, index, integer, pointer
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.target import STATIC_SHARED_BYTES, TILE_ALIGNMENT, Architecture

WORKGROUP = "#gpu.address_space<workgroup>"


class SharedMemory:
    """The dynamic shared memory of the kernel at the current point.

    Offsets are handed out first; a kernel that asks for more than a CTA can have is refused.

    Attributes:
        base: its address in the shared window, i32. In a cluster it carries the CTA's rank in the
            bits from 24 on.
    """

    def __init__(self, architecture: Architecture) -> None:
        self._limit = architecture.shared_bytes - STATIC_SHARED_BYTES
        self._bytes = 0
        self._memory = gpu.dynamic_shared_memory(ir.Type.parse(f"memref<?xi8, {WORKGROUP}>"))
        address = memref.extract_aligned_pointer_as_index(self._memory)
        self.base: Value = arith.index_cast(i32(), address)

    @property
    def bytes(self) -> int:
        """What was allocated so far."""
        return self._bytes

    def allocate(self, bytes_: int) -> int:
        """The offset of new memory, at a multiple of the swizzle pattern's 1024 bytes.

        Raises:
            LoweringError: there is not so much.
        """
        start = -(-self._bytes // TILE_ALIGNMENT) * TILE_ALIGNMENT
        self._bytes = start + bytes_
        if self._bytes > self._limit:
            raise LoweringError(
                f"needs {self._bytes} bytes of shared memory with this schedule, a CTA has "
                f"{self._limit}; use fewer stages or smaller tiles"
            )
        return start

    def view(self, offset: Num, shape: Sequence[int], element: Type) -> Value:
        """The memref of a tile at an offset."""
        sizes = "x".join(map(str, shape))
        type_ = ir.Type.parse(f"memref<{sizes}x{element}, {WORKGROUP}>")
        return memref.view(type_, self._memory, index(offset), [])

    def pointer(self, offset: Num, further: int = 0) -> Value:
        """``!llvm.ptr<3>`` to an offset and ``further`` bytes, which instructions take as they are,
        so that pointers which differ in them share a register."""
        start = llvm.inttoptr(pointer(3), add(self.base, offset))
        if not further:
            return start
        byte = ir.TypeAttr.get(integer(8))
        return llvm.GEPOp(pointer(3), start, [], [further], byte, 0).result
