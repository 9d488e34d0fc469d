# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Heads of sorted rows of any length, collected in shared memory.

A CTA goes over its part of a row in tiles and appends what comes before the last record of the best
so far. Whenever another tile might not fit, all that was collected is sorted and cut to the head,
after which few records come before its last one. In a cluster the heads of the CTAs' parts are
joined by twos. Records are all different, so the order in which they are appended does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, gpu, llvm, scf

from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.networks import Network, Records
from shapejit.passes.gpu_loops.problem import Indices
from shapejit.passes.gpu_loops.reduce import get, get_remote, put, shuffled
from shapejit.passes.gpu_loops.row_elements import RowElements
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    ceildiv,
    compare,
    constant,
    i32,
    loop,
    mul,
    sub,
    umin,
    value,
    when,
)
from shapejit.passes.rowwise.keys import Record, comes_before
from shapejit.passes.rowwise.problem import MAX_HEAD, RowProblem
from shapejit.symbolic import Expr

_CELL = 8


def head_capacity(problem: RowProblem, tile: int) -> int:
    """Records to make room for: a head and a tile, and the heads of two CTAs."""
    head = problem.head.constant
    most = MAX_HEAD if head is None else min(head, MAX_HEAD)
    return 1 << (most + max(tile, most) - 1).bit_length()


class Collector:
    """Collects heads.

    Args:
        emission: of the kernel.
        elements: of the rows.
        network: sorts the records.
        records: what is collected.
    """

    def __init__(
        self, emission: Emission, elements: RowElements, network: Network, records: Records
    ) -> None:
        self._emission, self._elements = emission, elements
        self._network, self._records = network, records
        self._threads = emission.threads
        self._cluster = emission.schedule.cluster
        self._memory, self._count_cell = emission.shared(_CELL)

    def row(self, row: Indices, tile: int) -> None:
        """Finds the head of a row, of which as many elements are looked at together."""
        length, head = self._elements.length, self._elements.head
        share = ceildiv(ceildiv(length, tile), self._cluster)
        first = mul(self._emission.rank, share)
        last = umin(add(first, share), ceildiv(length, tile))
        self._set_count(0)
        self._tiles(row, first, last, tile)
        gpu.barrier()
        self._cut(self._count(), head)
        for distance in _powers(self._cluster):
            self._join(distance, head)
        self._finish(row, head)

    # Tiles ----------------------------------------------------------------------------------------

    def _tiles(self, row: Indices, first: Num, last: Num, tile: int) -> None:
        indexer = self._emission.indexer

        def body(number: Expr, carried: list[Value]) -> Sequence[Value]:
            with self._emission.evaluator.scope():
                return self._tile(row, number, tile, carried)

        lower, upper = (self._emission.index(value(each)) for each in (first, last))
        indexer.loop(lower, upper, body, size=1 << 30, init=list(self._records.last))

    def _tile(self, row: Indices, number: Expr, tile: int, bound: Sequence[Value]) -> list[Value]:
        gpu.barrier()
        count = self._count()
        gpu.barrier()
        bound = self._with_room(count, tile, bound)
        start = mul(self._narrow(number), tile)
        threads = self._emission.schedule.threads
        length = self._elements.length
        made = []
        for step in range(tile // threads):
            place = add(add(start, step * threads), self._threads.thread)
            there = compare("ult", place, length)
            record = self._elements.record(row, place, there)
            made.append((record, arith.andi(there, comes_before(record, bound))))
        for record, better in made:
            self._append(record, better)
        return list(bound)

    def _with_room(self, count: Value, tile: int, bound: Sequence[Value]) -> list[Value]:
        """Makes room for a tile; returns the record that others have to come before."""
        is_full = compare("ugt", count, self._records.capacity - tile)
        operation = scf.IfOp(is_full, [word.type for word in bound], has_else=True)
        with ir.InsertionPoint(operation.then_block):
            kept = self._cut(count, self._elements.head)
            last = sub(arith.maxui(kept, constant(1)), 1)
            scf.YieldOp(self._records.load(last))
        with ir.InsertionPoint(operation.else_block):
            scf.YieldOp(list(bound))
        return list(operation.results)

    def _cut(self, count: Value, head: Value) -> Value:
        """Sorts so many records and keeps the head of them; returns how many."""
        self._network.sort(count)
        kept = umin(count, head)
        self._set_count(kept)
        gpu.barrier()
        return kept

    def _append(self, record: Record, better: Value) -> None:
        """Appends the records of those lanes for which that is asked, at once for a warp."""
        votes = ptx.assembly(
            i32(), "vote.sync.ballot.b32 $0, $1, -1;", "=r,b", [better], pure=False
        )
        with when(compare("ne", votes, 0)):
            number = llvm.intr_ctpop(votes)
            first = compare("eq", self._threads.lane, 0)
            text = "mov.b32 $0, 0; @$3 atom.shared.add.u32 $0, [$1], $2;"
            address = add(self._memory.base, self._count_cell)
            start = ptx.assembly(
                i32(), text, "=&r,r,r,b,~{memory}", [address, number, first], pure=False
            )
            below = sub(arith.shli(constant(1), self._threads.lane), 1)
            own = add(shuffled("idx", start, 0), llvm.intr_ctpop(and_(votes, below)))
            self._records.store(record, own, better)

    # A cluster ------------------------------------------------------------------------------------

    def _join(self, distance: int, head: Value) -> None:
        """Appends the head of the CTA at a distance to that of this one, if it is one of those."""
        self._emission.team(self._emission.schedule.warps).synchronize()
        rank = self._emission.rank
        with when(compare("eq", and_(rank, 2 * distance - 1), 0)):
            other = add(rank, distance)
            own = self._count()
            more = get_remote(self._memory, self._count_cell, other, i32())
            with loop(self._threads.thread, more, self._emission.schedule.threads) as each:
                record = self._records.load(each.index, cta=other)
                self._records.store(record, add(own, each.index))
            gpu.barrier()
            self._cut(add(own, more), head)

    # The end --------------------------------------------------------------------------------------

    def _finish(self, row: Indices, head: Value) -> None:
        limit = head
        if self._cluster > 1:
            limit = arith.select(compare("eq", self._emission.rank, 0), head, constant(0))
        self._elements.each(
            self._threads.thread,
            limit,
            self._emission.schedule.threads,
            lambda number: self._elements.finish(row, number, self._records.load(number)),
        )
        if self._cluster > 1:
            self._emission.team(self._emission.schedule.warps).synchronize()

    def _count(self) -> Value:
        return get(self._memory, self._count_cell, i32())

    def _set_count(self, count: Num) -> None:
        """By one thread; a barrier comes before it is read."""
        put(self._memory, self._count_cell, value(count), compare("eq", self._threads.thread, 0))

    def _narrow(self, number: Expr) -> Value:
        found = self._emission.indexer.ssa(number)
        return found if found.type == i32() else arith.trunci(i32(), found)


def _powers(limit: int) -> list[int]:
    """1, 2, 4, .. below a limit."""
    return [1 << bit for bit in range((limit - 1).bit_length())]
