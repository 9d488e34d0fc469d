# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sorting networks over records in memory, several compared at once.

The network is that of `shapejit.passes.rowwise.keys.masks`, which sorts any number of records in
place.

Distances of at least a vector are a load, an exchange and a store of whole vectors; shorter ones
are done within a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, math, scf, vector

from shapejit.passes.cpu.indexing import Value
from shapejit.passes.cpu.memory import Buffer
from shapejit.passes.rowwise.keys import Record, exchanged, masks
from shapejit.passes.rowwise.values import constant, integer

LANES = 8
"""Records that are compared at once."""


def words_type() -> ir.Type:
    """The vector of a word of so many records."""
    return ir.VectorType.get([LANES], integer(64))


@dataclass(frozen=True)
class Records:
    """Records in memory, a buffer of 8-byte elements for each of their words.

    Attributes:
        buffers: of the words; floats hold the bits of one.
        start: offset of the first record, of index type.
        last: a vector of records that come after all others.
    """

    buffers: tuple[Buffer, ...]
    start: Value
    last: Record

    def load(self, index: Value, mask: Value | None = None) -> Record:
        """The records from an index on; the last ones where the mask fails."""
        found = []
        for buffer, last in zip(self.buffers, self.last, strict=True):
            type_ = ir.VectorType.get([LANES], buffer.element)
            where = [arith.addi(self.start, index)]
            if mask is None:
                word = vector.load(type_, buffer.memref, where)
            else:
                rest = last if last.type == type_ else arith.bitcast(type_, last)
                word = vector.maskedload(type_, buffer.memref, where, mask, rest)
            found.append(word if type_ == words_type() else arith.bitcast(words_type(), word))
        return found

    def store(self, record: Sequence[Value], index: Value, mask: Value | None = None) -> None:
        """Stores a vector of records where the mask holds."""
        for buffer, word in zip(self.buffers, record, strict=True):
            type_ = ir.VectorType.get([LANES], buffer.element)
            word = word if type_ == word.type else arith.bitcast(type_, word)
            where = [arith.addi(self.start, index)]
            if mask is None:
                vector.store(word, buffer.memref, where)
            else:
                vector.maskedstore(buffer.memref, where, mask, word)


def emit_network(records: Records, count: Value) -> None:
    """Sorts the first ``count`` (index) records."""
    _Network(records, count).emit()


class _Network:
    def __init__(self, records: Records, count: Value) -> None:
        self._records, self._count = records, count
        self._lanes = _index(LANES)

    def emit(self) -> None:
        steps = [mask for size in (2, 4, LANES) for mask in masks(size)]
        self._within(steps)
        # Runs of 2^p records are made for every p up to the first that holds all of them.
        first = LANES.bit_length()
        bits = _bits(arith.maxui(self._count, _index(1)))
        with _loop(_index(first), arith.addi(bits, _index(1))) as p:
            size = arith.shli(_index(1), p)
            self._mirrored(size)
            halvings = arith.subi(p, _index(first))
            with _loop(_index(0), halvings) as step:
                exponent = arith.subi(arith.subi(p, _index(2)), step)
                self._apart(arith.shli(_index(1), exponent))
            self._within([4, 2, 1])

    def _within(self, masks: Sequence[int]) -> None:
        """Exchanges within each vector: element i with the one whose number differs in a mask."""
        with _loop(_index(0), self._count, LANES) as start:
            here = self._mask(start)
            record = self._records.load(start, here)
            for mask in masks:
                partner = _shuffled(record, [lane ^ mask for lane in range(LANES)])
                low, high = exchanged(record, partner)
                choice = [lane if lane < lane ^ mask else lane + LANES for lane in range(LANES)]
                record = [vector.shuffle(a, b, choice) for a, b in zip(low, high, strict=True)]
            self._records.store(record, start, here)

    def _mirrored(self, size: Value) -> None:
        """Exchanges across the middle of each run of ``size``, from its ends inwards."""
        half = arith.shrui(size, _index(1))
        end = arith.subi(size, self._lanes)
        back = list(reversed(range(LANES)))
        with _loop(_index(0), self._count, size) as run, _loop(_index(0), half, LANES) as offset:
            low, high = arith.addi(run, offset), arith.subi(arith.addi(run, end), offset)
            self._exchange(low, high, lambda record: _shuffled(record, back))

    def _apart(self, distance: Value) -> None:
        """Exchanges at a distance, in each run of twice that."""
        size = arith.shli(distance, _index(1))
        with _loop(_index(0), self._count, size) as run, _loop(_index(0), distance, LANES) as at:
            low = arith.addi(run, at)
            self._exchange(low, arith.addi(low, distance), lambda record: record)

    def _exchange(self, low: Value, high: Value, turned: Callable[[Record], Record]) -> None:
        is_there = arith.cmpi(arith.CmpIPredicate.ult, high, self._count)
        operation = scf.IfOp(is_there)
        with ir.InsertionPoint(operation.then_block):
            mask = self._mask(high)
            first = self._records.load(low)
            first, second = exchanged(first, turned(self._records.load(high, mask)))
            self._records.store(first, low)
            self._records.store(turned(second), high, mask)
            scf.YieldOp([])

    def _mask(self, start: Value) -> Value:
        """Which records from an index on are there."""
        type_ = ir.VectorType.get([LANES], integer(1))
        return vector.create_mask(type_, [arith.subi(self._count, start)])


def _shuffled(record: Sequence[Value], lanes: Sequence[int]) -> Record:
    return [vector.shuffle(word, word, list(lanes)) for word in record]


def _bits(count: Value) -> Value:
    """The least p with ``2^p >= count``, of index type; count >= 1."""
    i64 = integer(64)
    below = arith.subi(arith.index_cast(i64, count), constant(i64, 1))
    bits = arith.subi(constant(i64, 64), math.ctlz(below))
    return arith.index_cast(ir.IndexType.get(), bits)


def _index(number: int) -> Value:
    return arith.constant(ir.IndexType.get(), number)


@contextmanager
def _loop(lower: Value, upper: Value, step: Value | int = 1) -> Iterator[Value]:
    """``for i = lower to upper step step``."""
    operation = scf.ForOp(lower, upper, _index(step) if isinstance(step, int) else step)
    with ir.InsertionPoint(operation.body):
        yield operation.induction_variable
        scf.YieldOp([])
