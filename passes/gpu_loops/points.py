# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Points: results of a loop that are not reduced, all elements independent.

Threads stride over vectors of the innermost dim of the first result, and then over what is left
one by one: all of it where vectors are not aligned, else less than a vector.

Neighbouring threads have neighbouring vectors. Where everything that is read lies along another dim
(a transposition), they have the same vector of neighbouring indices in that dim instead: what a
warp then reads is side by side, and what it writes is still in whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from shapejit.passes.gpu_loops.alignment import Access, Alignment, alignment
from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.evaluate import Vector
from shapejit.passes.gpu_loops.phases import Points
from shapejit.passes.gpu_loops.problem import Indices, LoopProblem
from shapejit.passes.gpu_loops.schedule import LoopSchedule
from shapejit.passes.nvgpu.builder import Num, Value, add, mul, select
from shapejit.symbolic import Expr, product


def points_alignment(problem: LoopProblem, phase: Points, length: int) -> Alignment:
    """What vectors of a length need."""
    space = phase.loop.space
    if not space:
        return Alignment(1)
    written = [
        Access(memory, space, write.indices)
        for write in (phase.loop.writes[position] for position in phase.positions)
        for memory in problem.outputs[write.tensor]
    ]
    whole = space[-1:] if len(space) > 1 else ()
    return alignment(problem, [phase.loop], written, len(space) - 1, length, whole)


def visit_order(problem: LoopProblem, phase: Points) -> list[int]:
    """The loop's dims, the one last in which neighbouring threads differ.

    That is the last one if anything is read along it, else the order of what is read.
    """
    loop = phase.loop
    dims = list(range(len(loop.space)))
    reads = [read for read in loop.reads if read.tensor in problem.inputs]
    accesses = [Access(problem.inputs[read.tensor], loop.space, read.indices) for read in reads]
    if loop.captures or not dims or any(each.along(dims[-1], 1) is not None for each in accesses):
        return dims
    for read, each in zip(reads, accesses, strict=True):
        own = [index.dim_index for index in read.indices if index.dim_index is not None]
        if own and own[-1] is not None and each.along(own[-1], 1) is not None:
            return [dim for dim in dims if dim not in own] + list(dict.fromkeys(own))
    return dims


def points_units(phase: Points, schedule: LoopSchedule) -> Expr:
    """CTAs that have work."""
    return product(phase.loop.space).ceildiv(schedule.vector * schedule.threads)


def emit_points(emission: Emission, phase: Points) -> None:
    """Emits the phase."""
    _Points(emission, phase).emit()


class _Points:
    def __init__(self, emission: Emission, phase: Points) -> None:
        self._emission, self._phase, self._indexer = emission, phase, emission.indexer
        self._space = phase.loop.space
        self._order = visit_order(emission.problem, phase)
        schedule = emission.schedule
        self._first, self._step = emission.grid_stride(schedule.threads, emission.threads.thread)

    def emit(self) -> None:
        emission, length = self._emission, self._emission.schedule.vector
        needed = points_alignment(emission.problem, self._phase, length)
        done: Num = 0
        if needed.length > 1:
            count = self._indexer.ssa(product(self._space) // length)
            chunks = select(emission.allows(needed), count, 0)
            with emission.aligned(needed):
                self._loop(self._first, chunks, product(self._space) // length, length)
            done = mul(chunks, length)
        total = product(self._space)
        self._loop(add(self._first, done), self._indexer.ssa(total), total, 1)

    def _loop(self, first: Num, limit: Value, count: Expr, length: int) -> None:
        def body(index: Expr, _: list[Value]) -> Sequence[Value]:
            with self._emission.evaluator.inside():
                self._vector(index, length)
            return ()

        self._indexer.loop(first, limit, body, step=self._step, size=count)

    def _vector(self, index: Expr, length: int) -> None:
        """The elements of one vector, by its number."""
        emission, loop, evaluator = self._emission, self._phase.loop, self._emission.evaluator
        lane = emission.lanes(length)
        place = self._place(index, length, lane) if self._space else ()
        found = emission.elements(lane, length, None, lambda: evaluator.results(loop, place))
        replaced = dict(enumerate(place))
        number = lane.dim_index
        assert number is not None
        with evaluator.vector(Vector(length, number)):
            for position in self._phase.positions:
                write = loop.writes[position]
                indices = [index.substitute(dims=replaced) for index in write.indices]
                values = [element[position] for element in found]
                for memory in emission.problem.outputs[write.tensor]:
                    evaluator.store(memory, indices, values)

    def _place(self, index: Expr, length: int, lane: Expr) -> Indices:
        """The indices of a vector's elements."""
        *outer, last = self._space
        sizes = [*outer, last // length]
        found = self._indexer.spread(index, [sizes[dim] for dim in self._order])
        dims = dict(zip(self._order, found, strict=True))
        *dims_outer, column = (dims[dim] for dim in range(len(sizes)))
        return (*dims_outer, column * length + lane)
