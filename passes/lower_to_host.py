# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-to-host: the launch program as native code.

Why: a call must cost next to nothing beside its kernels, so what depends on the sizes
(derived symbols, arena offsets, output sizes, checks of constraints) and the sequence of
launches is compiled like the kernels are. The function with the launches becomes a
module `@shapejit_host` with two entry points of a C interface:

``void shapejit_plan(const int64_t *symbols, int64_t *out)``
    `out` receives the arena's bytes, the sizes of every result in order, and last 0, or
    one plus the number of the first ``shapejit.constraint`` that does not hold.
``void shapejit_run(const int64_t *symbols, void **buffers, void *arena)``
    Runs the launches. `buffers` holds the inputs, the weights, the packed weights and
    the results, in this order; the arena is aligned to 64 bytes.

`symbols` has a value for every declared symbol in the order of ids; those of derived
symbols are ignored.

Before::

    func.func @main(%x: .. {shapejit.kind = "input"}, %w: .. {shapejit.kind = "weight"}) -> ..
        attributes {shapejit.arena = #shapejit.shape<[s0 * 32]>} {
      %0 = shapejit.launch @a #n (%x) {buffers = [#shapejit.buffer<arena 0>]} : ..
      %1 = shapejit.launch @b #n (%0, %w) {buffers = [#shapejit.buffer<output 0>]} : ..
      return %1

After::

    module @shapejit_host attributes {shapejit.target = "cpu"} {
      func.func private @a(!llvm.ptr, !llvm.ptr, i64)
      func.func private @b(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64)
      func.func @shapejit_plan(%symbols: !llvm.ptr, %out: !llvm.ptr) { .. }
      func.func @shapejit_run(%symbols: !llvm.ptr, %buffers: !llvm.ptr, %arena: !llvm.ptr) { .. }
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir
from mlir.dialects import arith, func, llvm

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, register_pass
from shapejit.passes.cpu.indexing import Indexer
from shapejit.passes.plan_memory import source_of
from shapejit.symbolic import Expr, map_exprs

HOST_MODULE = "shapejit_host"
PLAN_ENTRY = "shapejit_plan"
RUN_ENTRY = "shapejit_run"

#: Alignment of every slot in bytes: a cache line, and the widest vector.
SLOT_ALIGNMENT = 64

# Marks an operand among the constant indices of llvm.getelementptr.
_DYNAMIC_INDEX = -(2**31)


class _EntryPoint:
    """A function of the host module under construction, with all symbols' values known."""

    def __init__(self, name: str, num_arguments: int, symbols: Sequence[sir.Symbol]) -> None:
        pointer = ir.Type.parse("!llvm.ptr")
        self.i64 = ir.IntegerType.get_signless(64)
        self.function = func.FuncOp(name, ([pointer] * num_arguments, []))
        self.block = self.function.add_entry_block()
        self.arguments = list(self.block.arguments)
        self._pointer = pointer
        with ir.InsertionPoint(self.block):
            self.indexer = Indexer(self._symbol_values(symbols))

    @contextmanager
    def body(self) -> Iterator[None]:
        """Emits into the function, which is closed at the end."""
        with ir.InsertionPoint(self.block):
            yield
            func.ReturnOp([])

    def _symbol_values(self, symbols: Sequence[sir.Symbol]) -> list[Any]:
        """Index values of s0, s1, ..; a derived symbol is computed from those before it."""
        values: list[Any] = []
        for symbol in symbols:
            if symbol.derived is not None:
                values.append(_derive(symbol, Indexer(values)))
                continue
            loaded = self.load(self.i64, self.arguments[0], symbol.id)
            values.append(arith.index_cast(ir.IndexType.get(), loaded))
        return values

    def size(self, expr: Expr) -> Any:
        """The i64 value of a size."""
        return arith.index_cast(self.i64, self.indexer.value(expr))

    def load(self, element: Any, base: Any, position: int) -> Any:
        """``base[position]`` of an array of i64 or pointers."""
        return llvm.load(element, self._element(element, base, position))

    def store(self, value: Any, base: Any, position: int) -> None:
        """``base[position] = value``"""
        llvm.store(value, self._element(value.type, base, position))

    def _element(self, element: Any, base: Any, position: int) -> Any:
        return llvm.GEPOp(self._pointer, base, [], [position], element, 0).result

    def load_pointer(self, base: Any, position: int) -> Any:
        """``base[position]`` of an array of pointers."""
        return self.load(self._pointer, base, position)

    def offset_pointer(self, base: Any, offset: Expr) -> Any:
        """``base`` plus an offset in bytes."""
        byte = ir.IntegerType.get_signless(8)
        index = self.size(offset)
        return llvm.GEPOp(self._pointer, base, [index], [_DYNAMIC_INDEX], byte, 0).result


def _derive(symbol: sir.Symbol, indexer: Indexer) -> Any:
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


def _align(size: Expr) -> Expr:
    return size.ceildiv(SLOT_ALIGNMENT) * SLOT_ALIGNMENT


class _HostProgram:
    """Lowers one function into the host module."""

    def __init__(self, module: Any, function: Any) -> None:
        self.module = module
        self.function = function
        self.ops = sir.operations(sir.body(function))
        self.symbols = sir.symbols(module)
        self.constraints = sir.constraints(module)
        if "shapejit.arena" not in function.attributes:
            raise PassFailure(function, "has no memory plan; run shapejit-plan-memory first")
        slots = sir.attr_sizes(function.attributes["shapejit.arena"])
        self.offsets = [sum(map(_align, slots[:i]), Expr.const(0)) for i in range(len(slots))]
        # A kernel may read one element of an empty tensor and discard it: where the last slot is
        # empty, that element is past its end.
        past_end = SLOT_ALIGNMENT if slots else 0
        self.arena_bytes = sum(map(_align, slots), Expr.const(past_end))
        self.positions = self._buffer_positions()
        self.outputs = list(self.ops[-1].operands)
        self.declared: set[str] = set()

    def _buffer_positions(self) -> dict[Any, int]:
        """Place of every argument and packed weight in the buffer table."""
        arguments = list(sir.body(self.function).arguments)
        kinds = [sir.argument_kind(self.function, i) for i in range(len(arguments))]
        order = [a for a, kind in zip(arguments, kinds, strict=True) if kind == "input"]
        order += [a for a, kind in zip(arguments, kinds, strict=True) if kind == "weight"]
        order += [op.results[0] for op in self.ops if op.name == "shapejit.pack"]
        return {value: i for i, value in enumerate(order)}

    def lower(self) -> None:
        host = ir.Operation.create(
            "builtin.module",
            attributes={
                "sym_name": ir.StringAttr.get(HOST_MODULE),
                "shapejit.target": ir.StringAttr.get("cpu"),
            },
            regions=1,
            ip=ir.InsertionPoint(self.function),
        )
        self.block = host.regions[0].blocks.append()
        with ir.InsertionPoint(self.block):
            self._emit_plan()
            self._emit_run()
        self.function.erase()

    def _emit_plan(self) -> None:
        entry = _EntryPoint(PLAN_ENTRY, 2, self.symbols)
        with entry.body():
            out = entry.arguments[1]
            sizes = [size for value in self.outputs for size in sir.shape_of(value)]
            for position, size in enumerate([self.arena_bytes, *sizes]):
                entry.store(entry.size(size), out, position)
            entry.store(self._violated(entry), out, 1 + len(sizes))

    def _violated(self, entry: _EntryPoint) -> Any:
        """Number (from 1) of the first constraint that does not hold, else 0."""
        code = arith.constant(entry.i64, 0)
        for number, constraint in reversed(list(enumerate(self.constraints, start=1))):
            for relation in constraint.relations:
                predicate = "eq" if relation.is_equality else "sge"
                holds = entry.indexer.compare(predicate, relation.expr, 0)
                code = arith.select(holds, code, arith.constant(entry.i64, number))
        return code

    def _emit_run(self) -> None:
        entry = _EntryPoint(RUN_ENTRY, 3, self.symbols)
        with entry.body():
            pointers = {
                value: entry.load_pointer(entry.arguments[1], position)
                for value, position in self.positions.items()
                if list(value.uses)
            }
            for op in self.ops:
                if op.name == "shapejit.launch":
                    self._emit_launch(entry, op, pointers)
                elif op.name not in ("shapejit.pack", "shapejit.view", "func.return"):
                    raise PassFailure(
                        op,
                        f"'{op.name}' is not part of a launch program; "
                        "shapejit-form-kernels puts it into a kernel",
                    )

    def _emit_launch(self, entry: _EntryPoint, op: Any, pointers: dict[Any, Any]) -> None:
        if "buffers" not in op.attributes:
            raise PassFailure(op, "has no buffers; run shapejit-plan-memory first")
        for result, buffer in zip(op.results, op.attributes["buffers"], strict=True):
            pointers[result] = self._buffer_pointer(entry, str(buffer))
        arguments = [pointers[source_of(v)] for v in op.operands]
        arguments += [pointers[v] for v in op.results]
        arguments += [entry.size(e) for e in map_exprs(op.attributes["sizes"].value)]
        name = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
        self._declare(name, [a.type for a in arguments])
        with op.location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), arguments)

    def _buffer_pointer(self, entry: _EntryPoint, buffer: str) -> Any:
        """Pointer of ``#shapejit.buffer<arena 3>`` or ``#shapejit.buffer<output 0>``."""
        space, number = buffer.removeprefix("#shapejit.buffer<").removesuffix(">").split()
        if space == "arena":
            return entry.offset_pointer(entry.arguments[2], self.offsets[int(number)])
        return entry.load_pointer(entry.arguments[1], len(self.positions) + int(number))

    def _declare(self, name: str, types: Sequence[Any]) -> None:
        if name in self.declared:
            return
        self.declared.add(name)
        with ir.InsertionPoint.at_block_begin(self.block):
            func.FuncOp(name, (list(types), []), visibility="private")


@register_pass("shapejit-lower-to-host", dialects=("arith", "func", "llvm"))
@dataclass(frozen=True)
class LowerToHost(Pass):
    """Turn the function of launches into the native host program."""

    def run(self, module: Any) -> None:
        functions = sir.functions(module)
        if len(functions) != 1:
            raise PassFailure(module, f"expected one function of launches, got {len(functions)}")
        _HostProgram(module, functions[0]).lower()
