# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions of the host program under construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import mlir.ir as ir
from mlir.dialects import arith, func, llvm

from shapejit import ir as sir
from shapejit.passes.cpu.indexing import Indexer
from shapejit.symbolic import Expr

Value: TypeAlias = Any  # mlir.ir.Value; the bindings carry no types

# Marks an operand among the constant indices of llvm.getelementptr.
_DYNAMIC_INDEX = -(2**31)


def pointer_type() -> Any:
    """``!llvm.ptr``"""
    return ir.Type.parse("!llvm.ptr")


def integer_type(bits: int) -> Any:
    """``i<bits>``"""
    return ir.IntegerType.get_signless(bits)


def load(element: Any, base: Value, position: int) -> Value:
    """``base[position]`` of an array of `element`."""
    return llvm.load(element, _element(element, base, position))


def load_at(element: Any, base: Value, position: Value) -> Value:
    """``base[position]`` of an array of `element`, at an i64 position."""
    address = llvm.GEPOp(pointer_type(), base, [position], [_DYNAMIC_INDEX], element, 0).result
    return llvm.load(element, address)


def store(value: Value, base: Value, position: int) -> None:
    """``base[position] = value``"""
    llvm.store(value, _element(value.type, base, position))


def offset(base: Value, bytes_: Value) -> Value:
    """``base`` plus an i64 number of bytes."""
    byte = integer_type(8)
    return llvm.GEPOp(pointer_type(), base, [bytes_], [_DYNAMIC_INDEX], byte, 0).result


def _element(element: Any, base: Value, position: int) -> Value:
    return llvm.GEPOp(pointer_type(), base, [], [position], element, 0).result


class EntryPoint:
    """An entry point, whose first argument points to the values of all declared symbols.

    Args:
        name: of the function.
        num_arguments: pointers that it takes.
        symbols: the module's.
        results: types that it returns.
    """

    def __init__(
        self,
        name: str,
        num_arguments: int,
        symbols: Sequence[sir.Symbol],
        results: Sequence[Any] = (),
    ) -> None:
        self.i64 = integer_type(64)
        self.function = func.FuncOp(name, ([pointer_type()] * num_arguments, list(results)))
        self.block = self.function.add_entry_block()
        self.arguments: list[Value] = list(self.block.arguments)
        with ir.InsertionPoint(self.block):
            self.indexer = Indexer(self._symbol_values(symbols))

    @contextmanager
    def body(self) -> Iterator[None]:
        """Emits into the function, which returns nothing and is closed at the end."""
        with ir.InsertionPoint(self.block):
            yield
            func.ReturnOp([])

    def _symbol_values(self, symbols: Sequence[sir.Symbol]) -> list[Value]:
        """Index values of s0, s1, ..; a derived symbol is computed from those before it."""
        values: list[Value] = []
        for symbol in symbols:
            if symbol.derived is not None:
                values.append(_derive(symbol, Indexer(values)))
                continue
            loaded = load(self.i64, self.arguments[0], symbol.id)
            values.append(arith.index_cast(ir.IndexType.get(), loaded))
        return values

    def size(self, expr: Expr) -> Value:
        """The i64 value of a size."""
        return arith.index_cast(self.i64, self.indexer.value(expr))

    def load_pointer(self, base: Value, position: int) -> Value:
        """``base[position]`` of an array of pointers."""
        return load(pointer_type(), base, position)


def _derive(symbol: sir.Symbol, indexer: Indexer) -> Value:
    """The index value of a derived symbol. `max` and `min` are signed: an argument such as
    ``s0 - 2`` may be negative."""
    lhs, rhs = symbol.arguments
    if symbol.derived == "max":
        return arith.maxsi(indexer.value(lhs), indexer.value(rhs))
    if symbol.derived == "min":
        return arith.minsi(indexer.value(lhs), indexer.value(rhs))
    if symbol.derived == "floordiv":
        return indexer.value(lhs // rhs)
    if symbol.derived == "ceildiv":
        return indexer.value(lhs.ceildiv(rhs))
    return indexer.value(lhs % rhs)
