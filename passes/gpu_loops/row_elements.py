# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The elements of a sort's rows: as records, and fetched again by them.

Sorts count with i32: a row has less than 2^31 elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir.dialects import arith

from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.evaluate import Vector
from shapejit.passes.gpu_loops.networks import GlobalRecords
from shapejit.passes.gpu_loops.problem import Indices, Memory
from shapejit.passes.gpu_loops.row_ops import Sort
from shapejit.passes.nvgpu.builder import Num, Value, add, i32, i64, value
from shapejit.passes.rowwise.keys import Keys, Record
from shapejit.symbolic import Expr


class RowElements:
    """What a sort reads and writes.

    Attributes:
        keys: how elements become records.
    """

    def __init__(self, emission: Emission, phase: Sort) -> None:
        self._emission, self._phase, self._indexer = emission, phase, emission.indexer
        problem = phase.problem
        self.keys = Keys(problem.input.type.element_type, problem.descending)
        values, places = phase.outputs
        assert values is not None and places is not None, "checked before"
        self._values, self._places = values, places

    @property
    def length(self) -> Value:
        """Elements of a row, i32."""
        return self._narrow(self._indexer.ssa(self._phase.length))

    @property
    def head(self) -> Value:
        """Elements of a row of the results, i32."""
        return self._narrow(self._indexer.ssa(self._phase.problem.head))

    def each(self, first: Num, limit: Num, step: int, body: Callable[[Value], None]) -> None:
        """A loop over numbers (i32); rows may be read and written in its body."""

        def one(index: Expr, _: list[Value]) -> Sequence[Value]:
            with self._emission.evaluator.inside():
                body(self._narrow(self._indexer.ssa(index)))
            return ()

        lower, upper = (self._emission.index(value(number)) for number in (first, limit))
        self._indexer.loop(lower, upper, one, size=1 << 30, step=step)

    def record(self, row: Indices, place: Num, condition: Value | None = None) -> Record:
        """The record of an element; of whatever if a condition fails."""
        wide = arith.extui(i64(), value(place))
        return self.keys.record(self._element(row, self._number(place), condition), wide)

    def finish(self, row: Indices, number: Num, record: Record) -> None:
        """Writes the element of a record, as a number of the row of the results."""
        place = self.keys.place(record)
        narrow = place if self._indexer.type == i64() else arith.trunci(i32(), place)
        element = self._element(row, self._indexer.variable(narrow, computed=True), None)
        self._store(self._values, row, number, element)
        self._store(self._places, row, number, place)

    def scratch(self, row: Indices) -> GlobalRecords:
        """The memory of a row of the results, as records."""
        memories = [self._places] if self.keys.words == 1 else [self._values, self._places]
        addresses = []
        for memory in memories:
            offset = self._indexer.simplify(memory.offset((*row, Expr.const(0))))
            address, further = self._emission.evaluator.address(memory, offset)
            addresses.append(add(address, further))
        return GlobalRecords(tuple(addresses))

    def _element(self, row: Indices, place: Expr, condition: Value | None) -> Value:
        lane = self._emission.lanes(1)
        assert lane.dim_index is not None
        evaluator = self._emission.evaluator
        with evaluator.vector(Vector(1, lane.dim_index, 0, condition)):
            return evaluator.results(self._phase.loop, (*row, place + lane))[0]

    def _store(self, memory: Memory, row: Indices, number: Num, element: Value) -> None:
        lane = self._emission.lanes(1)
        assert lane.dim_index is not None
        with self._emission.evaluator.vector(Vector(1, lane.dim_index, 0, None)):
            self._emission.evaluator.store(memory, (*row, self._number(number) + lane), [element])

    def _number(self, number: Num) -> Expr:
        """An i32 as an index expression."""
        return self._indexer.variable(self._emission.index(value(number)), 1 << 30)

    def _narrow(self, number: Value) -> Value:
        return number if number.type == i32() else arith.trunci(i32(), number)
