# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels made of loops: pointwise ops, reductions, and clusters of both that share rows.

Everything is emitted as plain scalar loops, innermost dims contiguous wherever maps allow, for
LLVM's vectoriser. Several loops that reduce the last dims of common rows (softmax, norms) become
one pass over the rows, see `rows`. Any other kernel is one nest for each loop that must be in
memory; pointwise loops between them are evaluated where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shapejit.passes.cpu.errors import LoweringError
from shapejit.passes.cpu.evaluate import Evaluator, Key, Loop, LoopKernel, Place, Write
from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.memory import Buffer
from shapejit.passes.cpu.parallel import ELEMENT_COST, share_nest
from shapejit.passes.cpu.reduce import Reduction, emit_reductions
from shapejit.passes.cpu.rows import emit_rows, shared_rows
from shapejit.passes.cpu.scalars import byte_width, combine, compute_type, is_float
from shapejit.passes.cpu.scatter import emit_scatter
from shapejit.symbolic import Expr, product

MAX_STACK_BYTES = 1 << 16
"""The largest tensor that a kernel keeps on the stack between two of its loops."""

# Columns reduced side by side when the reduced dims are the outer ones.
_COLUMN_BLOCK = 64
# Terms of a plain sum of floats in such a column.
_SUM_ROWS = 256


_DimsBody: TypeAlias = Callable[[dict[int, Expr]], None]


def emit_loops(kernel: KernelFunction, loops: LoopKernel) -> None:
    """Emits loops into the body of a kernel.

    Raises:
        LoweringError: a tensor between two loops is too large, or of unknown size, for the
            stack.
    """
    loops = loops.live()
    rows = shared_rows(loops)
    if rows is not None:
        emit_rows(kernel, loops, rows)
        return
    nests = _Nests(kernel, loops)
    for loop in loops.loops:
        if any(write.into is not None for write in loop.writes):
            emit_scatter(kernel, loops, nests.evaluator, loop)
        else:
            nests.emit(loop)


@dataclass(frozen=True)
class _Target:
    """Memory that a result is written to, and the result's place in its loop's yields."""

    place: Place
    write: Write
    position: int


