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

from shapejit.passes.cpu.indexing import Indexer, Size
from shapejit.passes.cpu.memory import Buffer, buffer_of_pointer, flat_type
from shapejit.passes.cpu.micro import MicroKernel
from shapejit.passes.cpu.parallel import CHUNK_COST, Share, emit_shared_entry
from shapejit.passes.cpu.scalars import Type, byte_width, storage_type
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import as_expr


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
        chunk_cost: picoseconds of work that a thread takes at least.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        symbols: int,
        vector_bytes: int,
        chunk_cost: int = CHUNK_COST,
    ) -> None:
        self.vector_bytes = vector_bytes
        self._chunk_cost = chunk_cost
        pointer = ir.Type.parse("!llvm.ptr")
        i64 = ir.IntegerType.get_signless(64)
        tensors = [*inputs, *outputs]
        self._function = func.FuncOp(name, ([pointer] * len(tensors) + [i64] * symbols, []))
        self._function.arg_attrs = ir.ArrayAttr.get(
            [_pointer_attributes(i < len(inputs)) for i in range(len(tensors))]
            + [ir.DictAttr.get({})] * symbols
        )
        self._block = self._function.add_entry_block()
        self._name = name
        self._inputs, self._outputs, self._symbols = tuple(inputs), tuple(outputs), symbols
        self._share: Share | None = None
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
        if self._share is not None:
            with ir.InsertionPoint.at_block_begin(self._function.operation.block):
                emit_shared_entry(self._name, self._function, self._share, self._chunk_cost)

    def share(self, units: Size, work: Size, align: Size = 1) -> tuple[Expr, Expr]:
        """Lets threads share the outermost loop, over independent units: the bounds of this call.

        The function becomes the part that computes units [first, last); the kernel's own function
        calls it for all units at once, or for chunks of them on several threads. At most once a
        kernel, before its loops. Scratch belongs to a call of the part, hence to one thread.

        Args:
            units: how many there are, over the kernel's symbols.
            work: picoseconds that all units take about, over the kernel's symbols.
            align: chunks at least this large are made multiples of it.
        """
        assert self._share is None, "a kernel has one shared loop"
        self._share = Share(*map(self.indexer.spelled_out, (units, work, align)))
        index = ir.IndexType.get()
        function, block = self._function, self._block
        first, last = (block.add_argument(index, function.location) for _ in range(2))
        inputs = [argument.type for argument in block.arguments]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, []))
        function.arg_attrs = ir.ArrayAttr.get([*function.arg_attrs, *[ir.DictAttr.get({})] * 2])
        function.attributes["sym_name"] = ir.StringAttr.get(f"{self._name}_part")
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        function.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
        function.attributes["passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get("noinline")])
        bound = as_expr(units) + 1
        return self.indexer.variable(first, bound), self.indexer.variable(last, bound)

    def beside(self, suffix: str) -> KernelFunction:
        """A function of the same arguments for a part of the work, which `call` calls.

        So a kernel whose work has steps, each shared by threads, is a function a step.
        """
        with ir.InsertionPoint(self._function.operation):
            return KernelFunction(
                f"{self._name}_{suffix}",
                self._inputs,
                self._outputs,
                self._symbols,
                self.vector_bytes,
                self._chunk_cost,
            )

    def call(self, other: KernelFunction) -> None:
        """Calls a function that `beside` made, at the current point."""
        func.CallOp([], other._name, list(self._block.arguments))

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
                self._micro_kernels[spec] = spec.emit(f"{self._name}_{spec.name}")
        return self._micro_kernels[spec]


def _pointer_attributes(read_only: bool) -> Any:
    names = ["llvm.noalias", "llvm.noundef", *(["llvm.readonly"] if read_only else [])]
    return ir.DictAttr.get({name: ir.UnitAttr.get() for name in names})
