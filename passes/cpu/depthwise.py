# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Depthwise convolutions on the CPU, and those in groups of few channels.

There is no product of matrices in them: an input value meets as many weights as there are taps,
times the few channels of its group. What counts is to load it once, so a vector holds neighbouring
channels, and a handful of neighbouring output pixels are summed at once in registers::

    for each line of output pixels, a block of its columns, a block of channels
      for each vector of channels
        columns whose taps are all on the image, some at once:
          for the rows of taps that are on the image
            load the pixels that these columns see once, multiply with the taps of the row
        columns at the edges, one by one, over the taps that are on the image
      epilogue(sums, extras)                       -> result

In groups of c > 1 channels a vector holds whole groups. It is multiplied c times, each time with
another channel of the group in all of the group's lanes.

Channels must be last in the input, and the weight packed so that a vector of it is one load (see
`shapejit-pack-weights`); others are products in `conv`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlir import ir
from mlir.dialects import arith, vector

from shapejit.passes.analysis.accesses import conv_spaces
from shapejit.passes.cpu.conv import ConvProblem
from shapejit.passes.cpu.indexing import Size, Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.parallel import MULTIPLY_COST, unit_indices
from shapejit.passes.cpu.scalars import Type, constant, is_float, multiply_add
from shapejit.symbolic import Expr, Ranges, product

_TapLine: TypeAlias = Callable[[Sequence[Expr], list[Value]], Sequence[Value]]
"""From the outer taps of a line of taps and the sums so far to the sums."""

# Columns and channels of a block, whose sums stay in the first-level cache.
_COLUMNS = 16
_CHANNELS = 256
# Groups in a vector at least, if they have several channels: with one, products are faster.
_GROUPS_IN_VECTOR = 2
# Taps of a line that are unrolled; longer lines take a loop.
_UNROLLED_TAPS = 11


def fits(kernel: KernelFunction, problem: ConvProblem) -> bool:
    """Whether `emit_depthwise` can emit a convolution."""
    window, taps, inside = problem.window, problem.taps, problem.channels.constant
    lanes = kernel.lanes(problem.accumulate)
    if inside is None or problem.columns != problem.channels:
        return False
    if inside != 1 and (inside < 1 or lanes % (_GROUPS_IN_VECTOR * inside)):
        return False
    if any(spread != 1 for spread in window.lhs_dilations) or taps[-1].constant is None:
        return False
    access = problem.input
    if not access.buffer.is_plain or access.buffer.element != problem.accumulate:
        return False
    steps = [(_GROUP, inside)] + ([(_SPATIAL + problem.rank, 1)] if inside > 1 else [])
    if any(access.offset.stride(dim) != step for dim, step in steps):
        return False
    return _is_packed(problem, inside, lanes)


