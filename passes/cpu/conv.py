# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions on the CPU: products of matrices whose left side is gathered from the image.

A row is an output pixel of an image, a column an output channel, and what is summed over are the
taps and the input channels, channels innermost. So it is the blocked product of `gemm` but for one
step: a block of rows is copied from the image into scratch, where every other product copies a
block of a matrix. No pixel of a patch is ever stored but there.

    for each row of the block                    (an output pixel n, o..)
      for each segment of the block's columns    (a tap, or a run of taps)
        zeros | pixels that the taps see | zeros

A *segment* is what lies in memory as it lies in the row: the channels of one tap, or, where pixels
follow each other channels last and undilated, those of a whole row of taps. Taps off the image are
found once a segment, so that no element is tested, and the middle is one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlir.dialects import arith

from shapejit.passes.cpu.gemm import Epilogue, GemmProblem, emit_gemm
from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.memory import Access
from shapejit.passes.cpu.packing import RowBlock
from shapejit.passes.cpu.parallel import unit_indices
from shapejit.passes.cpu.scalars import Type, constant, is_float
from shapejit.symbolic import Expr, delinearize, product
from shapejit.windows import Window


@dataclass(frozen=True)
class ConvProblem:
    """What a ``shapejit.conv`` computes; dims are named as there.

    Attributes:
        space: sizes of n, g, o.., f, c, t..
        image: spatial sizes of the input.
        window: stride, padding and so on.
        input: over (n, g, p.., c), p a pixel of the image.
        weight: over (g, f, c, t..).
        result: over (n, g, o.., f).
        accumulate: type in which products are summed.
        epilogue: gives the result's element from the sum, dims over (n, g, o.., f); None for the
            sum itself.
    """

    space: tuple[Expr, ...]
    image: tuple[Expr, ...]
    window: Window
    input: Access
    weight: Access
    result: Access
    accumulate: Type
    epilogue: Epilogue | None = None

    @property
    def rank(self) -> int:
        """Spatial dims."""
        return len(self.image)

    @property
    def rows(self) -> tuple[Expr, ...]:
        """Sizes of n, o..: what the rows of the product are."""
        return (self.space[0], *self.space[2 : 2 + self.rank])

    @property
    def groups(self) -> Expr:
        return self.space[1]

    @property
    def columns(self) -> Expr:
        """Output channels of a group."""
        return self.space[2 + self.rank]

    @property
    def channels(self) -> Expr:
        """Input channels of a group."""
        return self.space[3 + self.rank]

    @property
    def taps(self) -> tuple[Expr, ...]:
        return self.space[4 + self.rank :]


# Dims of the product.
_GROUP, _ROW, _COLUMN, _TERM = range(4)


def emit_conv(kernel: KernelFunction, problem: ConvProblem) -> None:
    """Emits a convolution into the body of a kernel."""
    emit_gemm(kernel, implicit_gemm(problem))


def implicit_gemm(problem: ConvProblem) -> GemmProblem:
    """The convolution as a product over [g, (n, o..), f, (t.., c)]."""
    rank = problem.rank
    space = (
        problem.groups,
        product(problem.rows),
        problem.columns,
        product([*problem.taps, problem.channels]),
    )
    group, column = Expr.dim(_GROUP), Expr.dim(_COLUMN)
    n, *pixels = delinearize(Expr.dim(_ROW), problem.rows)
    *taps, channel = delinearize(Expr.dim(_TERM), [*problem.taps, problem.channels])
    outer = dict(enumerate([n, group, *pixels, column]))
    inner = problem.epilogue

    def epilogue(indexer: Indexer, sums: Sequence[Value], dims: dict[int, Expr]) -> Value:
        assert inner is not None
        return inner(indexer, sums, {d: e.substitute(dims=dims) for d, e in outer.items()})

    def remapped(access: Access, dims: Sequence[Expr]) -> Access:
        replaced = dict(enumerate(dims))
        indices = [index.substitute(dims=replaced) for index in access.indices]
        return Access.through(access.buffer, access.shape, indices, space)

    return GemmProblem(
        space=space,
        lhs=_ImageRows(problem),
        weights=(remapped(problem.weight, [group, column, channel, *taps]),),
        result=remapped(problem.result, [outer[dim] for dim in range(3 + rank)]),
        accumulate=problem.accumulate,
        epilogue=epilogue if inner is not None else None,
    )


