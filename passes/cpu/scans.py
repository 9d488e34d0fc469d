# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scans: running combinations along rows.

A row is cut into blocks of a fixed length. In a block, vectors are scanned by steps of doubled
distance and carry on from each other; the block's own scan is then combined with what all blocks
before it give. Threads share the rows. Where rows are few and long, they share the blocks instead,
in three steps:

1. every block is scanned by itself;
2. the last elements of all blocks are scanned, so that each is what it is in the end;
3. the other elements of each block are combined with the last one of the block before it.

Both ways compute the same from the same, so results depend on neither the way nor the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir
from mlir.dialects import arith, math, scf, vector

from shapejit.passes.cpu.indexing import Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.parallel import ELEMENT_COST, share_nest
from shapejit.passes.cpu.row_ops import RowKernel
from shapejit.passes.rowwise.combine import Combine, State
from shapejit.passes.rowwise.values import integer
from shapejit.symbolic import Expr, product

BLOCK = 4096
"""Elements of a block."""

_FEW_ROWS = 4
_COSTLY = 40 * ELEMENT_COST  # of an element with an exponential and a logarithm


def emit_scan(kernel: RowKernel) -> None:
    """Emits a scan into the body of its function."""
    if not _may_share_blocks(kernel):
        _Scan(kernel).rows()
        return
    # Each way, and each step, shares one loop among threads: they are functions of their own.
    function = kernel.function
    parts = [(name, function.beside(name)) for name in ("rows", "blocks", "ends", "rest")]
    for name, part in parts:
        with part.body():
            getattr(_Scan(_inside(kernel, part)), name)()
    indexer = function.indexer
    is_long = indexer.compare("sgt", kernel.length, 2 * BLOCK)
    are_few = indexer.compare("sle", kernel.count, _FEW_ROWS)
    choice = scf.IfOp(arith.andi(is_long, are_few), has_else=True)
    with ir.InsertionPoint(choice.then_block):
        for _, part in parts[1:]:
            function.call(part)
        scf.YieldOp([])
    with ir.InsertionPoint(choice.else_block):
        function.call(parts[0][1])
        scf.YieldOp([])


def _may_share_blocks(kernel: RowKernel) -> bool:
    """Whether rows may be long, and a part of one can be carried on from what was stored of it."""
    length = kernel.length.constant
    count = kernel.count.constant
    if (length is not None and length <= 2 * BLOCK) or (count is not None and count > _FEW_ROWS):
        return False
    values = kernel.outputs[0]
    exact = values is not None and values.is_plain and kernel.problem.scan != "logaddexp"
    return exact and None not in kernel.outputs


def _inside(kernel: RowKernel, part: KernelFunction) -> RowKernel:
    """The same kernel in the memory of another function."""
    number = [b is kernel.source.buffer for b in kernel.function.inputs].index(True)
    moved = dict(zip(kernel.function.outputs, part.outputs, strict=True))
    source = kernel.source
    return RowKernel(
        part,
        kernel.problem,
        kernel.space,
        kernel.head,
        type(source)(part.inputs[number], source.shape, source.indices, source.offset),
        tuple(None if out is None else moved[out] for out in kernel.outputs),
    )


