# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The micro-kernel under gemm and attention: a small block of C += A * B held in registers.

    C[0:rows, panel p] (+)= A[0:rows, 0:k] * B[panel p][0:k]        for each of `panels` panels

A lies in rows of a fixed stride, B in panels of ``width`` columns in which each k is one vector
row, C in rows of a fixed stride. No edge is handled here: callers pack into padded scratch, so that
every load and store is whole. Each row element of A is broadcast and multiplied with the vectors of
B, and all of C stays in registers over the whole of k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import func, scf, vector

from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.passes.cpu.memory import Buffer, flat_type
from shapejit.passes.cpu.scalars import Type, constant, multiply_add
from shapejit.symbolic import Expr


@dataclass(frozen=True)
class MicroKernel:
    """Shape of a micro-kernel; all counts are of elements.

    Attributes:
        element: type of A, B and C.
        lanes: elements of a vector.
        rows: rows of A and C.
        panels: panels of B worked on at once.
        vectors: vectors in the width of a panel.
        a_stride: from one row of A to the next.
        b_step: from one k to the next within a panel of B.
        c_stride: from one row of C to the next.
    """

    element: Type
    lanes: int
    rows: int
    panels: int
    vectors: int
    a_stride: int
    b_step: int
    c_stride: int

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @property
    def name(self) -> str:
        numbers = (self.rows, self.panels * self.width, self.a_stride, self.b_step, self.c_stride)
        return "micro_" + "_".join(map(str, numbers))

    @property
    def _type(self) -> Type:
        return ir.VectorType.get([self.lanes], self.element)

    def emit(self, symbol: str) -> str:
        """Emits the function ``symbol``, private to its module, and returns its name.

        It is not inlined: its callers share it, and alone it gets the whole register file.
        """
        index, boolean = ir.IndexType.get(), ir.IntegerType.get_signless(1)
        memory = flat_type(self.element)
        offsets = [index] * self.panels
        types = [memory, index, memory, *offsets, memory, *offsets, index, boolean]
        function = func.FuncOp(symbol, (types, []), visibility="private")
        function.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
        function.attributes["passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get("noinline")])
        with ir.InsertionPoint(function.add_entry_block()):
            self._emit_body(list(function.arguments))
            func.ReturnOp([])
        return symbol

    def call(
        self,
        symbol: str,
        indexer: Indexer,
        a: tuple[Buffer, Size],
        b: tuple[Buffer, Sequence[Size]],
        c: tuple[Buffer, Sequence[Size]],
        k: Size,
        fresh: Value,
    ) -> None:
        """Calls the function that `emit` made.

        Args:
            symbol: its name.
            indexer: of the calling function.
            a: buffer and offset of the first row.
            b: buffer and offset of each panel.
            c: buffer and offset of each panel's first row.
            k: length of the contraction; may be 0.
            fresh: i1; C is overwritten if true, added to if false.
        """
        (a_buffer, a_offset), (b_buffer, b_offsets), (c_buffer, c_offsets) = a, b, c
        operands = [a_buffer.memref, indexer.value(a_offset), b_buffer.memref]
        operands += [*map(indexer.value, b_offsets), c_buffer.memref]
        operands += [*map(indexer.value, c_offsets), indexer.value(k), fresh]
        func.CallOp([], symbol, operands)

    def _emit_body(self, arguments: list[Value]) -> None:
        indexer = Indexer([])
        n = self.panels
        a, b, c = (
            Buffer(memory, self.element)
            for memory in (arguments[0], arguments[2], arguments[3 + n])
        )
        a_offset = indexer.variable(arguments[1])
        b_offsets = [indexer.variable(value) for value in arguments[3 : 3 + n]]
        c_offsets = [indexer.variable(value) for value in arguments[4 + n : 4 + 2 * n]]
        k, fresh = indexer.variable(arguments[4 + 2 * n]), arguments[5 + 2 * n]
        cells = [
            c_offset + row * self.c_stride + v * self.lanes
            for row in range(self.rows)
            for c_offset in c_offsets
            for v in range(self.vectors)
        ]

        def step(index: Expr, sums: list[Value]) -> list[Value]:
            columns = [
                b.load_vector(
                    self._type, indexer.value(start + index * self.b_step + v * self.lanes)
                )
                for start in b_offsets
                for v in range(self.vectors)
            ]
            result: list[Value] = []
            for row in range(self.rows):
                scalar = a.load(indexer.value(a_offset + row * self.a_stride + index))
                factor = vector.broadcast(self._type, scalar)
                for column in columns:
                    result.append(multiply_add(factor, column, sums[len(result)]))
            return result

        sums = indexer.loop(0, k, step, init=self._initial(indexer, c, cells, fresh))
        for cell, value in zip(cells, sums, strict=True):
            c.store_vector(value, indexer.value(cell))

    def _initial(
        self, indexer: Indexer, c: Buffer, cells: Sequence[Expr], fresh: Value
    ) -> list[Value]:
        """Zeros if ``fresh``, else C."""
        zero = constant(self._type, 0.0 if isinstance(self.element, ir.FloatType) else 0)
        offsets = [indexer.value(cell) for cell in cells]
        choice = scf.IfOp(fresh, [self._type] * len(cells), has_else=True)
        with ir.InsertionPoint(choice.then_block):
            scf.YieldOp([zero] * len(cells))
        with ir.InsertionPoint(choice.else_block):
            scf.YieldOp([c.load_vector(self._type, offset) for offset in offsets])
        return list(choice.results)
