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
from shapejit.passes.gpu_loops.scatter import Places, has_vectors
from shapejit.passes.gpu_loops.schedule import LoopSchedule
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    mul,
    select,
    sub,
    udiv,
)
from shapejit.symbolic import Expr, product


def points_alignment(problem: LoopProblem, phase: Points, length: int) -> Alignment:
    """What vectors of a length need."""
    space, first = phase.loop.space, phase.loop.writes[0]
    if not space or (first.into is not None and not has_vectors(phase.loop, first)):
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
        several = self._emission.schedule.chunks if length > 1 else 1
        if several > 1:
            first = self._several(first, limit, count, length, several)
        self._strided(first, limit, count, length, 1)

    def _several(self, first: Num, limit: Value, count: Expr, length: int, several: int) -> Num:
        """Takes several vectors at once as often as all of them are there; returns what is next."""
        reach = mul(self._step, several - 1)
        stride = mul(self._step, several)
        last = sub(limit, reach)
        self._strided(first, self._emission.ssa(last), count, length, several)
        missing = self._emission.ssa(sub(last, first))
        rounds = udiv(add(missing, sub(stride, 1)), stride)
        rounds = select(compare("sgt", missing, 0), rounds, 0)
        return add(first, mul(rounds, stride))

    def _strided(self, first: Num, limit: Value, count: Expr, length: int, several: int) -> None:
        step = self._emission.ssa(self._step)

        def body(index: Expr, _: list[Value]) -> Sequence[Value]:
            with self._emission.evaluator.inside():
                places = [index]
                for number in range(1, several):
                    further = add(self._indexer.ssa(index), mul(step, number))
                    places.append(self._indexer.variable(further, count))
                for each in places if several > 1 else ():
                    self._prefetch(each, length)
                for each in places:
                    self._vector(each, length)
            return ()

        self._indexer.loop(first, limit, body, step=mul(self._step, several), size=count)

    def _prefetch(self, index: Expr, length: int) -> None:
        """Starts the loads of a vector."""
        lane, loop = self._emission.lanes(length), self._phase.loop
        assert lane.dim_index is not None
        with self._emission.evaluator.vector(Vector(length, lane.dim_index)):
            self._emission.evaluator.prefetch(loop.reads, self._place(index, length, lane))

    def _vector(self, index: Expr, length: int) -> None:
        """The elements of one vector, by its number."""
        emission, loop, evaluator = self._emission, self._phase.loop, self._emission.evaluator
        lane = emission.lanes(length)
        place = self._place(index, length, lane) if self._space else ()
        found = emission.elements(lane, length, None, lambda: evaluator.results(loop, place))
        number = lane.dim_index
        assert number is not None
        if loop.writes[0].into is not None:
            self._scatter(place, found, length, number)
            return
        replaced = dict(enumerate(place))
        with evaluator.vector(Vector(length, number)):
            for position in self._phase.positions:
                write = loop.writes[position]
                indices = [index.substitute(dims=replaced) for index in write.indices]
                values = [element[position] for element in found]
                for memory in emission.problem.outputs[write.tensor]:
                    evaluator.store(memory, indices, values)

    def _scatter(
        self, place: Indices, found: Sequence[Sequence[Value]], length: int, lane: int
    ) -> None:
        """Stores the elements of a vector at the place of the first one."""
        emission, loop = self._emission, self._phase.loop
        indices, inside = Places(emission, loop, loop.writes[0]).find(place, found[0][1:])
        values = [element[0] for element in found]
        with emission.evaluator.vector(Vector(length, lane, condition=inside)):
            for memory in emission.problem.outputs[loop.writes[0].tensor]:
                emission.evaluator.store(memory, indices, values)

    def _place(self, index: Expr, length: int, lane: Expr) -> Indices:
        """The indices of a vector's elements."""
        *outer, last = self._space
        sizes = [*outer, last // length]
        found = self._indexer.spread(index, [sizes[dim] for dim in self._order])
        dims = dict(zip(self._order, found, strict=True))
        *dims_outer, column = (dims[dim] for dim in range(len(sizes)))
        return (*dims_outer, column * length + lane)
