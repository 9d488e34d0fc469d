# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Depthwise convolutions, whose groups have one channel and one filter: no product of matrices.

There are as many multiplications as elements are read, so tensor cores have nothing to do; what
counts is that every load is wide, that few pixels are loaded twice, and that many loads are under
way at once. A thread has some neighbouring channels of a tile of pixels::

    load the filters, all taps of the last two dims
    for each row of the image that the tile sees
      load the pixels that it sees, zeros off the image
      for each row and each pixel of the tile that see them: its sum += pixel * tap
    epilogue; store the tile

All of it is unrolled. Where there are registers for all that a tile sees, all of it is on its way
at once; else the next row is, and branches between rows keep the assembler from loading more. An
outer loop runs
over the taps of other dims, and over rows of taps where those of two dims find no room, see
`depthwise_schedule`. Neighbouring threads have neighbouring channels, then neighbouring tiles of
the same channels, which find the pixels that both see in the first-level cache. Sums are f32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mlir.dialects import math, nvvm

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    compare,
    constant,
    f32,
    i32,
    loop,
    mul,
    sub,
    udiv,
)
from shapejit.passes.nvgpu.conv.depthwise_filters import Filters, LoadedFilters
from shapejit.passes.nvgpu.conv.depthwise_memory import load_words, numbers_in
from shapejit.passes.nvgpu.conv.depthwise_output import Output
from shapejit.passes.nvgpu.conv.depthwise_places import LinearAccess, Tile, both
from shapejit.passes.nvgpu.conv.depthwise_schedule import (
    THREADS,
    DepthwiseSchedule,
    Plan,
    count_of,
    lanes_of,
    most_channels,
    suits,
    tiled_dims,
)
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.target import Architecture
from shapejit.symbolic import Expr, product
from shapejit.symbolic.expr import as_expr


def emit(
    name: str,
    conv: ConvProblem,
    schedule: DepthwiseSchedule,
    architecture: Architecture,
    *,
    block: bool,
    programmatic: bool,
) -> KernelInterface:
    """Emits a kernel.

    Args:
        name: of the module and of the function in the machine code.
        conv: what it computes.
        schedule: how.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.

    Raises:
        LoweringError: the family does not compute it, or not so many channels or rows at once.
    """
    _check(conv, schedule)
    ctas = Plan.of(conv, schedule).ctas
    function = KernelFunction(
        name,
        architecture,
        threads=THREADS,
        block=block,
        ctas_per_sm=ctas,
        programmatic=programmatic,
    )
    with function.body():
        kernel = _Kernel(function, conv, schedule)
        kernel.emit()
    return function.interface(Grid(((function.value_number(kernel.items), THREADS),), ctas), 0)


def _check(conv: ConvProblem, schedule: DepthwiseSchedule) -> None:
    if not suits(conv):
        raise LoweringError("is no depthwise convolution of operands with fixed strides")
    if schedule.channels > most_channels(conv):
        raise LoweringError(
            f"has {conv.groups} channels; {schedule.channels} of them are not known to lie side by "
            "side at a multiple of their size"
        )
    if schedule.rows > 1 and tiled_dims(conv, schedule.channels) == 1:
        taps = " x ".join(map(str, conv.taps))
        raise LoweringError(
            f"has {taps} taps of {schedule.channels} channels, which a thread does not keep; tiles "
            "have one row there"
        )


Line: TypeAlias = "Mapping[int, Sequence[Value]]"
"""Words of some pixels of a row, by their places."""


