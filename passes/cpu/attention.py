# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention on the CPU: blocks of queries against blocks of keys, with an online softmax.

    for each batch and head
      for m0, a block of queries
        pack scale * Q                                   maximum = -inf, total = 0, sums = 0
        for n0, a block of keys that some query sees
          pack K (transposed, in panels) and V (in panels)
          for each group of queries
            scores = Q * K                               micro-kernel
            mask, causality, end of the keys             -inf where a query does not see a key
            maximum, total; scores = exp(scores - maximum); sums and total rescaled
            sums += scores * V                           micro-kernel
        result = sums / total                            0 where total is 0: no key was seen

Scratch is of fixed size, whatever the lengths. All tensors are read through index maps: head
splits, grouped queries and broadcast masks are maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, vector

from shapejit.passes.cpu.exponential import exp_nonpositive
from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.memory import Access, Buffer
from shapejit.passes.cpu.micro import MicroKernel
from shapejit.passes.cpu.packing import Block, Panel, pack_panel, pack_rows
from shapejit.passes.cpu.parallel import MULTIPLY_COST, share_nest
from shapejit.passes.cpu.scalars import (
    Type,
    combine,
    compute_type,
    constant,
    fastmath,
    identity,
    is_bool,
)
from shapejit.symbolic import Expr

MAX_HEAD_SIZE = 256
"""The largest size of a query or value vector that scratch is laid out for."""

_QUERY, _KEY, _INNER = 2, 3, 3  # dims of the accesses: (b, h, m, d), (b, h, n, d), (b, h, m, n)


@dataclass(frozen=True)
class AttentionProblem:
    """Attention over a space (batch, heads, queries m, keys n, head size d, value size dv).

    Attributes:
        space: the sizes.
        q: over (b, h, m, d).
        k: over (b, h, n, d).
        v: over (b, h, n, dv).
        result: over (b, h, m, dv).
        scale: factor of the scores.
        mask: over (b, h, m, n), or None: bools that are true where a query may look, or numbers
            to add to the scaled scores.
        causal: offset o over the kernel's symbols: query m sees key n when n <= m + o; None: all.
        from_end: whether to o is added how many more keys than queries there are.
        lengths: over (b, h), or None: how many of the keys there are, an integer.
    """

    space: tuple[Expr, Expr, Expr, Expr, Expr, Expr]
    q: Access
    k: Access
    v: Access
    result: Access
    scale: float
    mask: Access | None = None
    causal: Expr | None = None
    from_end: bool = False
    lengths: Access | None = None

    @property
    def compute(self) -> Type:
        """The type that scores are computed in."""
        return compute_type(self.q.buffer.element)


@dataclass(frozen=True)
class _Limits:
    """What queries of a batch and head see.

    Attributes:
        keys: how many keys there are.
        causal: query m sees key n when n <= m + causal; None: all.
    """

    keys: Expr
    causal: Expr | None

    @staticmethod
    def of(indexer: Indexer, problem: AttentionProblem, fixed: dict[int, Size]) -> _Limits:
        """The limits at the current point, in the loops over batches and heads."""
        queries, keys = problem.space[2:4]
        end = keys
        if problem.lengths is not None:
            loaded = problem.lengths.load(indexer, fixed)
            given = arith.maxsi(
                arith.index_cast(ir.IndexType.get(), loaded), arith.constant(ir.IndexType.get(), 0)
            )
            # A length beyond that changes nothing: all queries see all keys.
            end = indexer.minimum(keys + queries, indexer.variable(given))
            keys = indexer.minimum(keys, end)
        causal = problem.causal
        if causal is not None and problem.from_end:
            causal = causal + end - queries
        return _Limits(keys, causal)

    def of_query(self, indexer: Indexer, query: Size) -> Expr:
        """How many keys a query sees at most, and all queries before it."""
        if self.causal is None:
            return self.keys
        return indexer.clamp(self.causal + query + 1, self.keys)


def emit_attention(kernel: KernelFunction, problem: AttentionProblem) -> None:
    """Emits attention into the body of a kernel."""
    sizes = [size.constant for size in problem.space[4:]]
    if any(size is None or size > MAX_HEAD_SIZE for size in sizes):
        _PlainAttention(kernel, problem).emit()
    else:
        _BlockedAttention(kernel, problem).emit()


