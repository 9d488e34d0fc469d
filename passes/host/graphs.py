# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Host programs whose kernels run under constant graphs: in which region a call is, and its words.

Numbers are what the runtime works with; attributes of the host module say what they mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir
import numpy as np
from mlir.dialects import arith, func, llvm

from shapejit.gpu.interface import KernelInterface
from shapejit.pass_host import PassFailure
from shapejit.passes.branches.launches import BRANCHES, order_of, planned_accesses
from shapejit.passes.branches.order import Order, unordered
from shapejit.passes.buckets.samples import Integers, Samples, spread_samples
from shapejit.passes.host.dispatches import dispatches, interfaces, variants_of
from shapejit.passes.host.entry import EntryPoint, Value, integer_type, load_at, pointer_type, store
from shapejit.passes.host.program import (
    GPU_SLOT_ALIGNMENT,
    KERNELS,
    HostProgram,
    buffers_of,
    kernel_of,
)
from shapejit.passes.host.regions import BoundLaunch, Regions
from shapejit.passes.host.words import Address, Word, WordTable
from shapejit.passes.plan_memory import source_of
from shapejit.symbolic import Expr, map_exprs

REGION_ENTRY = "shapejit_region"
WORDS_ENTRY = "shapejit_words"

# Attributes of the host module, see `passes/lower_to_host.py`.
WORDS = "shapejit.words"
CALL_WORDS = "shapejit.call_words"
LAUNCHES = "shapejit.launches"
REGIONS = "shapejit.regions"
UNITS = "shapejit.units"
SAMPLES = "shapejit.samples"
WAITS = "shapejit.waits"
ORDERS = "shapejit.orders"

_REGION_TABLE = "shapejit_region_of_cell"

# Units of a launch that fill any GPU, many times over.
_MANY = 1 << 20


@dataclass(frozen=True)
class _Launch:
    """A launch in words.

    Attributes:
        bound: its kernel's dispatch and sizes.
        operands: the buffers that it reads and writes.
        variants: the interfaces of the kernel's variants.
        values: for each variant, the values that its interface asks for.
    """

    bound: BoundLaunch
    operands: tuple[Word, ...]
    variants: tuple[KernelInterface, ...]
    values: tuple[tuple[Expr, ...], ...]

    def units(self, variant: int, samples: Samples) -> Integers:
        """How many units of work a variant has at each sample: at least 1, at most `_MANY`.

        A unit is what one cluster of CTAs does at a time.
        """
        units = np.ones(len(samples))
        for value, tile in self.variants[variant].grid.tiles:
            size = self.values[variant][value]
            units *= np.ceil(samples.evaluate(size) / tile)
            if not samples.complete and size.constant is None:
                units *= 2  # between samples there may be larger sizes, but none twice as large
        found: Integers = np.clip(units, 1, _MANY).astype(np.int64)
        return found


