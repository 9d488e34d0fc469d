# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The function of one CPU kernel under construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith, func, memref

from shapejit.passes.cpu.indexing import Indexer
from shapejit.passes.cpu.memory import Buffer, buffer_of_pointer, flat_type
from shapejit.passes.cpu.micro import MicroKernel
from shapejit.passes.cpu.scalars import Type, byte_width, storage_type
from shapejit.symbolic import Expr


@dataclass(frozen=True)
class Tensor:
    """What a kernel knows of an argument: sizes over its symbols, and the element type."""

    shape: tuple[Expr, ...]
    element: Type


class KernelFunction:
    """``func.func @name(inputs: !llvm.ptr.., outputs: !llvm.ptr.., symbols: i64..)``.

    Inputs are only read and may overlap one another; an output overlaps nothing. All scratch is of
    fixed size and on the stack.

    Args:
        name: the function's symbol.
        inputs, outputs: the tensors behind the pointers.
        symbols: how many symbols the kernel has.
        vector_bytes: width of the vector registers to use.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        symbols: int,
        vector_bytes: int,
    ) -> None:
        self.vector_bytes = vector_bytes
        pointer = ir.Type.parse("!llvm.ptr")
        i64 = ir.IntegerType.get_signless(64)
        tensors = [*inputs, *outputs]
        self._function = func.FuncOp(name, ([pointer] * len(tensors) + [i64] * symbols, []))
        self._function.arg_attrs = ir.ArrayAttr.get(
            [_pointer_attributes(i < len(inputs)) for i in range(len(tensors))]
            + [ir.DictAttr.get({})] * symbols
        )
        self._block = self._function.add_entry_block()
        self._micro_kernels: dict[MicroKernel, str] = {}
        arguments = list(self._block.arguments)
        with ir.InsertionPoint(self._block):
            buffers = [
                buffer_of_pointer(argument, tensor.element)
                for argument, tensor in zip(arguments, tensors, strict=False)
            ]
            index = ir.IndexType.get()
            sizes = [arith.index_cast(index, size) for size in arguments[len(tensors) :]]
            self.indexer = Indexer(sizes)
        self.inputs = buffers[: len(inputs)]
        self.outputs = buffers[len(inputs) :]

    @contextmanager
    def body(self) -> Iterator[Indexer]:
        """Emits into the function, which is closed at the end."""
        with ir.InsertionPoint(self._block):
            yield self.indexer
            func.ReturnOp([])

    @property
    def main_rows(self) -> int:
        """Rows of the main micro-kernel: with two vectors of columns its sums, the vectors of B and
        an element of A fill the registers, of which AVX-512 has 32 and older sets 16."""
        return 12 if self.vector_bytes == 64 else 6

    def lanes(self, element: Type) -> int:
        """Elements of a type in one vector register."""
        return self.vector_bytes // byte_width(element)

    def scratch(self, count: int, element: Type) -> Buffer:
        """A stack buffer of ``count`` elements, aligned to a cache line, which serves any vector.

        Emitted at the current point, which must be the function's entry block: an alloca inside a
        loop would grow the stack at each iteration.
        """
        storage = storage_type(element)
        fixed = memref.AllocaOp(ir.MemRefType.get([count], storage), [], [], alignment=64).result
        return Buffer(memref.cast(flat_type(storage), fixed), element)

    def micro_kernel(self, spec: MicroKernel) -> str:
        """The symbol of a micro-kernel's function, which is emitted on first use."""
        if spec not in self._micro_kernels:
            with ir.InsertionPoint(self._function.operation):
                self._micro_kernels[spec] = spec.emit(f"{self._function.name.value}_{spec.name}")
        return self._micro_kernels[spec]


def _pointer_attributes(read_only: bool) -> Any:
    names = ["llvm.noalias", "llvm.noundef", *(["llvm.readonly"] if read_only else [])]
    return ir.DictAttr.get({name: ir.UnitAttr.get() for name in names})
