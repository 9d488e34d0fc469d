# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Memory of CPU kernels: flat buffers, scratch on the stack, tensors read through index maps.

Kernels get bare pointers. A pointer becomes a `memref<?xT>` of one dim (its size is never looked
at), addressed by linear offsets: tensors between kernels are contiguous and row-major, so a tensor
read through a map is a buffer and one expression, see `Access`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, builtin, llvm, memref, vector

from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.passes.cpu.scalars import (
    Type,
    compute_type,
    from_storage,
    storage_type,
    to_storage,
)
from shapejit.symbolic import Expr, Ranges
from shapejit.symbolic.expr import ZERO, as_expr


def flat_type(storage: Type) -> Type:
    """``memref<?xT>``"""
    return ir.MemRefType.get([ir.ShapedType.get_dynamic_size()], storage)


@dataclass(frozen=True)
class Buffer:
    """Contiguous memory of a tensor's elements.

    Attributes:
        memref: ``memref<?xT>`` of the storage type.
        element: the tensor's element type.
    """

    memref: Value
    element: Type

    @property
    def compute(self) -> Type:
        """Type of loaded values."""
        return compute_type(self.element)

    @property
    def is_plain(self) -> bool:
        """Whether values are computed as they are stored, so that vectors can be moved."""
        return bool(storage_type(self.element) == self.compute)

    def load(self, offset: Value) -> Value:
        """The value at a linear offset (index), in the compute type."""
        return from_storage(memref.load(self.memref, [offset]), self.element)

    def store(self, value: Value, offset: Value) -> None:
        memref.store(to_storage(value, self.element), self.memref, [offset])

    def load_vector(self, type_: Type, offset: Value) -> Value:
        """Consecutive elements of a plain buffer from a linear offset on."""
        return vector.load(type_, self.memref, [offset])

    def store_vector(self, value: Value, offset: Value) -> None:
        vector.store(value, self.memref, [offset])


def buffer_of_pointer(pointer: Value, element: Type) -> Buffer:
    """The buffer at an ``!llvm.ptr``: the memref descriptor that MLIR's own lowering uses."""
    descriptor_type = ir.Type.parse("!llvm.struct<(ptr, ptr, i64, array<1 x i64>, array<1 x i64>)>")
    i64 = ir.IntegerType.get_signless(64)
    zero, one = arith.constant(i64, 0), arith.constant(i64, 1)
    descriptor = llvm.mlir_poison(descriptor_type)
    for value, position in (
        (pointer, [0]),
        (pointer, [1]),
        (zero, [2]),
        (zero, [3, 0]),
        (one, [4, 0]),
    ):
        descriptor = llvm.insertvalue(descriptor, value, position)
    type_ = flat_type(storage_type(element))
    return Buffer(builtin.unrealized_conversion_cast([type_], [descriptor]), element)


def row_major(shape: Sequence[Size], indices: Sequence[Size]) -> Expr:
    """The linear offset of an element of a contiguous tensor."""
    offset = ZERO
    for size, index in zip(shape, indices, strict=True):
        offset = offset * size + index
    return offset


@dataclass(frozen=True)
class Access:
    """A contiguous tensor read or written through an index map.

    Attributes:
        buffer: the tensor's memory.
        shape: its sizes.
        indices: the element's index in each of its dims, over dims d0, d1, .. of the access.
        offset: the element's linear offset, over the same dims.
    """

    buffer: Buffer
    shape: tuple[Expr, ...]
    indices: tuple[Expr, ...]
    offset: Expr

    @staticmethod
    def through(
        buffer: Buffer, shape: Sequence[Size], indices: Sequence[Size], space: Sequence[Size]
    ) -> Access:
        """The access to ``buffer[indices]`` for d0, d1, .. below the sizes in ``space``."""
        ranges = Ranges(None, [as_expr(size) for size in space])
        simple = tuple(ranges.simplify(index) for index in indices)
        offset = ranges.simplify(row_major(shape, simple))
        return Access(buffer, tuple(map(as_expr, shape)), simple, offset)

    def at(self, dims: Mapping[int, Size]) -> Expr:
        """The offset with dims replaced by expressions over an `Indexer`'s variables.

        All dims that the offset depends on must be given.
        """
        return self.offset.substitute(dims=dims)

    def load(self, indexer: Indexer, dims: Mapping[int, Size]) -> Value:
        return self.buffer.load(indexer.value(self.at(dims)))

    def store(self, indexer: Indexer, value: Value, dims: Mapping[int, Size]) -> None:
        self.buffer.store(value, indexer.value(self.at(dims)))
