# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-to-host: the launch program as native code.

Why: a call must cost next to nothing beside its kernels, so what depends on the sizes
(derived symbols, arena offsets, output sizes, checks of constraints, on a GPU the choice of
each kernel's variant) and the sequence of launches is compiled like the kernels are. The
function with the launches becomes a module `@shapejit_host` with two entry points of a C
interface:

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

In a module for a GPU (``shapejit.target = "cuda:.."``) launches are queued in a stream:

``int32_t shapejit_run(symbols, buffers, arena, void *const *kernels, void *stream)``
    Queues the launches until one fails; returns the status of that one, else 0. The arena
    is aligned to 256 bytes. `kernels` has the handles of the kernels' variants in the order
    of the module's attribute ``shapejit.kernels``, the names of ``gpu.module`` ops.

There `@a` and `@b` are functions that choose a variant, see `passes/host/launchers.py`. The
kernels need their ``shapejit.dispatch``, and each variant a ``gpu.module`` with its interface
(which may be empty otherwise: its code can be elsewhere).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir
from mlir.dialects import arith, func, llvm

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, register_pass
from shapejit.passes.host.dispatches import dispatches, interfaces
from shapejit.passes.host.entry import EntryPoint, Value, integer_type, store
from shapejit.passes.host.launchers import Launchers
from shapejit.passes.plan_memory import source_of
from shapejit.symbolic import Expr, map_exprs

HOST_MODULE = "shapejit_host"
PLAN_ENTRY = "shapejit_plan"
RUN_ENTRY = "shapejit_run"

#: Alignment of every slot in bytes: a cache line, and the widest vector.
SLOT_ALIGNMENT = 64

#: The same on a GPU: what its allocations are aligned to, a multiple of what tensor maps need.
GPU_SLOT_ALIGNMENT = 256

KERNELS = "shapejit.kernels"
"""Attribute of the host module for a GPU: the variants in the order of the table of kernels."""


class _HostProgram:
    """Lowers one function into the host module."""

    #: Of every slot of the arena, in bytes.
    alignment = SLOT_ALIGNMENT

    def __init__(self, module: Any, function: Any) -> None:
        self.module = module
        self.function = function
        self.ops = sir.operations(sir.body(function))
        self.symbols = sir.symbols(module)
        self.constraints = sir.constraints(module)
        if "shapejit.arena" not in function.attributes:
            raise PassFailure(function, "has no memory plan; run shapejit-plan-memory first")
        slots = sir.attr_sizes(function.attributes["shapejit.arena"])
        self.offsets = [sum(map(self._align, slots[:i]), Expr.const(0)) for i in range(len(slots))]
        # A kernel may read one element of an empty tensor and discard it: where the last slot is
        # empty, that element is past its end.
        past_end = self.alignment if slots else 0
        self.arena_bytes = sum(map(self._align, slots), Expr.const(past_end))
        self.positions = self._buffer_positions()
        self.outputs = list(self.ops[-1].operands)
        self.declared: set[str] = set()

    def _align(self, size: Expr) -> Expr:
        return size.ceildiv(self.alignment) * self.alignment

    def _buffer_positions(self) -> dict[Any, int]:
        """Place of every argument and packed weight in the buffer table."""
        arguments = list(sir.body(self.function).arguments)
        kinds = [sir.argument_kind(self.function, i) for i in range(len(arguments))]
        order = [a for a, kind in zip(arguments, kinds, strict=True) if kind == "input"]
        order += [a for a, kind in zip(arguments, kinds, strict=True) if kind == "weight"]
        order += [op.results[0] for op in self.ops if op.name == "shapejit.pack"]
        return {value: i for i, value in enumerate(order)}

    def lower(self) -> None:
        """Makes the host module and erases the function."""
        self.host = ir.Operation.create(
            "builtin.module",
            attributes={
                "sym_name": ir.StringAttr.get(HOST_MODULE),
                "shapejit.target": ir.StringAttr.get("cpu"),
            },
            regions=1,
            ip=ir.InsertionPoint(self.function),
        )
        self.block = self.host.regions[0].blocks.append()
        with ir.InsertionPoint(self.block):
            self._emit_plan()
            self._emit_run()
        self.function.erase()

    def _emit_plan(self) -> None:
        entry = EntryPoint(PLAN_ENTRY, 2, self.symbols)
        with entry.body():
            out = entry.arguments[1]
            sizes = [size for value in self.outputs for size in sir.shape_of(value)]
            for position, size in enumerate([self.arena_bytes, *sizes]):
                store(entry.size(size), out, position)
            store(self._violated(entry), out, 1 + len(sizes))

    def _violated(self, entry: EntryPoint) -> Any:
        """Number (from 1) of the first constraint that does not hold, else 0."""
        code = arith.constant(entry.i64, 0)
        for number, constraint in reversed(list(enumerate(self.constraints, start=1))):
            for relation in constraint.relations:
                predicate = "eq" if relation.is_equality else "sge"
                holds = entry.indexer.compare(predicate, relation.expr, 0)
                code = arith.select(holds, code, arith.constant(entry.i64, number))
        return code

    def _emit_run(self) -> None:
        entry = EntryPoint(RUN_ENTRY, 3, self.symbols)
        with entry.body():
            pointers = self._pointers(entry)
            for op in self._launches():
                self._emit_launch(op, self._arguments(entry, op, pointers))

    def _pointers(self, entry: EntryPoint) -> dict[Any, Value]:
        """The addresses of inputs, weights and packed weights that are used."""
        return {
            value: entry.load_pointer(entry.arguments[1], position)
            for value, position in self.positions.items()
            if list(value.uses)
        }

    def _launches(self) -> list[Any]:
        """The launches in order; no other op of the function runs anything."""
        launches = []
        for op in self.ops:
            if op.name == "shapejit.launch":
                launches.append(op)
            elif op.name not in ("shapejit.pack", "shapejit.view", "func.return"):
                raise PassFailure(
                    op,
                    f"'{op.name}' is not part of a launch program; "
                    "shapejit-form-kernels puts it into a kernel",
                )
        return launches

    def _arguments(
        self, entry: EntryPoint, op: Any, pointers: dict[Any, Value]
    ) -> tuple[list[Value], list[Value]]:
        """Addresses of a launch's operands and results, and the values of the kernel's symbols.

        Args:
            pointers: addresses by value; those of the results are added.
        """
        if "buffers" not in op.attributes:
            raise PassFailure(op, "has no buffers; run shapejit-plan-memory first")
        for result, buffer in zip(op.results, op.attributes["buffers"], strict=True):
            pointers[result] = self._buffer_pointer(entry, str(buffer))
        addresses = [pointers[source_of(v)] for v in op.operands]
        addresses += [pointers[v] for v in op.results]
        return addresses, [entry.size(e) for e in map_exprs(op.attributes["sizes"].value)]

    def _emit_launch(self, op: Any, arguments: tuple[list[Value], list[Value]]) -> None:
        operands = [*arguments[0], *arguments[1]]
        self._declare(_kernel_of(op), [value.type for value in operands])
        with op.location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(_kernel_of(op)), operands)

    def _buffer_pointer(self, entry: EntryPoint, buffer: str) -> Any:
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