def _is_packed(problem: ConvProblem, inside: int, lanes: int) -> bool:
    """Whether the weight is stored as [channels / width, t.., c, width], a c of one left out."""
    weight, rank = problem.weight, problem.rank
    width = weight.shape[-1].constant if weight.shape else None
    if not width or width % lanes:
        return False
    channel = Expr.dim(0) * inside + Expr.dim(1) if inside > 1 else Expr.dim(0)
    taps = [Expr.dim(3 + dim) for dim in range(rank)]
    inner = [Expr.dim(2)] if inside > 1 else []
    _, over_weight, _ = conv_spaces(problem.space, problem.image)
    simplify = Ranges(None, over_weight).simplify
    expected = map(simplify, [channel // width, *taps, *inner, channel % width])
    units = {1: 0, 2: 0} if inside == 1 else {}  # f and c have one index, however it is written
    return [index.substitute(dims=units) for index in weight.indices] == list(expected)


def emit_depthwise(kernel: KernelFunction, problem: ConvProblem) -> None:
    """Emits a convolution that `fits` into the body of a kernel."""
    _Depthwise(kernel, problem).emit()


# Dims of the accesses: n, g, o.. or p.., and last f or c.
_BATCH, _GROUP, _SPATIAL = 0, 1, 2


@dataclass(frozen=True)
class _Line:
    """A block of the columns of a line of output pixels, and a block of channels.

    Attributes:
        batch: n.
        outer: o.. but the last.
        rows: for each outer spatial dim, which taps are on the image: [first, last).
        column, columns: the first column, and how many.
        channel, channels: the first channel, and how many.
    """

    batch: Expr
    outer: Sequence[Expr]
    rows: Sequence[tuple[Expr, Expr]]
    column: Expr
    columns: Expr
    channel: Expr
    channels: Expr


@dataclass(frozen=True)
class _Vector:
    """A vector of channels of a block: its first one, within the block, and a mask if it is cut."""

    start: Expr
    mask: Value | None


class _Depthwise:
    """Emits one convolution; see the module's docstring for the loops."""

    def __init__(self, kernel: KernelFunction, problem: ConvProblem) -> None:
        self._kernel, self._problem, self._indexer = kernel, problem, kernel.indexer
        self._element: Type = problem.accumulate
        self._lanes = kernel.lanes(self._element)
        self._vector = ir.VectorType.get([self._lanes], self._element)
        # Half of the registers hold sums: 8 columns with AVX-512, 4 or 6 pixels are on their way.
        self._together = 8 if kernel.vector_bytes == 64 else 4
        self._sums = kernel.scratch(_COLUMNS * _CHANNELS, self._element)
        self._inside = problem.channels.constant or 1
        self._channels = problem.groups * self._inside

    def emit(self) -> None:
        problem, indexer = self._problem, self._indexer
        *outer, columns = problem.space[2 : 2 + problem.rank]
        blocks = indexer.simplify((columns + _COLUMNS - 1) // _COLUMNS)
        space = [problem.space[0], *outer, blocks]
        work = product([problem.space[0], *outer, columns, self._channels, *problem.taps])
        work *= self._inside
        first, last = self._kernel.share(
            product(space), work * max(MULTIPLY_COST // self._lanes, 1), align=blocks
        )

        def unit(index: Expr, _: list[Value]) -> Sequence[Value]:
            batch, *place, block = unit_indices(indexer, index, space)
            column = block * _COLUMNS
            count = indexer.minimum(_COLUMNS, columns - column)
            rows = [self._taps_on_image(dim, o) for dim, o in enumerate(place)]

            def channels(channel: Expr, _: list[Value]) -> Sequence[Value]:
                width = indexer.minimum(_CHANNELS, self._channels - channel)
                self._line(_Line(batch, place, rows, column, count, channel, width))
                return ()

            indexer.loop(0, self._channels, channels, step=_CHANNELS)
            return ()

        indexer.loop(first, last, unit)

    def _taps_on_image(self, dim: int, pixel: Expr) -> tuple[Expr, Expr]:
        """The taps [first, last) that see the image from an output pixel."""
        problem, window = self._problem, self._problem.window
        step, taps = window.dilations[dim], problem.taps[dim]
        before = window.padding[dim][0] - pixel * window.strides[dim]
        first = self._indexer.clamp((before + step - 1) // step, taps)
        last = self._indexer.clamp((before + problem.image[dim] + step - 1) // step, taps)
        return first, last

    def _line(self, line: _Line) -> None:
        indexer, lanes = self._indexer, self._lanes
        low, high = self._inner_columns(line)
        whole = indexer.simplify(line.channels // lanes * lanes)

        def full(start: Expr, _: list[Value]) -> Sequence[Value]:
            self._columns(line, _Vector(start, None), low, high)
            return ()

        indexer.loop(0, whole, full, step=lanes)
        if whole != line.channels:
            rest = line.channels - whole
            indexer.when(indexer.compare("sgt", rest, 0), lambda: self._cut(line, whole, low, high))
        self._epilogue(line)

    def _cut(self, line: _Line, start: Expr, low: Expr, high: Expr) -> None:
        """The last vector of channels, which is not full."""
        boolean = ir.IntegerType.get_signless(1)
        count = self._indexer.value(line.channels - start)
        mask = vector.create_mask(ir.VectorType.get([self._lanes], boolean), [count])
        self._columns(line, _Vector(start, mask), low, high)

    def _inner_columns(self, line: _Line) -> tuple[Expr, Expr]:
        """The columns [low, high) of the block all of whose taps are on the image.

        Their number is a multiple of those that are summed together.
        """
        problem, indexer, last = self._problem, self._indexer, self._problem.rank - 1
        window = problem.window
        stride, before = window.strides[last], window.padding[last][0]
        reach = (problem.taps[last] - 1) * window.dilations[last]
        first = max(-(-before // stride), 0)
        end = (problem.image[last] - 1 - reach + before) // stride + 1
        low = indexer.clamp(first - line.column, line.columns)
        inside = indexer.clamp(indexer.clamp(end - line.column, line.columns) - low, _COLUMNS)
        return low, low + inside // self._together * self._together

    def _columns(self, line: _Line, channels: _Vector, low: Expr, high: Expr) -> None:
        """All columns of a block for one vector of channels."""
        indexer = self._indexer

        def group(column: Expr, _: list[Value]) -> Sequence[Value]:
            self._sum_together(line, channels, column)
            return ()

        def single(number: Expr, _: list[Value]) -> Sequence[Value]:
            # Those behind the columns that were summed together follow those in front of them.
            behind = indexer.compare("sge", number, low)
            skipped = arith.select(behind, indexer.value(high - low), indexer.constant(0))
            column = number + indexer.variable(skipped, _COLUMNS + 1)
            self._sum_alone(line, channels, column)
            return ()

        indexer.loop(low, high, group, step=self._together)
        indexer.loop(0, line.columns - (high - low), single)

    def _sum_together(self, line: _Line, channels: _Vector, column: Expr) -> None:
        """Some columns that see nothing but the image."""
        problem, window, last = self._problem, self._problem.window, self._problem.rank - 1
        stride, step = window.strides[last], window.dilations[last]
        count = problem.taps[last].constant
        assert count is not None
        start = (line.column + column) * stride - window.padding[last][0]

        def tap(taps: Sequence[Expr], index: Expr, sums: list[Value]) -> list[Value]:
            weights = self._load_weights(line, channels, [*taps, index])
            places = (start + number * stride + index * step for number in range(len(sums)))
            return [
                self._multiply(self._load_pixel(line, channels, taps, place), weights, total)
                for place, total in zip(places, sums, strict=True)
            ]

        def tap_line(taps: Sequence[Expr], sums: list[Value]) -> list[Value]:
            if count > _UNROLLED_TAPS:
                return self._indexer.loop(
                    0, count, lambda index, carried: tap(taps, index, carried), init=sums
                )
            pixels: dict[int, Value] = {}
            for index in range(count):
                weights = self._load_weights(line, channels, [*taps, Expr.const(index)])
                for number in range(len(sums)):
                    place = number * stride + index * step
                    if place not in pixels:
                        pixels[place] = self._load_pixel(line, channels, taps, start + place)
                    sums[number] = self._multiply(pixels[place], weights, sums[number])
            return sums

        zeros = [self._zero() for _ in range(self._together)]
        for number, value in enumerate(self._over_rows(line, tap_line, zeros)):
            self._store_sum(value, column + number, channels)

    def _sum_alone(self, line: _Line, channels: _Vector, column: Expr) -> None:
        """One column, some of whose taps may be off the image."""
        window, last = self._problem.window, self._problem.rank - 1
        pixel = line.column + column
        span = self._taps_on_image(last, pixel)
        start = pixel * window.strides[last] - window.padding[last][0]

        def tap_line(taps: Sequence[Expr], sums: list[Value]) -> list[Value]:
            def tap(index: Expr, carried: list[Value]) -> list[Value]:
                place = start + index * window.dilations[last]
                seen = self._load_pixel(line, channels, taps, place)
                weights = self._load_weights(line, channels, [*taps, index])
                return [self._multiply(seen, weights, carried[0])]

            return self._indexer.loop(*span, tap, init=sums)

        [value] = self._over_rows(line, tap_line, [self._zero()])
        self._store_sum(value, column, channels)

    def _over_rows(
        self, line: _Line, tap_line: _TapLine, sums: list[Value], taps: tuple[Expr, ...] = ()
    ) -> list[Value]:
        """`tap_line` for the taps of the outer dims that are on the image."""
        if len(taps) == len(line.rows):
            return list(tap_line(taps, list(sums)))
        return self._indexer.loop(
            *line.rows[len(taps)],
            lambda index, carried: self._over_rows(line, tap_line, carried, (*taps, index)),
            init=sums,
        )

    def _load_pixel(
        self, line: _Line, channels: _Vector, taps: Sequence[Expr], last: Size
    ) -> Value:
        """The channels of the pixel that the outer taps see, at place ``last`` of the last dim."""
        problem, window = self._problem, self._problem.window
        dims: dict[int, Size] = {_BATCH: line.batch, _GROUP: 0}
        for dim, (place, tap) in enumerate(zip(line.outer, taps, strict=True)):
            seen = place * window.strides[dim] + tap * window.dilations[dim]
            dims[_SPATIAL + dim] = seen - window.padding[dim][0]
        dims[_SPATIAL + problem.rank - 1] = last
        dims[_SPATIAL + problem.rank] = 0
        # Channels of all groups follow each other.
        place_of_first = problem.input.at(dims) + line.channel + channels.start
        offset = self._indexer.value(place_of_first)
        buffer = problem.input.buffer
        if channels.mask is None:
            return buffer.load_vector(self._vector, offset)
        return vector.maskedload(self._vector, buffer.memref, [offset], channels.mask, self._zero())

    def _load_weights(self, line: _Line, channels: _Vector, taps: Sequence[Expr]) -> list[Value]:
        """Vectors of the weight, one for each channel of a group, whole: panels are padded."""
        weight = self._problem.weight
        channel = line.channel + channels.start
        dims: dict[int, Size] = {0: channel // self._inside, 1: channel % self._inside}
        dims |= {3 + dim: tap for dim, tap in enumerate(taps)}
        offsets = [weight.at({**dims, 2: inner}) for inner in range(self._inside)]
        load = weight.buffer.load_vector
        return [load(self._vector, self._indexer.value(offset)) for offset in offsets]

    def _multiply(self, pixel: Value, weights: Sequence[Value], total: Value) -> Value:
        """Adds the products of a vector of channels, each group's with all of its weights."""
        if len(weights) == 1:
            return multiply_add(pixel, weights[0], total)
        for inner, weight in enumerate(weights):
            lanes = [lane - lane % len(weights) + inner for lane in range(self._lanes)]
            total = multiply_add(vector.shuffle(pixel, pixel, lanes), weight, total)
        return total

    def _store_sum(self, value: Value, column: Expr, channels: _Vector) -> None:
        place = column * _CHANNELS + channels.start
        self._sums.store_vector(value, self._indexer.value(place))

    def _zero(self) -> Value:
        return constant(self._vector, 0.0 if is_float(self._element) else 0)

    def _epilogue(self, line: _Line) -> None:
        problem, indexer = self._problem, self._indexer

        def element(indices: list[Expr]) -> None:
            column, number = indices
            channel = line.channel + number
            dims: dict[int, Expr] = {_BATCH: line.batch, _GROUP: channel // self._inside}
            dims |= {_SPATIAL + dim: place for dim, place in enumerate(line.outer)}
            dims[_SPATIAL + problem.rank - 1] = line.column + column
            dims[_SPATIAL + problem.rank] = channel % self._inside
            total = self._sums.load(indexer.value(column * _CHANNELS + number))
            value = problem.epilogue(indexer, [total], dims) if problem.epilogue else total
            problem.result.store(indexer, value, dims)

        indexer.nest((line.columns, line.channels), element)
