# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The host program of a function of launches: what is the same for all targets, and the CPU's."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mlir.ir as ir
from mlir.dialects import arith, func

from shapejit import ir as sir
from shapejit.pass_host import PassFailure
from shapejit.passes.host.entry import EntryPoint, Value, offset, store
from shapejit.passes.host.words import Address, Place
from shapejit.passes.plan_memory import arena_slots, source_of
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

# Of the arguments' table, in order; after them come the outputs.
_BUFFERS: tuple[Place, ...] = ("input", "weight", "copy")
_BUFFER = re.compile(r"#shapejit\.buffer<(arena|output|input) (\d+)>")
_PLACES: dict[str, Place] = {"arena": "arena", "output": "output", "input": "input"}


class HostProgram:
    """Lowers one function into the host module; as it is, one whose kernels run on the CPU.

    Args:
        module: with the kernels.
        function: the launches, with their plan of memory.
    """

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
        self.slots = arena_slots(function)
        self.places = self._places()
        counts = Counter(address.place for address in self.places.values())
        starts = itertools.accumulate((counts[place] for place in _BUFFERS), initial=0)
        self._first = dict(zip((*_BUFFERS, "output"), starts, strict=True))
        # New values of inputs have the inputs' memory; they come after all other results.
        returned = list(self.ops[-1].operands)
        self.outputs = returned[: len(returned) - len(sir.updated_arguments(function))]
        self.declared: set[str] = set()

    def _align(self, size: Expr) -> Expr:
        return size.ceildiv(self.alignment) * self.alignment

    def _slots_bytes(
        self, entry: EntryPoint, slots: Sequence[tuple[Expr, ...]], extra: int = 0
    ) -> Value:
        """The bytes that slots take one after the other, and `extra` ones."""
        plain = (self._align(sizes[0]) for sizes in slots if len(sizes) == 1)
        total = entry.size(sum(plain, Expr.const(extra)))
        for sizes in slots:
            if len(sizes) > 1:
                values = [entry.size(self._align(size)) for size in sizes]
                total = arith.addi(total, functools.reduce(arith.maxsi, values))
        return total

    def _arena_bytes(self, entry: EntryPoint) -> Value:
        # A kernel may read one element of an empty tensor and discard it: where the last slot is
        # empty, that element is past its end.
        return self._slots_bytes(entry, self.slots, self.alignment if self.slots else 0)

    def _places(self) -> dict[Any, Address]:
        """What the inputs, weights and copies of weights are, in the order of the buffers."""
        arguments = list(sir.body(self.function).arguments)
        kinds = [sir.argument_kind(self.function, i) for i in range(len(arguments))]
        of_place: dict[Place, list[Any]] = {
            "input": [a for a, kind in zip(arguments, kinds, strict=True) if kind == "input"],
            "weight": [a for a, kind in zip(arguments, kinds, strict=True) if kind == "weight"],
            "copy": [op.results[0] for op in self.ops if op.name in sir.COPIES],
        }
        return {
            value: Address(place, number)
            for place in _BUFFERS
            for number, value in enumerate(of_place[place])
        }

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
            self.emit_run()
        self.function.erase()

    def _emit_plan(self) -> None:
        entry = EntryPoint(PLAN_ENTRY, 2, self.symbols)
        with entry.body():
            out = entry.arguments[1]
            sizes = [size for value in self.outputs for size in sir.shape_of(value)]
            store(self._arena_bytes(entry), out, 0)
            for position, size in enumerate(sizes, start=1):
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

    def emit_run(self) -> None:
        """Emits what runs the launches."""
        entry = EntryPoint(RUN_ENTRY, 3, self.symbols)
        with entry.body():
            pointers = self.pointers(entry)
            for op in self.launches():
                self._emit_launch(op, self.arguments(entry, op, pointers))

    def pointers(self, entry: EntryPoint) -> dict[Any, Value]:
        """The addresses of inputs, weights and copies of weights that are used."""
        return {
            value: self.pointer(entry, address)
            for value, address in self.places.items()
            if list(value.uses)
        }

    def pointer(self, entry: EntryPoint, address: Address) -> Value:
        """The address of a buffer, in an entry point that takes symbols, buffers and arena."""
        if address.place == "arena":
            before = self._slots_bytes(entry, self.slots[: address.number])
            return offset(entry.arguments[2], before)
        return entry.load_pointer(entry.arguments[1], self._first[address.place] + address.number)

    def launches(self) -> list[Any]:
        """The launches in order; no other op of the function runs anything."""
        launches = []
        for op in self.ops:
            if op.name == "shapejit.launch":
                launches.append(op)
            elif op.name not in (*sir.COPIES, "shapejit.view", "func.return"):
                raise PassFailure(
                    op,
                    f"'{op.name}' is not part of a launch program; "
                    "shapejit-form-kernels puts it into a kernel",
                )
        return launches

    def arguments(
        self, entry: EntryPoint, op: Any, pointers: dict[Any, Value]
    ) -> tuple[list[Value], list[Value]]:
        """Addresses of a launch's operands and results, and the values of the kernel's symbols.

        Args:
            pointers: addresses by value; those of the results are added.
        """
        for result, address in buffers_of(op).items():
            pointers[result] = self.pointer(entry, address)
        addresses = [pointers[source_of(v)] for v in op.operands]
        addresses += [pointers[v] for v in op.results]
        return addresses, [entry.size(e) for e in map_exprs(op.attributes["sizes"].value)]

    def _emit_launch(self, op: Any, arguments: tuple[list[Value], list[Value]]) -> None:
        operands = [*arguments[0], *arguments[1]]
        self._declare(kernel_of(op), [value.type for value in operands])
        with op.location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(kernel_of(op)), operands)

    def _declare(self, name: str, types: Sequence[Any]) -> None:
        if name in self.declared:
            return
        self.declared.add(name)
        with ir.InsertionPoint.at_block_begin(self.block):
            func.FuncOp(name, (list(types), []), visibility="private")


def kernel_of(launch: Any) -> str:
    """The name of the kernel that a launch launches."""
    name: str = ir.FlatSymbolRefAttr(launch.attributes["kernel"]).value
    return name


def buffers_of(launch: Any) -> dict[Any, Address]:
    """Where the results of a launch go.

    Raises:
        PassFailure: the launch has no plan.
    """
    if "buffers" not in launch.attributes:
        raise PassFailure(launch, "has no buffers; run shapejit-plan-memory first")
    buffers = launch.attributes["buffers"]
    return {r: _buffer(str(b)) for r, b in zip(launch.results, buffers, strict=True)}


def _buffer(text: str) -> Address:
    """The buffer that ``#shapejit.buffer<arena 3>`` names."""
    match = _BUFFER.fullmatch(text)
    assert match is not None, text
    return Address(_PLACES[match[1]], int(match[2]))
