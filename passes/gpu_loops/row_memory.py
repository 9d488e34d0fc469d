# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows that lie in shared memory while a team passes over them.

What registers cannot hold is read from global memory once all the same: one thread of a CTA starts
copies of a row's vectors, and all passes load them from there. In a cluster each CTA has
neighbouring vectors of the row::

    vectors of the row    0 .. c-1   | c .. 2c-1  | 2c ..
    CTA of the cluster        0      |     1      |  2
    pieces of a CTA       p p p ..

A piece is what all threads take in one step of a pass. It has an mbarrier of its own, for which the
first pass waits, so that this pass goes on while the rest is on its way. The elements ahead of the
vectors and behind them, of rows that are cut, stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlir.dialects import arith, gpu, nvgpu, nvvm

from shapejit.passes.gpu_loops import access
from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.evaluate import Vector
from shapejit.passes.gpu_loops.problem import Indices
from shapejit.passes.gpu_loops.row_chunks import Chunk
from shapejit.passes.gpu_loops.row_reads import OwnRow
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    i32,
    index,
    mul,
    sub,
    udiv,
    umin,
    value,
    when,
)
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.passes.nvgpu.ring import await_phase, barrier_address, barriers
from shapejit.symbolic import Expr

STEP = 2
"""Vectors that a thread takes at once."""

Places: TypeAlias = Callable[[Expr], Chunk]
"""A vector of a row by its number."""


@dataclass(frozen=True)
class Part:
    """A CTA's vectors of a row.

    Attributes:
        first: the number of the first one.
        count: how many, of the index type.
    """

    first: Expr
    count: Value

    @staticmethod
    def of(emission: Emission, vectors: Num) -> Part:
        """This CTA's part of so many."""
        cluster = emission.schedule.cluster
        if cluster == 1:
            return Part(Expr.const(0), emission.ssa(vectors))
        each = udiv(add(vectors, cluster - 1), cluster)
        first = umin(mul(emission.index(value(emission.rank)), each), vectors)
        count = umin(each, sub(vectors, first))
        return Part(emission.indexer.variable(emission.ssa(first)), emission.ssa(count))


class RowMemory:
    """A CTA's part of one row after the other, in shared memory.

    Args:
        emission: of the kernel.
        rows: what there is a copy of.
    """

    def __init__(self, emission: Emission, rows: Sequence[OwnRow]) -> None:
        self._emission, self._indexer = emission, emission.indexer
        schedule = emission.schedule
        self._length = schedule.vector
        self._piece = schedule.threads * STEP
        self._pieces = -(-schedule.chunks // STEP)
        room = schedule.vector * schedule.chunks * schedule.threads
        self._starts = [(row, emission.shared(room * bytes_of(row.memory.element))) for row in rows]
        self._full = barriers(self._pieces)
        self._is_first = compare("eq", emission.threads.thread, 0)
        with when(self._is_first):
            for number in range(self._pieces):
                nvgpu.mbarrier_init(self._full, index(1), index(number))
            nvvm.fence_mbarrier_init()
        gpu.barrier()

    def start(self, condition: Value, row: Callable[[], tuple[Indices, Part, Places]]) -> None:
        """Starts the copies of a row into memory that nobody reads any more, by one thread.

        Args:
            condition: i1, whether there is such a row.
            row: its indices, and this CTA's part of its vectors.
        """

        def emit() -> None:
            with self._emission.evaluator.inside():
                indices, part, places = row()
                self._indexer.loop(
                    0,
                    self._pieces,
                    lambda number, _: self._start_piece(number, indices, part, places),
                    size=self._pieces,
                )

        self._indexer.branch(self._is_first, lambda: self._indexer.branch(condition, emit))

    def _start_piece(
        self, number: Expr, indices: Indices, part: Part, places: Places
    ) -> Sequence[Value]:
        """Announces what arrives of a piece, which may be nothing, and starts to copy it."""
        first = number * self._piece
        begin = umin(self._indexer.value(first), part.count)
        count = umin(sub(part.count, begin), self._piece)
        chunk = places(part.first + first)
        copies = self._copies(indices, chunk)
        piece = self._indexer.ssa(number)
        total = sum(self._bytes(row) for row, _, _ in copies)
        nvgpu.mbarrier_arrive_expect_tx(self._full, index(mul(count, total)), index(piece))
        barrier = barrier_address(self._full, self._pieces, _narrow(piece))
        for row, start, offset in copies:
            bytes_ = self._bytes(row)
            address, further = self._emission.evaluator.address(row.memory, offset)
            target = self._address(start, begin, bytes_)
            size, is_there = _narrow(mul(count, bytes_)), compare("ne", count, 0)
            access.copy_to_shared(target, address, further, size, barrier, is_there)
        return ()

    def wait(self, number: Num, phase: Value) -> None:
        """Waits for what a step of a pass takes.

        Args:
            number: of the step's first vector in the part, of the index type.
            phase: of the row: 0, 1, 0, .. (i1).
        """
        await_phase(self._full, phase, udiv(number, self._piece))

    def hold(self, indices: Indices, chunk: Chunk, number: Num) -> None:
        """Has a vector of the row at some indices loaded from here, by its number in the part."""
        for row, start, offset in self._copies(indices, chunk):
            address = self._address(start, number, self._bytes(row))
            self._emission.evaluator.hold(row.memory, offset, self._length, address)

    def _copies(self, indices: Indices, chunk: Chunk) -> list[tuple[OwnRow, int, Expr]]:
        """What there is a copy of, with the start of the copies and the offset of a vector."""
        lane, evaluator = chunk.lane.dim_index, self._emission.evaluator
        assert lane is not None
        found = []
        for row, (_, start) in self._starts:
            offset = self._indexer.simplify(row.offset((*indices, *chunk.columns)))
            first = Vector(chunk.length, lane).start(offset)
            if first is not None and row.memory.operand in evaluator.aligned:
                found.append((row, start, first))
        return found

    def _bytes(self, row: OwnRow) -> int:
        return self._length * bytes_of(row.memory.element)

    def _address(self, start: int, number: Num, bytes_: int) -> Value:
        memory, _ = self._starts[0][1]
        return value(add(add(memory.base, start), _narrow(mul(number, bytes_))))


def _narrow(number: Num) -> Num:
    """As an i32."""
    if isinstance(number, int) or number.type == i32():
        return number
    return arith.trunci(i32(), number)