class GraphProgram(HostProgram):
    """Lowers one function whose kernels run on a GPU under constant graphs."""

    alignment = GPU_SLOT_ALIGNMENT

    def emit_run(self) -> None:
        """Emits the two entry points, and says in attributes what their results mean."""
        reader = _Reader(self)
        launches = [reader.launch(op) for op in self.launches()]
        table = WordTable(
            itertools.chain(
                (word for launch in launches for words in launch.values for word in words),
                (word for launch in launches for word in launch.operands),
            )
        )
        try:
            regions = Regions.of([launch.bound for launch in launches])
        except ValueError as error:
            raise PassFailure(self.function, f"this program {error}") from error
        self._emit_region(regions)
        self._emit_words(table)
        self._describe(launches, table, regions)
        if BRANCHES in self.function.attributes:
            self._describe_orders(self._orders(launches, len(regions.variants)))

    def _describe_orders(self, orders: Sequence[Order]) -> None:
        """Says what launches wait for in each region, where it is not the one ahead of them."""
        distinct = dict.fromkeys(order for order in orders if not order.is_chain())
        numbers = {order: number for number, order in enumerate(distinct)}
        attributes = self.host.attributes
        attributes[WAITS] = _array(_array(map(_integers, order.waits)) for order in distinct)
        attributes[ORDERS] = _integers(numbers.get(order, -1) for order in orders)
        attributes[BRANCHES] = self.function.attributes[BRANCHES]

    def _orders(self, launches: Sequence[_Launch], regions: int) -> list[Order]:
        """The order of the launches in each region.

        Raises:
            PassFailure: two launches have the same memory, and neither waits for the other.
        """
        ops = self.launches()
        accesses = planned_accesses(
            [launch.operands for launch in launches], [len(op.results) for op in ops]
        )
        found = [order_of(self.module, self.function, region) for region in range(regions)]
        for order in dict.fromkeys(found):
            if (pair := unordered(accesses, order)) is not None:
                raise PassFailure(
                    ops[pair[1]],
                    f"has memory of launch {pair[0]}, and neither of the two waits for the other; "
                    "run shapejit-plan-branches before shapejit-plan-memory",
                )
        return found

    def _emit_region(self, regions: Regions) -> None:
        i64 = integer_type(64)
        entry = EntryPoint(REGION_ENTRY, 1, self.symbols, [i64])
        with ir.InsertionPoint(entry.block):
            cell = arith.constant(i64, 0)
            for axis in regions.axes:
                cells = arith.constant(i64, len(axis.breakpoints) + 1)
                cell = arith.muli(cell, cells)
                for breakpoint_ in axis.breakpoints:
                    beyond = entry.indexer.compare("sge", axis.size, breakpoint_)
                    cell = arith.addi(cell, arith.extui(i64, beyond))
            if regions.of_cell != tuple(range(len(regions.of_cell))):
                cell = self._looked_up(regions.of_cell, cell)
            func.ReturnOp([cell])

    def _looked_up(self, numbers: Sequence[int], position: Value) -> Value:
        """``numbers[position]`` as an i64."""
        i32 = integer_type(32)
        with ir.InsertionPoint.at_block_begin(self.block):
            llvm.GlobalOp(
                ir.Type.parse(f"!llvm.array<{len(numbers)} x i32>"),
                _REGION_TABLE,
                ir.Attribute.parse("#llvm.linkage<internal>"),
                constant=True,
                value=ir.DenseElementsAttr.get(np.array(numbers, dtype=np.int32)),
            )
        table = llvm.AddressOfOp(pointer_type(), _REGION_TABLE).result
        return arith.extui(integer_type(64), load_at(i32, table, position))

    def _emit_words(self, table: WordTable) -> None:
        entry = EntryPoint(WORDS_ENTRY, 4, self.symbols)
        with entry.body():
            for number, word in enumerate(table.words):
                store(self._word(entry, word), entry.arguments[3], number)

    def _word(self, entry: EntryPoint, word: Word) -> Value:
        if isinstance(word, Address):
            return self.pointer(entry, word)
        return entry.size(word)

    def _describe(self, launches: Sequence[_Launch], table: WordTable, regions: Regions) -> None:
        names = [
            [launch.bound.dispatch.module_name(v) for v in launch.bound.dispatch.variants]
            for launch in launches
        ]
        numbers = {
            name: number
            for number, name in enumerate(dict.fromkeys(itertools.chain.from_iterable(names)))
        }
        attributes = self.host.attributes
        attributes[KERNELS] = _array(map(ir.StringAttr.get, numbers))
        attributes[WORDS] = _array(ir.StringAttr.get(str(word)) for word in table.words)
        attributes[CALL_WORDS] = ir.IntegerAttr.get(integer_type(64), table.call_words)
        attributes[LAUNCHES] = _array(
            _array(
                (
                    ir.FlatSymbolRefAttr.get(launch.bound.dispatch.kernel),
                    _integers(map(table.number, launch.operands)),
                    _array(_integers(map(table.number, words)) for words in launch.values),
                )
            )
            for launch in launches
        )
        attributes[REGIONS] = _array(
            _integers(numbers[own[number]] for own, number in zip(names, chosen, strict=True))
            for chosen in regions.variants
        )
        samples = spread_samples(self.module)
        attributes[UNITS] = _array(map(_integers, _most_units(launches, regions, samples)))
        attributes[SAMPLES] = _array(
            _integers((region, *(values[symbol.id] for symbol in self.symbols)))
            for region, values in regions.first_samples(samples).items()
        )


def _most_units(launches: Sequence[_Launch], regions: Regions, samples: Samples) -> list[list[int]]:
    """For each region the most units of each launch there; 0 where nothing is known."""
    known: dict[tuple[BoundLaunch, int], list[int]] = {}
    for launch, used in zip(launches, zip(*regions.variants, strict=True), strict=True):
        for variant in set(used):
            if (launch.bound, variant) not in known:
                units = launch.units(variant, samples)
                known[launch.bound, variant] = regions.most(units, samples)
    return [
        [
            known[launch.bound, variant][number]
            for launch, variant in zip(launches, chosen, strict=True)
        ]
        for number, chosen in enumerate(regions.variants)
    ]


class _Reader:
    """Reads the launches of a program as words."""

    def __init__(self, program: HostProgram) -> None:
        self._found = dispatches(program.module)
        try:
            self._interfaces = interfaces(program.module)
        except ValueError as error:
            raise PassFailure(program.module, str(error)) from error
        self._buffers: dict[Any, Address] = dict(program.places)

    def launch(self, op: Any) -> _Launch:
        """The next launch of the program.

        Raises:
            PassFailure: it has no buffers, or its kernel no dispatch or not all of its variants.
        """
        sizes = map_exprs(op.attributes["sizes"].value)
        try:
            dispatch, variants = variants_of(kernel_of(op), self._found, self._interfaces)
        except LookupError as error:
            raise PassFailure(op, str(error)) from error
        return _Launch(
            BoundLaunch(dispatch, sizes),
            tuple(self._operands(op)),
            tuple(variants),
            tuple(_values(variant, dict(enumerate(sizes))) for variant in variants),
        )

    def _operands(self, op: Any) -> list[Word]:
        self._buffers |= buffers_of(op)
        values = [*map(source_of, op.operands), *op.results]
        return [self._buffers[value] for value in values]


def _values(interface: KernelInterface, sizes: Mapping[int, Expr]) -> tuple[Expr, ...]:
    return tuple(Expr.parse(text).substitute(symbols=sizes) for text in interface.values)


def _array(items: Iterable[Any]) -> Any:
    return ir.ArrayAttr.get(list(items))


def _integers(numbers: Iterable[int]) -> Any:
    return ir.DenseI64ArrayAttr.get(list(numbers))
