# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sorts of rows, and heads of them, which threads share by rows.

Records (see `shapejit.passes.rowwise.keys`) are sorted in place of elements. All of a row is sorted
in the memory of its results: that of the places has 8 bytes an element, as much as a record, and
for wide elements that of the values has the other word. A head needs no more than a few records at
once: those that come before the last of the best so far are collected in a buffer on the stack,
which is sorted and cut to the head whenever it is full.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, math, scf, vector

from shapejit.passes.cpu.indexing import Value
from shapejit.passes.cpu.memory import Buffer
from shapejit.passes.cpu.networks import LANES, Records, emit_network, words_type
from shapejit.passes.cpu.parallel import ELEMENT_COST, share_nest
from shapejit.passes.cpu.row_ops import RowKernel
from shapejit.passes.rowwise.keys import Keys, Record, comes_before
from shapejit.passes.rowwise.problem import MAX_HEAD
from shapejit.passes.rowwise.values import integer
from shapejit.symbolic import Expr, product

_SORT_COST = 40 * ELEMENT_COST
_LEAST_BUFFER = 64


def emit_sort(kernel: RowKernel) -> None:
    """Emits a sort into the body of its function."""
    sort = _Sort(kernel)
    whole = kernel.problem.is_whole
    cost = _SORT_COST if whole else 4 * ELEMENT_COST
    emit = sort.whole if whole else sort.head
    share_nest(kernel.function, kernel.rows, product(kernel.space) * cost, emit)


class _Sort:
    def __init__(self, kernel: RowKernel) -> None:
        self._kernel, self._indexer = kernel, kernel.function.indexer
        self._keys = Keys(kernel.source.buffer.element, kernel.problem.descending)
        values, places = kernel.outputs
        assert values is not None and places is not None
        self._values, self._places = values, places
        # On the stack, hence asked for outside of loops.
        self._capacity = self._records_collected()
        self._buffers = () if kernel.problem.is_whole else self._scratch()

    # All of a row ---------------------------------------------------------------------------------

    def whole(self, row: list[Expr]) -> None:
        """Sorts a row in the memory of its results."""
        kernel, indexer, keys = self._kernel, self._indexer, self._keys
        words = [self._places] if keys.words == 1 else [self._values, self._places]
        start = indexer.value(kernel.output_offset(row, Expr.const(0)))

        def record(place: Expr, _: list[Value]) -> Sequence[Value]:
            made = keys.record(kernel.load(row, place), _i64(indexer.value(place)))
            offset = indexer.value(kernel.output_offset(row, place))
            for buffer, word in zip(words, made, strict=True):
                same = word.type == buffer.element
                buffer.store(word if same else arith.bitcast(buffer.element, word), offset)
            return ()

        indexer.loop(0, kernel.length, record)
        last = keys.last(words_type())
        emit_network(Records(tuple(words), start, last), indexer.value(kernel.length))

        def finish(number: Expr, _: list[Value]) -> Sequence[Value]:
            offset = indexer.value(kernel.output_offset(row, number))
            self._finish(row, self._places.load(offset), offset)
            return ()

        indexer.loop(0, kernel.length, finish)

    def _finish(self, row: Sequence[Expr], word: Value, offset: Value) -> None:
        """Writes an element and its place, by the last word of its record."""
        indexer = self._indexer
        place = self._keys.place([word] * self._keys.words)
        own = indexer.variable(_index(place), self._kernel.length)
        self._values.store(self._kernel.load(row, own), offset)
        self._places.store(place, offset)

    # A head ---------------------------------------------------------------------------------------

    def head(self, row: list[Expr]) -> None:
        """Collects the head of a row in a buffer."""
        kernel, indexer = self._kernel, self._indexer
        capacity, buffers = self._capacity, self._buffers
        zero = indexer.constant(0)
        records = Records(buffers, zero, self._keys.last(words_type()))
        wanted = indexer.value(kernel.head)
        full = indexer.constant(capacity - LANES)

        def several(number: Expr, state: list[Value]) -> Sequence[Value]:
            count, *bound = state
            made, there = self._vector(row, number * LANES)
            better = arith.andi(there, comes_before(made, [_spread(word) for word in bound]))
            for buffer, word in zip(buffers, made, strict=True):
                vector.CompressStoreOp(buffer.memref, [count], better, word)
            count = arith.addi(count, _ones(better))
            is_full = arith.cmpi(arith.CmpIPredicate.ugt, count, full)
            choice = scf.IfOp(is_full, [each.type for each in state], has_else=True)
            with ir.InsertionPoint(choice.then_block):
                emit_network(records, count)
                kept = arith.minui(count, wanted)
                last = arith.maxui(kept, indexer.constant(1))
                end = arith.subi(last, indexer.constant(1))
                scf.YieldOp([kept, *(buffer.load(end) for buffer in buffers)])
            with ir.InsertionPoint(choice.else_block):
                scf.YieldOp([count, *bound])
            return list(choice.results)

        bound = self._keys.last(integer(64))
        count, *_ = indexer.loop(0, kernel.length.ceildiv(LANES), several, init=[zero, *bound])
        emit_network(records, count)

        def finish(number: Expr, _: list[Value]) -> Sequence[Value]:
            word = buffers[-1].load(indexer.value(number))
            self._finish(row, word, indexer.value(kernel.output_offset(row, number)))
            return ()

        indexer.loop(0, kernel.head, finish)

    def _records_collected(self) -> int:
        """Records of the buffer: twice the head at least, so that it is sorted rarely."""
        head = self._kernel.head.constant
        most = MAX_HEAD if head is None else min(head, MAX_HEAD)
        return max(1 << (2 * most - 1).bit_length(), _LEAST_BUFFER) if most else _LEAST_BUFFER

    def _scratch(self) -> tuple[Buffer, ...]:
        count, function = self._capacity + LANES, self._kernel.function
        return tuple(function.scratch(count, integer(64)) for _ in range(self._keys.words))

    def _vector(self, row: Sequence[Expr], start: Expr) -> tuple[Record, Value]:
        """The records of some elements, and which of them are there."""
        kernel, indexer = self._kernel, self._indexer
        length = indexer.value(kernel.length)
        last = arith.subi(length, indexer.constant(1))
        first = indexer.value(start)
        loaded = []
        for lane in range(LANES):
            number = arith.minui(arith.addi(first, indexer.constant(lane)), last)
            loaded.append(kernel.load(row, indexer.variable(number, kernel.length)))
        elements = vector.from_elements(ir.VectorType.get([LANES], loaded[0].type), loaded)
        lanes = [ir.IntegerAttr.get(integer(64), lane) for lane in range(LANES)]
        steps = arith.constant(words_type(), ir.DenseElementsAttr.get(lanes, words_type()))
        places = arith.addi(_spread(_i64(first)), steps)
        there = vector.create_mask(
            ir.VectorType.get([LANES], integer(1)), [arith.subi(length, first)]
        )
        return self._keys.record(elements, places), there


def _i64(number: Value) -> Value:
    return arith.index_cast(integer(64), number)


def _index(number: Value) -> Value:
    return arith.index_cast(ir.IndexType.get(), number)


def _spread(word: Value) -> Value:
    return vector.broadcast(words_type(), word)


def _ones(mask: Value) -> Value:
    """How many lanes of a mask are set, of index type."""
    byte = vector.bitcast(ir.VectorType.get([1], integer(LANES)), mask)
    return _index(arith.extui(integer(64), math.ctpop(vector.extract(byte, [], [0]))))