class _Scan:
    def __init__(self, kernel: RowKernel) -> None:
        self._kernel, self._indexer = kernel, kernel.function.indexer
        self._element = kernel.source.buffer.compute
        self._lanes = kernel.function.lanes(self._element) if self._takes_vectors() else 1
        self._indexed = len(kernel.outputs) > 1

    def _takes_vectors(self) -> bool:
        outputs = [out for out in self._kernel.outputs if out is not None]
        return self._kernel.is_dense and all(out.is_plain for out in outputs)

    @property
    def _cost(self) -> int:
        return _COSTLY if self._kernel.problem.scan == "logaddexp" else ELEMENT_COST

    # Ways -----------------------------------------------------------------------------------------

    def rows(self) -> None:
        """Every row from its start to its end."""
        kernel, indexer = self._kernel, self._indexer

        def row(indices: list[Expr]) -> None:
            def block(start: Expr, prefix: list[Value]) -> Sequence[Value]:
                length = indexer.minimum(BLOCK, kernel.length - start)
                return self._block(indices, start, length, prefix)

            start = self._combine().identity
            indexer.loop(0, kernel.length, block, step=BLOCK, init=start)

        share_nest(kernel.function, kernel.rows, product(kernel.space) * self._cost, row)

    def blocks(self) -> None:
        """Step 1: every block by itself."""

        def block(row: list[Expr], start: Expr, length: Expr) -> None:
            self._block(row, start, length, None)

        self._all_blocks(block)

    def ends(self) -> None:
        """Step 2: the last elements of the blocks, one after the other."""
        kernel, indexer, combine = self._kernel, self._indexer, self._combine()
        count = kernel.length.ceildiv(BLOCK)

        def row(indices: list[Expr]) -> None:
            def end(block: Expr, prefix: list[Value]) -> Sequence[Value]:
                last = indexer.minimum(BLOCK, kernel.length - block * BLOCK) - 1
                offset = indexer.value(kernel.output_offset(indices, block * BLOCK + last))
                found = combine.results(combine.combine(prefix, self._stored(combine, offset)))
                self._store(found, offset)
                return combine.lift(*found)

            indexer.loop(0, count, end, init=combine.identity)

        indexer.nest(kernel.rows, row)

    def rest(self) -> None:
        """Step 3: all elements but the last of every block but the first."""
        kernel, indexer, combine = self._kernel, self._indexer, self._combine()

        def block(row: list[Expr], start: Expr, length: Expr) -> None:
            def carry_on() -> None:
                before = indexer.value(kernel.output_offset(row, start - 1))
                prefix = self._stored(combine, before)

                def element(index: Expr, _: list[Value]) -> Sequence[Value]:
                    offset = indexer.value(kernel.output_offset(row, start + index))
                    state = combine.combine(prefix, self._stored(combine, offset))
                    self._store(combine.results(state), offset)
                    return ()

                indexer.loop(0, length - 1, element)

            indexer.when(indexer.compare("sgt", start, 0), carry_on)

        self._all_blocks(block)

    def _all_blocks(self, body: Callable[[list[Expr], Expr, Expr], None]) -> None:
        kernel, indexer = self._kernel, self._indexer
        count = kernel.length.ceildiv(BLOCK)

        def unit(indices: list[Expr]) -> None:
            *row, block = indices
            length = indexer.minimum(BLOCK, kernel.length - block * BLOCK)
            body(row, block * BLOCK, length)

        work = product(kernel.space) * self._cost
        share_nest(kernel.function, [*kernel.rows, count], work, unit)

    # A block --------------------------------------------------------------------------------------

    def _block(self, row: Sequence[Expr], start: Expr, length: Expr, prefix: State | None) -> State:
        """Scans a block, combined with what is before it; returns the state at its end."""
        lanes, indexer = self._lanes, self._indexer
        state: State = self._combine().identity
        done = Expr.const(0)
        if lanes > 1:
            count = length // lanes

            def step(number: Expr, carried: list[Value]) -> Sequence[Value]:
                return self._vector(row, start + number * lanes, carried, prefix)

            state = indexer.loop(0, count, step, init=state)
            done = count * lanes

        def single(index: Expr, carried: list[Value]) -> Sequence[Value]:
            place = start + done + index
            combine = self._combine()
            element = self._kernel.load(row, place)
            own = combine.combine(carried, combine.lift(element, self._place(place)))
            self._finish(combine, row, place, own, prefix)
            return own

        state = list(indexer.loop(0, length - done, single, init=state))
        combine = self._combine()
        if prefix is None:
            return state
        return combine.lift(*combine.results(combine.combine(prefix, state)))

    def _vector(
        self, row: Sequence[Expr], place: Expr, carried: State, prefix: State | None
    ) -> State:
        """Scans a vector; returns the state at its end, without the prefix."""
        lanes, kernel = self._lanes, self._kernel
        type_ = ir.VectorType.get([lanes], self._element)
        combine = self._combine(type_)
        loaded = kernel.source.buffer.load_vector(type_, kernel.input_offset(row, place))
        state = combine.lift(loaded, self._places(place))
        distance = 1
        while distance < lanes:
            before = [
                _moved(word, start, distance)
                for word, start in zip(state, combine.identity, strict=True)
            ]
            state = combine.combine(before, state)
            distance *= 2
        state = combine.combine(self._spread(carried), state)
        self._finish(combine, row, place, state, prefix and self._spread(prefix))
        return [vector.extract(word, [], [lanes - 1]) for word in state]

    def _finish(
        self,
        combine: Combine,
        row: Sequence[Expr],
        place: Expr,
        state: State,
        prefix: State | None,
    ) -> None:
        if prefix is not None:
            state = combine.combine(prefix, state)
        offset = self._indexer.value(self._kernel.output_offset(row, place))
        self._store(combine.results(state), offset)

    def _spread(self, state: State) -> State:
        return [
            vector.broadcast(ir.VectorType.get([self._lanes], word.type), word) for word in state
        ]

    # Values ---------------------------------------------------------------------------------------

    def _combine(self, type_: ir.Type | None = None) -> Combine:
        return Combine(
            self._kernel.problem.scan or "",
            self._element if type_ is None else type_,
            self._indexed,
            math.exp,
            math.log,
        )

    def _place(self, place: Expr) -> Value | None:
        if not self._indexed:
            return None
        return arith.index_cast(integer(64), self._indexer.value(place))

    def _places(self, place: Expr) -> Value | None:
        first = self._place(place)
        if first is None:
            return None
        type_ = ir.VectorType.get([self._lanes], integer(64))
        i64 = integer(64)
        numbers = [ir.IntegerAttr.get(i64, lane) for lane in range(self._lanes)]
        steps = arith.constant(type_, ir.DenseElementsAttr.get(numbers, type_))
        return arith.addi(vector.broadcast(type_, first), steps)

    def _stored(self, combine: Combine, offset: Value) -> State:
        """The state of what was stored."""
        return combine.lift(*(out.load(offset) for out in self._kernel.outputs if out is not None))

    def _store(self, values: Sequence[Value], offset: Value) -> None:
        for out, value in zip(self._kernel.outputs, values, strict=True):
            if out is None:
                continue
            if isinstance(value.type, ir.VectorType):
                out.store_vector(value, offset)
            else:
                out.store(value, offset)


def _moved(word: Value, start: Value, distance: int) -> Value:
    """A vector moved up by some lanes; the lowest ones get what `start` has."""
    lanes = word.type.shape[0]
    # Of `start` followed by `word`: its last lanes, then the first of the other.
    order = [lanes - distance + lane for lane in range(lanes)]
    return vector.shuffle(start, word, order)
