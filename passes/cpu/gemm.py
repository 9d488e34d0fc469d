# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Matrix products on the CPU: packed blocks, a register micro-kernel, an epilogue on the hot block.

    for each batch index
      for m0, a block of rows
        for n0, a block of columns
          for k0, a block of the contraction
            pack A[m0.., k0..]                        -> scratch, rows of a padded stride
            for each bundle of column panels
              (pack B[k0.., n0..] unless it is stored in panels)
              micro-kernel over the rows              -> sums, a scratch block
          epilogue(sums, extras)                      -> result[m0.., n0..]

All operands are read through index maps, so transposes, broadcasts and views cost nothing but the
order in which packing walks memory. A weight that `shapejit-pack-weights` laid out in panels is
read in place. Sums stay in scratch until all of k is in, so K may be of any size, 0 included,
results of any type, and an epilogue may combine two products (gated pairs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlir.dialects import arith

from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.memory import Access
from shapejit.passes.cpu.micro import MicroKernel
from shapejit.passes.cpu.packing import (
    Block,
    Panel,
    RowBlock,
    RowSource,
    pack_panel,
    pack_rows,
)
from shapejit.passes.cpu.parallel import MULTIPLY_COST, unit_indices
from shapejit.passes.cpu.scalars import Type
from shapejit.symbolic import Expr, delinearize, product
from shapejit.symbolic.expr import ZERO

Epilogue: TypeAlias = Callable[[Indexer, Sequence[Value], dict[int, Expr]], Value]
"""From the sums of one element and its result dims to the element of the result."""


@dataclass(frozen=True)
class GemmProblem:
    """``result[b.., m, n] = epilogue(sum over k of lhs * w for each weight w)``

    Attributes:
        space: sizes of the dims: batch dims, m, n, k.
        lhs: over all dims, independent of n; or what packs its own rows.
        weights: over all dims, independent of m; one or two.
        result: over the dims but k.
        accumulate: type in which products are summed.
        epilogue: gives the result's element in its compute type; None for the sum itself.
    """

    space: tuple[Expr, ...]
    lhs: Access | RowSource
    weights: tuple[Access, ...]
    result: Access
    accumulate: Type
    epilogue: Epilogue | None = None

    @property
    def m(self) -> int:
        """The dim of rows; n and k follow it."""
        return len(self.space) - 3

    @property
    def n(self) -> int:
        return len(self.space) - 2

    @property
    def k(self) -> int:
        return len(self.space) - 1


@dataclass(frozen=True)
class Blocking:
    """Sizes of blocks, in elements.

    Attributes:
        lanes: elements of a vector.
        vectors: vectors in the width of a panel.
        rows: rows of the main micro-kernel.
        tails: micro-kernels for the rows that are left: (rows, panels at once), by rows.
        m, n, k: rows, columns and contraction length of a block.
        bundle: panels packed together, the most that a micro-kernel works on at once.
    """

    lanes: int
    vectors: int
    rows: int
    tails: tuple[tuple[int, int], ...]
    m: int
    n: int
    k: int
    bundle: int = 4

    @property
    def width(self) -> int:
        return self.lanes * self.vectors

    @property
    def a_stride(self) -> int:
        return self.k + 16

    @property
    def c_stride(self) -> int:
        return self.n + 16


# By the rows of the main micro-kernel, see `KernelFunction.main_rows`. Each has at least 8 sums in
# flight, to cover the latency of fused multiply-adds.
_TAILS = {6: ((1, 4), (2, 2), (4, 1), (6, 1)), 12: ((1, 4), (2, 4), (4, 2), (8, 1), (12, 1))}
# A panel of B of this many rows stays in the first-level cache while the rows of A pass by.
_BLOCK_K = 384
# B is read, and if need be packed, once a block of rows; the block of A and the sums share the
# second-level cache.
_BLOCK_M = 96
_BLOCK_N = 384
# Panels of the smallest piece of work that threads share.
_STRIP_PANELS = 2
# Reading the weights takes as long as so many rows of the product.
_WEIGHT_ROWS = 2


def _even_block(size: Expr, limit: int, multiple: int) -> int:
    """The block length that splits ``size`` evenly into blocks of at most about ``limit``."""
    if size.constant is None:
        return limit
    count = max(-(-size.constant // limit), 1)
    length = -(-max(size.constant, 1) // count)
    return -(-length // multiple) * multiple


@dataclass(frozen=True)
class _Panels:
    """How a weight can be read in place: panels of ``width`` columns, k ``step`` elements apart."""

    width: int
    step: int


def _stored_panels(problem: GemmProblem, weight: Access, lanes: int) -> _Panels | None:
    """The panels that a weight is stored in, None if it must be packed on the fly.

    The last dim must be n within the panel and no other may move with it. Whole vectors past the
    last column can then be read, since a panel has its full width in memory.
    """
    width = weight.shape[-1].constant if weight.shape else None
    step = weight.offset.stride(problem.k)
    if width is None or step is None or step.constant is None or width % lanes or not width:
        return None
    if not weight.buffer.is_plain or weight.buffer.element != problem.accumulate:
        return None
    n = Expr.dim(problem.n)
    columns = problem.space[problem.n].constant
    single = columns is not None and columns <= width
    start = ZERO if single else n // width * width
    if weight.indices[-1] != n - start:
        return None
    if any(index != index.substitute(dims={problem.n: start}) for index in weight.indices[:-1]):
        return None
    return _Panels(width, step.constant)


def _blocking(
    kernel: KernelFunction, problem: GemmProblem, panels: Sequence[_Panels | None]
) -> Blocking:
    lanes = kernel.lanes(problem.accumulate)
    double = all(panel is None or panel.width % (2 * lanes) == 0 for panel in panels)
    width = lanes * (2 if double else 1)
    return Blocking(
        lanes=lanes,
        vectors=width // lanes,
        rows=kernel.main_rows,
        tails=_TAILS[kernel.main_rows],
        m=_BLOCK_M,
        n=_even_block(problem.space[problem.n], _BLOCK_N, width),
        k=_even_block(problem.space[problem.k], _BLOCK_K, 8),
    )


def emit_gemm(kernel: KernelFunction, problem: GemmProblem) -> None:
    """Emits a product into the body of a kernel."""
    _BlockedGemm(kernel, merge_rows(problem)).emit()


def merge_rows(problem: GemmProblem) -> GemmProblem:
    """The same product with the batch dims before m that no weight depends on made part of m.

    A linear layer on [batch, tokens, features] is then one tall product, however its input is laid
    out, and its blocks of rows are full.
    """
    if not isinstance(problem.lhs, Access):
        return problem
    first = problem.m
    used = {dim for weight in problem.weights for dim in weight.offset.dims()}
    while first > 0 and first - 1 not in used:
        first -= 1
    if first == problem.m:
        return problem
    merged = problem.space[first : problem.k - 1]
    space = (*problem.space[:first], product(merged), *problem.space[problem.n :])
    replaced = dict(enumerate(map(Expr.dim, range(first))))
    for offset, index in enumerate(delinearize(Expr.dim(first), merged)):
        replaced[first + offset] = index
    replaced[problem.n], replaced[problem.k] = Expr.dim(first + 1), Expr.dim(first + 2)

    def remapped(access: Access) -> Access:
        indices = [index.substitute(dims=replaced) for index in access.indices]
        return Access.through(access.buffer, access.shape, indices, space)

    inner = problem.epilogue

    def epilogue(indexer: Indexer, sums: Sequence[Value], dims: dict[int, Expr]) -> Value:
        assert inner is not None
        outer = range(problem.k)
        return inner(indexer, sums, {dim: replaced[dim].substitute(dims=dims) for dim in outer})

    return GemmProblem(
        space=space,
        lhs=remapped(problem.lhs),
        weights=tuple(map(remapped, problem.weights)),
        result=remapped(problem.result),
        accumulate=problem.accumulate,
        epilogue=epilogue if inner is not None else None,
    )


class _BlockedGemm:
    """The blocked product; see the module's docstring for the loops."""

    def __init__(self, kernel: KernelFunction, problem: GemmProblem) -> None:
        self._kernel, self._problem, self._indexer = kernel, problem, kernel.indexer
        lanes = kernel.lanes(problem.accumulate)
        self._panels = [_stored_panels(problem, weight, lanes) for weight in problem.weights]
        self._blocking = blocking = _blocking(kernel, problem, self._panels)
        element = problem.accumulate
        self._a = kernel.scratch(blocking.m * blocking.a_stride, element)
        self._b = [
            None
            if panels
            else kernel.scratch(blocking.bundle * blocking.k * blocking.width, element)
            for panels in self._panels
        ]
        self._sums = [kernel.scratch(blocking.m * blocking.c_stride, element) for _ in self._panels]

    def emit(self) -> None:
        """The shared units are strips of a block of rows: batch, row block, columns of a strip.

        Those of one block of rows follow each other, so that a call with many of them packs a block
        once and runs through its columns as if it had them all.
        """
        problem, blocking, indexer = self._problem, self._blocking, self._indexer
        batch = problem.space[: problem.m]
        m, n, k = problem.space[problem.m :]
        blocks = indexer.simplify((m + blocking.m - 1) // blocking.m)
        strip = blocking.width * _STRIP_PANELS
        strips = indexer.simplify((n + strip - 1) // strip)
        rows = product(batch) * blocks
        multiply = MULTIPLY_COST // blocking.lanes * len(problem.weights)
        work = product([*batch, m + _WEIGHT_ROWS, n, k]) * multiply
        first, last = self._kernel.share(rows * strips, work, align=strips)

        def row(index: Expr, _: list[Value]) -> Sequence[Value]:
            *outer, block = unit_indices(indexer, index, [*batch, blocks])
            skipped = indexer.clamp(first - index * strips, strips)
            wanted = indexer.clamp(last - index * strips, strips)
            columns = (skipped * strip, indexer.minimum(wanted * strip, n))
            self._row_block(outer, block * blocking.m, columns)
            return ()

        indexer.loop(first // strips, (last + strips - 1) // strips, row)

    def _row_block(self, indices: list[Expr], m0: Expr, columns: tuple[Expr, Expr]) -> None:
        m = self._problem.space[self._problem.m]
        blocking = self._blocking
        fixed: dict[int, Size] = dict(enumerate(indices))
        rows = self._indexer.minimum(blocking.m, m - m0)

        def column_block(n0: Expr, _: list[Value]) -> Sequence[Value]:
            width = self._indexer.minimum(blocking.n, columns[1] - n0)
            self._block(_Tile(fixed, m0, n0, rows, width))
            return ()

        self._indexer.loop(*columns, column_block, step=blocking.n)

    def _block(self, tile: _Tile) -> None:
        """All of k for one block of the result, then its epilogue."""
        k = self._problem.space[self._problem.k]
        # One step at least: with K = 0 the sums are 0, not what scratch holds.
        upper = Expr.const(max(k.constant, 1)) if k.constant is not None else None
        if upper is None:
            upper = self._indexer.compute(arith.maxui, k, 1)

        def contraction_block(k0: Expr, _: list[Value]) -> Sequence[Value]:
            length = self._indexer.minimum(self._blocking.k, k - k0)
            self._multiply(tile, k0, length)
            return ()

        self._indexer.loop(0, upper, contraction_block, step=self._blocking.k)
        self._epilogue(tile)

    def _multiply(self, tile: _Tile, k0: Expr, length: Expr) -> None:
        problem, blocking, indexer = self._problem, self._blocking, self._indexer
        tail = indexer.simplify(tile.rows - tile.rows // blocking.rows * blocking.rows)
        padded = tile.rows - tail + self._padded_tail(tail)
        rows = RowBlock(
            tile.fixed, tile.m0, tile.rows, padded, k0, length, self._a, blocking.a_stride
        )
        self._pack_lhs(rows)
        fresh = indexer.compare("eq", k0, 0)
        panels = indexer.simplify((tile.columns + blocking.width - 1) // blocking.width)

        def bundle(first: Expr, _: list[Value]) -> Sequence[Value]:
            last = indexer.minimum(first + blocking.bundle, panels)
            for weight in range(len(problem.weights)):
                self._multiply_bundle(weight, _Step(tile, k0, length, fresh, first, last), tail)
            return ()

        indexer.loop(0, panels, bundle, step=blocking.bundle)

    def _pack_lhs(self, rows: RowBlock) -> None:
        problem, lhs = self._problem, self._problem.lhs
        if not isinstance(lhs, Access):
            lhs.pack(self._indexer, rows)
            return
        block = Block(lhs, rows.fixed, problem.m, problem.k, rows.row, rows.column)
        pack_rows(
            self._indexer, block, rows.rows, rows.padded, rows.columns, rows.target, rows.stride
        )

    def _padded_tail(self, tail: Expr) -> Expr:
        """Rows that the micro-kernel for ``tail`` rows works on."""
        sizes = [0, *(rows for rows, _ in self._blocking.tails)]
        if tail.constant is not None:
            return Expr.const(next(size for size in sizes if size >= tail.constant))
        indexer, result = self._indexer, Expr.const(sizes[-1])
        for size in reversed(sizes[:-1]):
            result = indexer.compute(
                lambda rest, limit, larger: arith.select(
                    arith.cmpi(arith.CmpIPredicate.ule, rest, limit), limit, larger
                ),
                tail,
                size,
                result,
                size=sizes[-1] + 1,
            )
        return result

    def _multiply_bundle(self, weight: int, step: _Step, tail: Expr) -> None:
        blocking, indexer = self._blocking, self._indexer
        if self._b[weight] is not None:
            self._pack_bundle(weight, step)
        whole = step.tile.rows - tail

        def panel(index: Expr, _: list[Value]) -> Sequence[Value]:
            def rows(row: Expr, _: list[Value]) -> Sequence[Value]:
                self._micro(weight, step, row, [index], blocking.rows)
                return ()

            indexer.loop(0, whole, rows, step=blocking.rows)
            return ()

        indexer.loop(step.first, step.last, panel)
        least = 0
        for rows, panels in blocking.tails:
            self._tail(weight, step, tail, (least, rows), panels)
            least = rows

    def _tail(
        self, weight: int, step: _Step, tail: Expr, sizes: tuple[int, int], panels: int
    ) -> None:
        """The rows that are left, if their number is in (sizes[0], sizes[1]]."""
        indexer, (least, rows) = self._indexer, sizes

        def emit() -> None:
            start = step.tile.rows - tail

            def group(first: Expr, _: list[Value]) -> Sequence[Value]:
                # A panel past the last one is the last one again: computed twice, stored twice.
                last = step.last - 1
                chosen = [first, *(indexer.minimum(first + i, last) for i in range(1, panels))]
                self._micro(weight, step, start, chosen, rows)
                return ()

            indexer.loop(step.first, step.last, group, step=panels)

        if tail.constant is not None:
            if least < tail.constant <= rows:
                emit()
            return
        above, below = indexer.compare("sgt", tail, least), indexer.compare("sle", tail, rows)
        indexer.when(arith.andi(above, below), emit)

    def _pack_bundle(self, weight: int, step: _Step) -> None:
        problem, blocking, tile = self._problem, self._blocking, step.tile
        target = self._b[weight]
        assert target is not None

        def pack(index: Expr, _: list[Value]) -> Sequence[Value]:
            column = index * blocking.width
            block = Block(
                problem.weights[weight], tile.fixed, problem.k, problem.n, step.k0, tile.n0 + column
            )
            start = (index - step.first) * (blocking.k * blocking.width)
            panel = Panel(target, start, blocking.width, blocking.lanes)
            pack_panel(self._indexer, block, step.length, tile.columns - column, panel)
            return ()

        self._indexer.loop(step.first, step.last, pack)

    def _micro(
        self, weight: int, step: _Step, row: Expr, panels: Sequence[Expr], rows: int
    ) -> None:
        """One call of a micro-kernel: ``rows`` rows from ``row`` on, some panels of the bundle."""
        blocking, problem, tile = self._blocking, self._problem, step.tile
        stored, scratch = self._panels[weight], self._b[weight]
        kernel = MicroKernel(
            element=problem.accumulate,
            lanes=blocking.lanes,
            rows=rows,
            panels=len(panels),
            vectors=blocking.vectors,
            a_stride=blocking.a_stride,
            b_step=stored.step if stored else blocking.width,
            c_stride=blocking.c_stride,
        )
        if scratch is not None:
            buffer = scratch
            starts = [(panel - step.first) * (blocking.k * blocking.width) for panel in panels]
        else:
            access = problem.weights[weight]
            buffer = access.buffer
            starts = [
                access.at(
                    {**tile.fixed, problem.n: tile.n0 + panel * blocking.width, problem.k: step.k0}
                )
                for panel in panels
            ]
        kernel.call(
            self._kernel.micro_kernel(kernel),
            self._indexer,
            (self._a, row * blocking.a_stride),
            (buffer, starts),
            (
                self._sums[weight],
                [row * blocking.c_stride + panel * blocking.width for panel in panels],
            ),
            step.length,
            step.fresh,
        )

    def _epilogue(self, tile: _Tile) -> None:
        problem, indexer = self._problem, self._indexer

        def element(indices: list[Expr]) -> None:
            row, column = indices
            dims: dict[int, Expr] = {
                **{dim: Expr.const(0) + value for dim, value in tile.fixed.items()},
                problem.m: tile.m0 + row,
                problem.n: tile.n0 + column,
            }
            offset = indexer.value(row * self._blocking.c_stride + column)
            sums = [buffer.load(offset) for buffer in self._sums]
            value = problem.epilogue(indexer, sums, dims) if problem.epilogue else sums[0]
            problem.result.store(indexer, value, dims)

        indexer.nest((tile.rows, tile.columns), element)


@dataclass(frozen=True)
class _Tile:
    """A block of the result: batch indices, first row and column, rows and columns."""

    fixed: dict[int, Size]
    m0: Expr
    n0: Expr
    rows: Expr
    columns: Expr


@dataclass(frozen=True)
class _Step:
    """A bundle of panels, [first, last) of a tile, over one block of k."""

    tile: _Tile
    k0: Expr
    length: Expr
    fresh: Value
    first: Expr
    last: Expr