@dataclass(frozen=True)
class _Blocks:
    """Block sizes, in elements.

    Attributes:
        lanes: elements of a vector.
        queries: queries whose sums are held at once.
        group: queries that are scored at once.
        keys: keys of a block.
        head, value: head size and padded value size.
        rows: rows of the micro-kernel.
    """

    lanes: int
    queries: int
    group: int
    keys: int
    head: int
    value: int
    rows: int

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return 2 * self.lanes

    # Strides of rows in scratch; padded so that rows do not fall on the same cache sets.
    @property
    def q_stride(self) -> int:
        return self.head + 8

    @property
    def score_stride(self) -> int:
        return self.keys + self.lanes

    @property
    def sum_stride(self) -> int:
        return self.value + self.lanes


_KEY_BLOCK = 128
# Queries and their sums should stay in the second-level cache with the keys and values of a block.
_QUERY_BYTES = 1 << 16
# Panels that the micro-kernel for a single query works on at once, to have 4 sums in flight.
_PANELS_OF_ONE_ROW = 2


def _blocks(kernel: KernelFunction, problem: AttentionProblem) -> _Blocks:
    head, value = (size.constant for size in problem.space[4:])
    assert head is not None and value is not None
    lanes = kernel.lanes(problem.compute)
    rows = kernel.main_rows
    group = 2 * rows
    width = 2 * lanes
    per_query = max(head, value, 1) * problem.compute.width // 8
    count = min(max(_QUERY_BYTES // per_query, 4 * group), 16 * group)
    return _Blocks(
        lanes=lanes,
        queries=count // group * group,
        group=group,
        keys=_KEY_BLOCK,
        head=max(head, 1),
        value=-(-max(value, 1) // width) * width,
        rows=rows,
    )


@dataclass(frozen=True)
class _Keys:
    """A block of keys against a block of queries.

    Attributes:
        fixed: batch and head.
        m0, n0: first query and key.
        queries, keys: how many of each.
    """

    fixed: dict[int, Size]
    m0: Expr
    n0: Expr
    queries: Expr
    keys: Expr


@dataclass(frozen=True)
class _Row:
    """A row of scores in scratch: its first element's place."""

    buffer: Buffer
    start: Expr


class _BlockedAttention:
    def __init__(self, kernel: KernelFunction, problem: AttentionProblem) -> None:
        self._kernel, self._problem, self._indexer = kernel, problem, kernel.indexer
        self._blocks = blocks = _blocks(kernel, problem)
        self._type = problem.compute
        self._vector = ir.VectorType.get([blocks.lanes], self._type)

        def scratch(count: int) -> Buffer:
            return kernel.scratch(count, problem.compute)

        self._q = scratch(blocks.queries * blocks.q_stride)
        self._k = scratch(blocks.keys * blocks.head)
        self._v = scratch(blocks.keys * blocks.value)
        self._scores = scratch(blocks.group * blocks.score_stride)
        # Masked scores go to a row of their own: in place, a select becomes a masked store, which
        # is slow on many CPUs.
        self._masked = scratch(blocks.score_stride) if problem.mask is not None else None
        self._sums = scratch(blocks.queries * blocks.sum_stride)
        self._maxima = scratch(blocks.queries)
        self._totals = scratch(blocks.queries)
        boolean = ir.IntegerType.get_signless(1)
        self._fresh, self._added = constant(boolean, 1), constant(boolean, 0)
        self._limits = _Limits(problem.space[3], problem.causal)

    def emit(self) -> None:
        batch, heads, queries, keys, head, value = self._problem.space
        most = self._blocks.queries
        blocks = self._indexer.simplify((queries + most - 1) // most)
        multiplies = batch * heads * queries * keys * (head + value)
        work = multiplies * (MULTIPLY_COST // self._blocks.lanes)

        def block(indices: list[Expr]) -> None:
            fixed: dict[int, Size] = dict(enumerate(indices[:2]))
            m0 = indices[2] * most
            self._queries(fixed, m0, self._indexer.minimum(most, queries - m0))

        share_nest(self._kernel, (batch, heads, blocks), work, block)

    def _queries(self, fixed: dict[int, Size], m0: Expr, count: Expr) -> None:
        problem, blocks, indexer = self._problem, self._blocks, self._indexer
        scale = constant(self._type, problem.scale)
        block = Block(problem.q, fixed, _QUERY, _INNER, m0, 0)
        padded = self._padded(count)
        pack_rows(
            indexer,
            block,
            count,
            padded,
            problem.space[4],
            self._q,
            blocks.q_stride,
            convert=lambda value: arith.mulf(value, scale),
        )
        self._clear(padded)
        self._limits = _Limits.of(indexer, problem, fixed)
        visible = self._limits.of_query(indexer, m0 + count - 1)

        def keys(n0: Expr, _: list[Value]) -> Sequence[Value]:
            length = indexer.minimum(blocks.keys, visible - n0)
            self._keys(_Keys(fixed, m0, n0, count, length))
            return ()

        indexer.loop(0, visible, keys, step=blocks.keys)
        self._finish(fixed, m0, count)

    def _padded(self, count: Expr) -> Expr:
        """Queries rounded up to whole micro-kernels; at most a group more than there are."""
        rows = self._blocks.rows
        return self._indexer.simplify((count + rows - 1) // rows * rows)

    def _clear(self, queries: Expr) -> None:
        """Nothing seen yet."""
        blocks, indexer = self._blocks, self._indexer
        lowest, zero = identity("max", self._type), constant(self._type, 0.0)

        def query(row: Expr, _: list[Value]) -> Sequence[Value]:
            self._maxima.store(lowest, indexer.value(row))
            self._totals.store(zero, indexer.value(row))

            def column(index: Expr, _: list[Value]) -> Sequence[Value]:
                self._sums.store(zero, indexer.value(row * blocks.sum_stride + index))
                return ()

            indexer.loop(0, blocks.value, column)
            return ()

        indexer.loop(0, queries, query)

    def _keys(self, block: _Keys) -> None:
        self._pack(block)

        def group(start: Expr, _: list[Value]) -> Sequence[Value]:
            rows = self._indexer.minimum(self._blocks.group, block.queries - start)
            self._score(block, start, rows)
            self._softmax(block, start, rows)
            self._weigh(block, start, rows)
            return ()

        self._indexer.loop(0, block.queries, group, step=self._blocks.group)

    def _pack(self, block: _Keys) -> None:
        problem, blocks, indexer = self._problem, self._blocks, self._indexer
        width, head, value = blocks.width, *problem.space[4:]

        def panel(target: Buffer, start: Expr) -> Panel:
            return Panel(target, start, width, blocks.lanes)

        def key_panel(start: Expr, _: list[Value]) -> Sequence[Value]:
            source = Block(problem.k, block.fixed, _INNER, 2, 0, block.n0 + start)
            target = start * blocks.head
            pack_panel(indexer, source, head, block.keys - start, panel(self._k, target))
            return ()

        def value_panel(start: Expr, _: list[Value]) -> Sequence[Value]:
            source = Block(problem.v, block.fixed, 2, _INNER, block.n0, start)
            target = start * blocks.keys
            pack_panel(indexer, source, block.keys, value - start, panel(self._v, target))
            return ()

        indexer.loop(0, block.keys, key_panel, step=width)
        indexer.loop(0, value, value_panel, step=width)

    def _score(self, block: _Keys, start: Expr, rows: Expr) -> None:
        """scores = Q * K for a group of queries, all panels of the block of keys."""
        blocks = self._blocks
        panels = self._indexer.simplify((block.keys + blocks.width - 1) // blocks.width)

        def micro(row: Expr, chosen: Sequence[Expr], count: int) -> None:
            kernel = self._micro_kernel(count, len(chosen), blocks.q_stride, blocks.score_stride)
            kernel.call(
                self._kernel.micro_kernel(kernel),
                self._indexer,
                (self._q, (start + row) * blocks.q_stride),
                (self._k, [panel * (blocks.head * blocks.width) for panel in chosen]),
                (
                    self._scores,
                    [row * blocks.score_stride + panel * blocks.width for panel in chosen],
                ),
                self._problem.space[4],
                self._fresh,
            )

        self._rows(rows, panels, micro)

    def _weigh(self, block: _Keys, start: Expr, rows: Expr) -> None:
        """sums += scores * V for a group of queries."""
        blocks = self._blocks

        def micro(row: Expr, chosen: Sequence[Expr], count: int) -> None:
            kernel = self._micro_kernel(count, len(chosen), blocks.score_stride, blocks.sum_stride)
            kernel.call(
                self._kernel.micro_kernel(kernel),
                self._indexer,
                (self._scores, row * blocks.score_stride),
                (self._v, [panel * (blocks.keys * blocks.width) for panel in chosen]),
                (
                    self._sums,
                    [(start + row) * blocks.sum_stride + panel * blocks.width for panel in chosen],
                ),
                block.keys,
                self._added,
            )

        self._rows(rows, Expr.const(blocks.value // blocks.width), micro)

    def _micro_kernel(self, rows: int, panels: int, a_stride: int, c_stride: int) -> MicroKernel:
        return MicroKernel(
            element=self._type,
            lanes=self._blocks.lanes,
            rows=rows,
            panels=panels,
            vectors=2,
            a_stride=a_stride,
            b_step=self._blocks.width,
            c_stride=c_stride,
        )

    def _rows(
        self, rows: Expr, panels: Expr, micro: Callable[[Expr, Sequence[Expr], int], None]
    ) -> None:
        """Calls ``micro(first row, panels, rows)`` for all rows and panels.

        Whole micro-kernels run past the last row into padding, except that one row alone, as in
        decoding, has a micro-kernel of its own.
        """
        indexer, most = self._indexer, self._blocks.rows

        def all_panels(row: Expr, count: int, at_once: int) -> None:
            def group(first: Expr, _: list[Value]) -> Sequence[Value]:
                others = (indexer.minimum(first + i, panels - 1) for i in range(1, at_once))
                micro(row, [first, *others], count)
                return ()

            indexer.loop(0, panels, group, step=at_once)

        def many() -> None:
            def block(row: Expr, _: list[Value]) -> Sequence[Value]:
                all_panels(row, most, 1)
                return ()

            indexer.loop(0, rows, block, step=most)

        def single() -> None:
            all_panels(Expr.const(0), 1, _PANELS_OF_ONE_ROW)

        if rows.constant is not None:
            (single if rows.constant == 1 else many)()
            return
        indexer.when(indexer.compare("eq", rows, 1), single)
        indexer.when(indexer.compare("ne", rows, 1), many)

    # Softmax --------------------------------------------------------------------------------------

    def _softmax(self, block: _Keys, start: Expr, rows: Expr) -> None:
        """scores = exp(scores - maximum), with what was summed before scaled to the new maximum."""

        def query(row: Expr, _: list[Value]) -> Sequence[Value]:
            scores = _Row(self._scores, row * self._blocks.score_stride)
            seen = scores
            if self._problem.mask is not None and self._masked is not None:
                seen = _Row(self._masked, Expr.const(0))
                self._apply_mask(self._problem.mask, block, start + row, scores, seen)
            self._softmax_row(block, start + row, seen, scores)
            return ()

        self._indexer.loop(0, rows, query)

    def _apply_mask(
        self, mask: Access, block: _Keys, query: Expr, scores: _Row, masked: _Row
    ) -> None:
        indexer = self._indexer

        def column(index: Expr, _: list[Value]) -> Sequence[Value]:
            dims = {**block.fixed, _QUERY: block.m0 + query, _KEY: block.n0 + index}
            score = scores.buffer.load(indexer.value(scores.start + index))
            value = _masked(score, mask.load(indexer, dims))
            masked.buffer.store(value, indexer.value(masked.start + index))
            return ()

        indexer.loop(0, block.keys, column)

    def _softmax_row(self, block: _Keys, query: Expr, seen: _Row, weights: _Row) -> None:
        """One query's scores, in ``seen``, to weights; ``query`` counts from the block's first."""
        indexer, place = self._indexer, self._indexer.value(query)
        self._hide(block, query, seen)
        old = self._maxima.load(place)
        maximum = combine("max", old, self._row_maximum(block, seen))
        self._maxima.store(maximum, place)
        # While nothing was seen all is -inf, and -inf - -inf would be NaN.
        lowest, zero = identity("max", self._type), constant(self._type, 0.0)
        nothing = arith.cmpf(arith.CmpFPredicate.OEQ, maximum, lowest)
        base = arith.select(nothing, zero, maximum)
        added = self._row_exponentials(block, seen, weights, base)
        rescale = exp_nonpositive(arith.subf(old, base))
        total = arith.mulf(self._totals.load(place), rescale)
        self._totals.store(arith.addf(total, added), place)

        def column(index: Expr, _: list[Value]) -> Sequence[Value]:
            offset = indexer.value(query * self._blocks.sum_stride + index)
            self._sums.store(arith.mulf(self._sums.load(offset), rescale), offset)
            return ()

        indexer.loop(0, self._blocks.value, column)

    def _hide(self, block: _Keys, query: Expr, seen: _Row) -> None:
        """Makes the scores of keys that the query does not see -inf, up to the last panel's end."""
        lowest, width = identity("max", self._type), self._blocks.width
        limit = block.keys
        if self._limits.causal is not None:
            count = block.m0 + query + self._limits.causal + 1 - block.n0
            limit = self._indexer.clamp(count, block.keys)

        def column(index: Expr, _: list[Value]) -> Sequence[Value]:
            seen.buffer.store(lowest, self._indexer.value(seen.start + index))
            return ()

        self._indexer.loop(limit, (block.keys + width - 1) // width * width, column)

    def _over_row(
        self,
        block: _Keys,
        row: _Row,
        initial: Value,
        step: Callable[[Value, Value, Expr], Value],
    ) -> list[Value]:
        """Two running vectors over a row of scores: ``step(running, score, index)``."""
        indexer, lanes = self._indexer, self._blocks.lanes

        def body(column: Expr, running: list[Value]) -> Sequence[Value]:
            result = []
            for i, value in enumerate(running):
                index = column + i * lanes
                offset = indexer.value(row.start + index)
                score = row.buffer.load_vector(self._vector, offset)
                result.append(step(value, score, index))
            return result

        return indexer.loop(0, block.keys, body, step=2 * lanes, init=[initial, initial])

    def _row_maximum(self, block: _Keys, seen: _Row) -> Value:
        lowest = constant(self._vector, -float("inf"))
        maxima = self._over_row(
            block, seen, lowest, lambda maximum, score, _: combine("max", maximum, score)
        )
        kind = ir.Attribute.parse("#vector.kind<maximumf>")
        both = combine("max", *maxima)
        return vector.reduction(self._type, kind, both, fastmath=fastmath("reassoc,nsz"))

    def _row_exponentials(self, block: _Keys, seen: _Row, weights: _Row, base: Value) -> Value:
        """weights = exp(seen - base); returns their sum."""
        spread_base = vector.broadcast(self._vector, base)

        def step(total: Value, score: Value, index: Expr) -> Value:
            weight = exp_nonpositive(arith.subf(score, spread_base))
            weights.buffer.store_vector(weight, self._indexer.value(weights.start + index))
            return arith.addf(total, weight)

        sums = self._over_row(block, seen, constant(self._vector, 0.0), step)
        kind = ir.Attribute.parse("#vector.kind<add>")
        return vector.reduction(self._type, kind, arith.addf(*sums), fastmath=fastmath("reassoc"))

    def _finish(self, fixed: dict[int, Size], m0: Expr, count: Expr) -> None:
        indexer, blocks, problem = self._indexer, self._blocks, self._problem
        zero, one = constant(self._type, 0.0), constant(self._type, 1.0)

        def query(row: Expr, _: list[Value]) -> Sequence[Value]:
            total = self._totals.load(indexer.value(row))
            nothing = arith.cmpf(arith.CmpFPredicate.OEQ, total, zero)
            factor = arith.select(nothing, zero, arith.divf(one, total))

            def column(index: Expr, _: list[Value]) -> Sequence[Value]:
                total_value = self._sums.load(indexer.value(row * blocks.sum_stride + index))
                dims = {**fixed, _QUERY: m0 + row, _INNER: index}
                problem.result.store(indexer, arith.mulf(total_value, factor), dims)
                return ()

            indexer.loop(0, problem.space[5], column)
            return ()

        indexer.loop(0, count, query)


class _PlainAttention:
    """The same online softmax one query and one key at a time: for head sizes without a bound."""

    def __init__(self, kernel: KernelFunction, problem: AttentionProblem) -> None:
        self._problem, self._indexer, self._type = problem, kernel.indexer, problem.compute
        self._sums = kernel.scratch(MAX_HEAD_SIZE, problem.compute)

    def emit(self) -> None:
        def query(indices: list[Expr]) -> None:
            value_size = self._problem.space[5]

            def block(start: Expr, _: list[Value]) -> Sequence[Value]:
                width = self._indexer.minimum(MAX_HEAD_SIZE, value_size - start)
                self._block(dict(enumerate(indices)), start, width)
                return ()

            self._indexer.loop(0, value_size, block, step=MAX_HEAD_SIZE)

        self._indexer.nest(self._problem.space[:3], query)

    def _each(self, width: Expr, update: Callable[[Expr, Value], Value]) -> None:
        """``sums[c] = update(c, sums[c])`` for c < width."""

        def column(index: Expr, _: list[Value]) -> Sequence[Value]:
            offset = self._indexer.value(index)
            self._sums.store(update(index, self._sums.load(offset)), offset)
            return ()

        self._indexer.loop(0, width, column)

    def _block(self, dims: dict[int, Size], start: Expr, width: Expr) -> None:
        """Values [start, start + width) of one query's result."""
        problem, indexer = self._problem, self._indexer
        zero, one = constant(self._type, 0.0), constant(self._type, 1.0)
        lowest = identity("max", self._type)
        self._each(width, lambda _, __: zero)

        def key(n: Expr, carried: list[Value]) -> Sequence[Value]:
            old, total = carried
            score = self._score(dims, n)
            maximum = combine("max", old, score)
            nothing = arith.cmpf(arith.CmpFPredicate.OEQ, maximum, lowest)
            base = arith.select(nothing, zero, maximum)
            rescale, weight = (exp_nonpositive(arith.subf(value, base)) for value in (old, score))

            def update(index: Expr, value: Value) -> Value:
                at = {0: dims[0], 1: dims[1], 2: n, _INNER: start + index}
                new = arith.mulf(weight, problem.v.load(indexer, at))
                return arith.addf(arith.mulf(value, rescale), new)

            self._each(width, update)
            return maximum, arith.addf(arith.mulf(total, rescale), weight)

        limits = _Limits.of(indexer, problem, {0: dims[0], 1: dims[1]})
        keys = limits.of_query(indexer, dims[_QUERY])
        _, total = indexer.loop(0, keys, key, init=[lowest, zero])
        nothing = arith.cmpf(arith.CmpFPredicate.OEQ, total, zero)
        factor = arith.select(nothing, zero, arith.divf(one, total))

        def finish(index: Expr, value: Value) -> Value:
            result = arith.mulf(value, factor)
            problem.result.store(indexer, result, {**dims, _INNER: start + index})
            return value

        self._each(width, finish)

    def _score(self, dims: dict[int, Size], n: Expr) -> Value:
        problem, indexer = self._problem, self._indexer

        def step(index: Expr, sums: list[Value]) -> Sequence[Value]:
            query = problem.q.load(indexer, {**dims, _INNER: index})
            key = problem.k.load(indexer, {0: dims[0], 1: dims[1], 2: n, _INNER: index})
            return [combine("add", sums[0], arith.mulf(query, key))]

        [dot] = indexer.loop(0, problem.space[4], step, init=[constant(self._type, 0.0)])
        score = arith.mulf(dot, constant(self._type, problem.scale))
        if problem.mask is None:
            return score
        return _masked(score, problem.mask.load(indexer, {**dims, _KEY: n}))


def _masked(score: Value, mask: Value) -> Value:
    """A score with its mask applied: -inf where a bool is false, or a number added."""
    if is_bool(mask.type):
        return arith.select(mask, score, identity("max", score.type))
    if mask.type != score.type:
        convert = arith.extf if mask.type.width < score.type.width else arith.truncf
        mask = convert(score.type, mask)
    return arith.addf(score, mask)