class _Kernel:
    def __init__(
        self, function: KernelFunction, conv: ConvProblem, schedule: DepthwiseSchedule
    ) -> None:
        self._function, self._conv, self._schedule = function, conv, schedule
        dims = tiled_dims(conv, schedule.channels)
        self._tiled = range(conv.rank - dims, conv.rank)
        self._lengths = (schedule.rows, schedule.columns)[-dims:]
        self._lanes = lanes_of(conv, schedule.channels)
        self._input = LinearAccess(function, conv.input)
        self._filters = Filters(function, conv, schedule.channels, dims)
        self._output = Output(function, conv, schedule)
        self._plan = Plan.of(conv, schedule)
        self._seen = self._plan.seen
        blocks = count_of(conv.groups) // (schedule.channels * self._lanes)
        tiles = [
            conv.pixels[dim].ceildiv(length)
            for dim, length in zip(self._tiled, self._lengths, strict=True)
        ]
        # From the one that moves slowest; the blocks of an image's channels follow each other.
        leading = conv.pixels[: -len(self._tiled)]
        self._sizes = (conv.images, *leading, as_expr(blocks), *tiles, as_expr(self._lanes))
        #: What a thread has at a time.
        self.items: Expr = product(self._sizes)

    def emit(self) -> None:
        """Emits all of the kernel."""
        function = self._function
        function.launch_dependents()
        function.await_predecessors()
        ctas, cta = nvvm.read_ptx_sreg_nctaid_x(i32()), nvvm.read_ptx_sreg_ctaid_x(i32())
        first = add(mul(cta, THREADS), nvvm.read_ptx_sreg_tid_x(i32()))
        with loop(first, function.size(self.items), mul(ctas, THREADS)) as each:
            assert each.index is not None
            tile = self._tile(each.index)
            shared = self._output.load(tile)
            self._output.store(tile, shared, self._sums(tile))

    def _tile(self, item: Num) -> Tile:
        places: list[Num] = []
        for size in reversed(self._sizes[1:]):
            length = self._function.size(size)
            rest = udiv(item, length)
            places.append(sub(item, mul(rest, length)))
            item = rest
        dims = len(self._tiled)
        lane, *tiles = places[: 1 + dims]
        block, *leading = places[1 + dims :]
        channel = mul(add(mul(block, self._lanes), lane), self._schedule.channels)
        firsts = [
            mul(tile, length) for tile, length in zip(reversed(tiles), self._lengths, strict=True)
        ]
        return Tile(item, channel, leading[::-1], firsts)

    # Sums -----------------------------------------------------------------------------------------

    def _sums(self, tile: Tile) -> list[Value]:
        """Of every channel of every pixel of a tile."""
        window = self._conv.window
        corners = [
            sub(mul(first, window.strides[dim]), window.padding[dim][0])
            for dim, first in zip(self._tiled, tile.firsts, strict=True)
        ]
        places = {0: tile.image, 1: tile.channel}
        places |= {2 + dim: corner for dim, corner in zip(self._tiled, corners, strict=True)}
        start = self._input.address(places)
        zeros = [constant(0.0, f32())] * (self._schedule.pixels * self._schedule.channels)
        turns = count_of(product(self._conv.taps[: self._tiled.start]))
        if turns == 1:
            return self._turn(tile, corners, start, 0, zeros)
        with loop(0, turns, 1, zeros) as each:
            each.next = self._turn(tile, corners, start, each.index, each.carried)
        return each.results

    def _turn(
        self,
        tile: Tile,
        corners: Sequence[Num],
        start: Value,
        number: Num,
        sums: Sequence[Value],
    ) -> list[Value]:
        """The sums with those of one place of the taps along the leading dims."""
        window, size = self._conv.window, self._function.size
        taps = self._leading_taps(number)
        exists: Value | None = None
        for dim, (pixel, tap) in enumerate(zip(tile.leading, taps, strict=True)):
            seen = add(mul(pixel, window.strides[dim]), mul(tap, window.dilations[dim]))
            at = sub(seen, window.padding[dim][0])
            exists = both(exists, compare("ult", at, size(self._conv.image[dim])))
            start = self._input.moved(start, 2 + dim, at)
        filters = self._filters.load(tile.channel, taps)
        return self._multiplied(corners, start, exists, filters, sums)

    def _leading_taps(self, number: Num) -> list[Num]:
        taps: list[Num] = []
        for size in reversed(self._conv.taps[: self._tiled.start]):
            rest = udiv(number, count_of(size))
            taps.append(sub(number, mul(rest, count_of(size))))
            number = rest
        return taps[::-1]

    def _multiplied(
        self,
        corners: Sequence[Num],
        start: Value,
        exists: Value | None,
        filters: LoadedFilters,
        sums: Sequence[Value],
    ) -> list[Value]:
        """The sums with all that a tile sees along its dims."""
        *outer, _ = self._seen
        rows = list(outer[0] if outer else [0])
        kept = [both(exists, self._inside(corners, -2, row)) if outer else exists for row in rows]
        across = {place: self._inside(corners, -1, place) for place in self._seen[-1]}

        def load(number: int) -> Line:
            line = self._input.moved(start, self._conv.rank, rows[number]) if outer else start
            return self._line(line, {at: both(kept[number], each) for at, each in across.items()})

        if self._plan.at_once:
            for number, row in enumerate(rows):
                sums = self._row(row, load(number), filters, sums)
            return list(sums)
        following = load(0)
        for number, row in enumerate(rows):
            line = following
            if number + 1 < len(rows):
                following = load(number + 1)
            branches = Branches(kept[number], [f32()] * len(sums))
            with branches.then() as results:
                results += self._row(row, line, filters, sums)
            with branches.otherwise() as results:
                results += sums
            sums = branches.results
        return list(sums)

    def _line(self, line: Value, inside: Mapping[int, Value | None]) -> Line:
        """What a tile sees of a row of the image, as words."""
        loaded = {}
        for place, condition in inside.items():
            address, further = self._input.beside(line, 1 + self._conv.rank, place)
            loaded[place] = load_words(
                address, further, self._schedule.channels, self._conv.element, condition
            )
        return loaded

    def _row(
        self, row: int, line: Line, filters: LoadedFilters, sums: Sequence[Value]
    ) -> list[Value]:
        """The sums with what a tile sees of a row."""
        totals = list(sums)
        channels, columns = self._schedule.channels, self._lengths[-1]
        *outer, across = self._seen
        # Of each row of the tile that sees it, through which row of taps.
        readers = outer[0][row] if outer else [(0, None)]
        for up, tap_up in readers:
            rank = () if tap_up is None else (tap_up,)
            for place, words in line.items():
                numbers = numbers_in(words, channels, self._conv.element)
                for pixel, tap in across[place]:
                    first = (up * columns + pixel) * channels
                    for channel, factor in enumerate(filters.of((*rank, tap))):
                        at = first + channel
                        totals[at] = math.fma(numbers[channel], factor, totals[at])
        return totals

    def _inside(self, corners: Sequence[Num], dim: int, place: int) -> Value:
        """Whether a place exists in the image, along a dim that is counted from the last one."""
        size = self._function.size(self._conv.image[dim])
        return compare("ult", add(corners[dim], place), size)