class _GpuHostProgram(_HostProgram):
    """Lowers one function whose kernels run on a GPU."""

    alignment = GPU_SLOT_ALIGNMENT

    def _emit_run(self) -> None:
        try:
            found = interfaces(self.module)
        except ValueError as error:
            raise PassFailure(self.module, str(error)) from error
        launchers = Launchers(self.block, dispatches(self.module), found)
        i32 = integer_type(32)
        entry = EntryPoint(RUN_ENTRY, 5, self.symbols, [i32])
        end = entry.function.regions[0].blocks.append(i32)
        with ir.InsertionPoint(end):
            func.ReturnOp([end.arguments[0]])
        block = entry.block
        with ir.InsertionPoint(block):
            ok = arith.constant(i32, 0)
            pointers = self._pointers(entry)
        for op in self._launches():
            with ir.InsertionPoint(block), op.location:
                addresses, sizes = self._arguments(entry, op, pointers)
                status = self._launch(launchers, op, addresses, sizes, entry.arguments[3:])
                block = _next_block(status, ok, end)
        with ir.InsertionPoint(block):
            llvm.BrOp([ok], end)
        names = [ir.StringAttr.get(name) for name in launchers.table]
        self.host.attributes[KERNELS] = ir.ArrayAttr.get(names)

    def _launch(
        self,
        launchers: Launchers,
        op: Any,
        addresses: Sequence[Value],
        sizes: Sequence[Value],
        context: Sequence[Value],
    ) -> Value:
        """The status of a launch."""
        kernel = _kernel_of(op)
        try:
            launchers.need(kernel, len(addresses), len(sizes))
        except LookupError as error:
            raise PassFailure(op, str(error)) from error
        operands = [*addresses, *sizes, *context]
        symbol = ir.FlatSymbolRefAttr.get(kernel)
        return func.CallOp([integer_type(32)], symbol, operands).result


def _next_block(status: Value, ok: Value, end: Any) -> Any:
    """The block that goes on after a launch that did not fail; a failure ends the function."""
    current = ir.InsertionPoint.current.block
    following = current.create_after()
    going_on = arith.cmpi(arith.CmpIPredicate.eq, status, ok)
    llvm.CondBrOp(going_on, [], [status], following, end)
    return following


def _kernel_of(launch: Any) -> str:
    name: str = ir.FlatSymbolRefAttr(launch.attributes["kernel"]).value
    return name


def _is_for_gpu(module: Any) -> bool:
    if "shapejit.target" not in module.attributes:
        return False
    target: str = ir.StringAttr(module.attributes["shapejit.target"]).value
    return target.startswith("cuda")


@register_pass("shapejit-lower-to-host", dialects=("arith", "func", "gpu", "llvm", "scf"))
@dataclass(frozen=True)
class LowerToHost(Pass):
    """Turn the function of launches into the native host program."""

    def run(self, module: Any) -> None:
        functions = sir.functions(module)
        if len(functions) != 1:
            raise PassFailure(module, f"expected one function of launches, got {len(functions)}")
        kind = _GpuHostProgram if _is_for_gpu(module) else _HostProgram
        kind(module, functions[0]).lower()