class _Nests:
    """One nest after the other; results that are read later are in memory."""

    def __init__(self, kernel: KernelFunction, loops: LoopKernel) -> None:
        self._kernel, self._loops, self._indexer = kernel, loops, kernel.indexer
        self.evaluator = Evaluator(loops, kernel.indexer)
        self._single = len(loops.loops) == 1
        self._outputs: dict[Key, list[Buffer]] = {}
        for key, buffer in loops.outputs:
            self._outputs.setdefault(key, []).append(buffer)

    def emit(self, loop: Loop) -> None:
        """Emits what a loop must write, by reduced dims: results reduced alike share a nest."""
        groups: dict[frozenset[int], list[_Target]] = {}
        for position, write in enumerate(loop.writes):
            kept = frozenset(dim for index in write.indices for dim in index.dims())
            for place in self._memory(loop, write):
                groups.setdefault(kept, []).append(_Target(place, write, position))
        self._single = self._single and len(groups) == 1
        for kept, targets in groups.items():
            with self.evaluator.scope():
                self._group(loop, sorted(kept), targets)
        for targets in groups.values():
            for target in targets:
                self.evaluator.keep(target.write.tensor, target.place)

    def _memory(self, loop: Loop, write: Write) -> list[Place]:
        """Where a result goes: outputs; else, for a reduction, the stack; else nowhere."""
        shape = self._loops.result_shape(loop, write)
        if write.tensor in self._outputs:
            return [Place(buffer, shape) for buffer in self._outputs[write.tensor]]
        if write.kind is None:
            return []
        count = product(shape).constant
        if count is None or count * byte_width(write.element) > MAX_STACK_BYTES:
            sizes = ", ".join(map(str, shape))
            raise LoweringError(
                f"reads a reduction of shape [{sizes}] of the same kernel at rows other than its "
                f"own; that requires at most {MAX_STACK_BYTES} bytes of known size"
            )
        return [Place(self._kernel.scratch(max(count, 1), write.element), shape)]

    def _group(self, loop: Loop, kept: list[int], targets: list[_Target]) -> None:
        rank = len(loop.space)
        reduced = [dim for dim in range(rank) if dim not in kept]
        if not reduced:
            self._pointwise(loop, targets)
        elif kept and kept[-1] > reduced[-1]:
            self._column_reduction(loop, kept, reduced, targets)
        else:
            self._row_reduction(loop, kept, reduced, targets)

    def _nest(self, loop: Loop, dims: Sequence[int], body: _DimsBody) -> None:
        sizes = [loop.space[dim] for dim in dims]
        self._indexer.nest(sizes, lambda indices: body(dict(zip(dims, indices, strict=True))))

    def _values(self, loop: Loop, dims: dict[int, Expr], targets: list[_Target]) -> list[Value]:
        values = self.evaluator.results(loop, tuple(dims[dim] for dim in range(len(loop.space))))
        return [values[target.position] for target in targets]

    def _store(self, target: _Target, value: Value, dims: dict[int, Expr]) -> None:
        indices = [index.substitute(dims=dims) for index in target.write.indices]
        target.place.buffer.store(value, self._indexer.value(target.place.offset(indices)))

    def _shared_nest(self, loop: Loop, dims: Sequence[int], inner: int, body: _DimsBody) -> None:
        """Like `_nest`; threads share all dims but the last ``inner`` ones, if this is the
        kernel's only nest."""
        outer = dims[: len(dims) - inner]
        sizes = [loop.space[dim] for dim in outer]
        if not self._single or product(sizes).constant == 1:
            self._nest(loop, dims, body)
            return

        def unit(indices: list[Expr]) -> None:
            known = dict(zip(outer, indices, strict=True))
            self._nest(loop, dims[len(outer) :], lambda more: body({**known, **more}))

        share_nest(self._kernel, sizes, product(loop.space) * ELEMENT_COST, unit)

    def _pointwise(self, loop: Loop, targets: list[_Target]) -> None:
        def element(dims: dict[int, Expr]) -> None:
            with self.evaluator.scope():
                values = self._values(loop, dims, targets)
                for target, value in zip(targets, values, strict=True):
                    self._store(target, value, dims)

        order = list(range(len(loop.space)))
        # The dim that is last in memory goes innermost.
        last = targets[0].write.indices[-1].dim_index if targets[0].write.indices else None
        if last is not None and last != order[-1]:
            order.append(order.pop(last))
        inner = order[-1] if order else None
        if inner is None or inner not in loop.splits:
            self._shared_nest(loop, order, 1 if len(order) > 1 else 0, element)
            return

        def row(dims: dict[int, Expr]) -> None:
            """One loop for each stretch in which a compiler finds the body to do one thing."""
            ends: list[Size] = [*loop.splits[inner], loop.space[inner]]
            for start, end in zip([0, *ends], ends, strict=False):

                def at(index: Expr, _: list[Value]) -> Sequence[Value]:
                    element({**dims, inner: index})
                    return ()

                self._indexer.loop(start, end, at)

        self._shared_nest(loop, order[:-1], 0, row)

    def _row_reduction(
        self, loop: Loop, kept: list[int], reduced: list[int], targets: list[_Target]
    ) -> None:
        """The reduced dims innermost, sums in SSA values."""
        reductions = [_reduction(target.write) for target in targets]

        def row(dims: dict[int, Expr]) -> None:
            def contribution(indices: list[Expr]) -> Sequence[Value]:
                with self.evaluator.scope():
                    inner = dict(zip(reduced, indices, strict=True))
                    return self._values(loop, {**dims, **inner}, targets)

            sizes = [loop.space[dim] for dim in reduced]
            totals = emit_reductions(self._indexer, sizes, reductions, contribution)
            for target, total in zip(targets, totals, strict=True):
                self._store(target, total, dims)

        self._shared_nest(loop, kept, 0, row)

    def _column_reduction(
        self, loop: Loop, kept: list[int], reduced: list[int], targets: list[_Target]
    ) -> None:
        """The last dim is kept: a block of it is reduced side by side, sums in stack buffers."""
        *outer, column = kept
        reductions = [_reduction(target.write) for target in targets]
        sums = [self._kernel.scratch(_COLUMN_BLOCK, reduction.type) for reduction in reductions]
        indexer = self._indexer

        def block(indices: list[Expr]) -> None:
            *rows, number = indices
            dims, start = dict(zip(outer, rows, strict=True)), number * _COLUMN_BLOCK
            width = indexer.minimum(_COLUMN_BLOCK, loop.space[column] - start)

            def add(at: dict[int, Expr], buffers: Sequence[Buffer]) -> None:
                """Combines the block at one index of the reduced dims with sums of it."""

                def element(offset: Expr, _: list[Value]) -> Sequence[Value]:
                    with self.evaluator.scope():
                        place = {**dims, **at, column: start + offset}
                        values = self._values(loop, place, targets)
                    _combine_at(reductions, buffers, values, indexer.value(offset))
                    return ()

                indexer.loop(0, width, element)

            def finish(offset: Expr, _: list[Value]) -> Sequence[Value]:
                for target, buffer in zip(targets, sums, strict=True):
                    value = buffer.load(indexer.value(offset))
                    self._store(target, value, {**dims, column: start + offset})
                return ()

            _fill(indexer, width, sums, [reduction.identity for reduction in reductions])
            self._reduce_columns(loop, reduced, reductions, sums, width, add)
            indexer.loop(0, width, finish)

        sizes = [*(loop.space[dim] for dim in outer), loop.space[column].ceildiv(_COLUMN_BLOCK)]
        if self._single and product(sizes).constant != 1:
            share_nest(self._kernel, sizes, product(loop.space) * ELEMENT_COST, block)
        else:
            indexer.nest(sizes, block)

    def _reduce_columns(
        self,
        loop: Loop,
        reduced: list[int],
        reductions: Sequence[Reduction],
        sums: Sequence[Buffer],
        width: Expr,
        add: Callable[[dict[int, Expr], Sequence[Buffer]], None],
    ) -> None:
        """Calls ``add`` for all indices of the reduced dims. Long sums of floats are sums of sums:
        the rounding error of a plain one grows with the number of its terms."""
        *front, last = reduced
        count = product(loop.space[dim] for dim in reduced).constant
        floats = any(each.kind == "add" and is_float(each.type) for each in reductions)
        if not floats or (count is not None and count <= 4 * _SUM_ROWS):
            self._nest(loop, reduced, lambda at: add(at, sums))
            return
        parts = [self._kernel.scratch(_COLUMN_BLOCK, reduction.type) for reduction in reductions]
        indexer = self._indexer

        def rows(at: dict[int, Expr]) -> None:
            def some(first: Expr, _: list[Value]) -> Sequence[Value]:
                def step(index: Expr, _: list[Value]) -> Sequence[Value]:
                    add({**at, last: first + index}, parts)
                    return ()

                def meet(offset: Expr, _: list[Value]) -> Sequence[Value]:
                    where = indexer.value(offset)
                    values = [part.load(where) for part in parts]
                    _combine_at(reductions, sums, values, where)
                    return ()

                _fill(indexer, width, parts, [reduction.identity for reduction in reductions])
                length = indexer.minimum(_SUM_ROWS, loop.space[last] - first)
                indexer.loop(0, length, step)
                indexer.loop(0, width, meet)
                return ()

            indexer.loop(0, loop.space[last], some, step=_SUM_ROWS)

        self._nest(loop, front, rows)


def _combine_at(
    reductions: Sequence[Reduction],
    buffers: Sequence[Buffer],
    values: Sequence[Value],
    where: Value,
) -> None:
    for reduction, buffer, value in zip(reductions, buffers, values, strict=True):
        buffer.store(combine(reduction.kind, buffer.load(where), value), where)


def _reduction(write: Write) -> Reduction:
    assert write.kind is not None, "a result that lacks dims has a kind"
    return Reduction(write.kind, compute_type(write.element))


def _fill(
    indexer: Indexer, count: Expr, buffers: Sequence[Buffer], values: Sequence[Value]
) -> None:
    def element(offset: Expr, _: list[Value]) -> Sequence[Value]:
        for buffer, value in zip(buffers, values, strict=True):
            buffer.store(value, indexer.value(offset))
        return ()

    indexer.loop(0, count, element)