@dataclass(frozen=True)
class _Segments:
    """How a row of the product is divided; see the module's docstring.

    Attributes:
        taps: sizes of the tap dims that tell segments apart, the first ones.
        length: elements of a segment.
        run: whether a segment holds all taps of the last dim.
    """

    taps: tuple[Expr, ...]
    length: Expr
    run: bool


@dataclass(frozen=True)
class _ImageRows:
    """The left side of the product: rows gathered from the image."""

    problem: ConvProblem

    def pack(self, indexer: Indexer, block: RowBlock) -> None:
        """Copies a block; see `packing.RowSource`."""
        sizes = self.problem.rows
        start = unit_indices(indexer, block.row + Expr.const(0), sizes)
        segments = self._segments()

        def row(number: Expr, carried: list[Value]) -> Sequence[Value]:
            place = [
                indexer.variable(value, size) for value, size in zip(carried, sizes, strict=True)
            ]
            self._row(indexer, block, segments, number, place)
            more = indexer.compare("slt", number + 1, block.rows)
            return _next(indexer, carried, sizes, more)

        # Past the last row, the last one is copied again.
        indexer.loop(0, block.padded, row, init=list(map(indexer.value, start)))

    def _segments(self) -> _Segments:
        problem, last = self.problem, self.problem.rank - 1
        window, offset = problem.window, problem.input.offset
        step, channel = offset.stride(2 + last), offset.stride(2 + problem.rank)
        run = (
            channel is not None
            and channel == 1
            and step == problem.channels
            and window.dilations[last] == 1
            and window.lhs_dilations[last] == 1
        )
        if run:
            return _Segments(problem.taps[:-1], problem.taps[-1] * problem.channels, True)
        return _Segments(problem.taps, problem.channels, False)

    def _row(
        self,
        indexer: Indexer,
        block: RowBlock,
        segments: _Segments,
        number: Expr,
        place: Sequence[Expr],
    ) -> None:
        """Copies the columns of one row, the output pixel at ``place`` (n, o..)."""
        length, column = segments.length, block.column + Expr.const(0)
        end = column + block.columns
        first, last = column // length, (end + length - 1) // length

        def segment(index: Expr, _: list[Value]) -> Sequence[Value]:
            taps = unit_indices(indexer, index, segments.taps)
            start = index * length
            begin = indexer.clamp(column - start, length)
            stop = indexer.clamp(end - start, length)
            target = number * block.stride + start - column
            self._segment(indexer, block, segments, _Piece(place, taps, begin, stop, target))
            return ()

        indexer.loop(first, last, segment)

    def _segment(
        self, indexer: Indexer, block: RowBlock, segments: _Segments, piece: _Piece
    ) -> None:
        """Zeros, what the taps see of the image, zeros."""
        problem = self.problem
        pixels, seen = self._pixels(indexer, piece)
        low, high = Expr.const(0), segments.length
        if segments.run:
            last = problem.rank - 1
            taps, channels = problem.taps[last], problem.channels
            offset = piece.place[-1] * problem.window.strides[last]
            pixel = offset - problem.window.padding[last][0]
            low = indexer.clamp(-pixel, taps) * channels
            high = indexer.clamp(problem.image[last] - pixel, taps) * channels
            pixels.append(pixel)
        begin, stop = piece.begin, piece.stop
        size = segments.length + 1
        left = indexer.compute(_bounded, low, begin, stop, size=size)
        right = indexer.compute(_bounded, high, left, stop, size=size)
        if seen is not None:
            # Here, not where right and left are known: `seen` may be known only here.
            chosen = arith.select(seen, indexer.value(right), indexer.value(left))
            right = indexer.variable(chosen, size)
        source = {0: piece.place[0], 1: block.fixed[_GROUP]}
        source |= {2 + dim: pixel for dim, pixel in enumerate(pixels)}
        self._fill(indexer, block, piece.target, (begin, left))
        self._copy(indexer, block, piece.target, (left, right), source)
        self._fill(indexer, block, piece.target, (right, stop))

    def _pixels(self, indexer: Indexer, piece: _Piece) -> tuple[list[Expr], Value | None]:
        """The pixel that a segment's taps see, and whether it is on the image (None: surely)."""
        problem, window = self.problem, self.problem.window
        pixels: list[Expr] = []
        seen: Value | None = None

        def check(condition: Value) -> None:
            nonlocal seen
            seen = condition if seen is None else arith.andi(seen, condition)

        for dim, tap in enumerate(piece.taps):
            spread = window.lhs_dilations[dim]
            low, high = window.padding[dim]
            pixel = piece.place[1 + dim] * window.strides[dim] + tap * window.dilations[dim] - low
            if spread != 1:
                check(indexer.compare("eq", pixel % spread, 0))
                pixel = pixel // spread
            one_tap = problem.taps[dim].constant == 1
            if not one_tap or low > 0:
                check(indexer.compare("sge", pixel, 0))
            if not one_tap or high > 0 or low < 0:
                check(indexer.compare("slt", pixel, problem.image[dim]))
            pixels.append(pixel)
        return pixels, seen

    def _fill(
        self, indexer: Indexer, block: RowBlock, target: Expr, span: tuple[Expr, Expr]
    ) -> None:
        type_ = block.target.compute
        zero = constant(type_, 0.0 if is_float(type_) else 0)

        def element(index: Expr, _: list[Value]) -> Sequence[Value]:
            block.target.store(zero, indexer.value(target + index))
            return ()

        indexer.loop(*span, element)

    def _copy(
        self,
        indexer: Indexer,
        block: RowBlock,
        target: Expr,
        span: tuple[Expr, Expr],
        source: Mapping[int, Size],
    ) -> None:
        access, channel = self.problem.input, 2 + self.problem.rank

        def element(index: Expr, _: list[Value]) -> Sequence[Value]:
            # In a run the next tap's channels follow, as if they were more channels.
            value = access.load(indexer, {**source, channel: index})
            block.target.store(value, indexer.value(target + index))
            return ()

        indexer.loop(*span, element)


@dataclass(frozen=True)
class _Piece:
    """The part of one segment that lies in a block.

    Attributes:
        place: n and o.. of the row.
        taps: the taps that tell the segment from others.
        begin, stop: its elements in the block.
        target: where its element 0 would go.
    """

    place: Sequence[Expr]
    taps: Sequence[Expr]
    begin: Expr
    stop: Expr
    target: Expr


def _bounded(value: Value, low: Value, high: Value) -> Value:
    """``value`` limited to [low, high], all non-negative."""
    return arith.minui(arith.maxui(value, low), high)


def _next(
    indexer: Indexer, place: Sequence[Value], sizes: Sequence[Expr], more: Value
) -> list[Value]:
    """The row-major successor of ``place``, or the same if there is no ``more``."""
    zero, one = indexer.constant(0), indexer.constant(1)
    carry = arith.select(more, one, zero)
    result: list[Value] = []
    for value, size in zip(reversed(place), reversed(sizes), strict=True):
        moved = arith.addi(value, carry)
        wraps = arith.cmpi(arith.CmpIPredicate.eq, moved, indexer.value(size))
        result.append(arith.select(wraps, zero, moved))
        carry = arith.select(wraps, one, zero)
    return result[::-1]
