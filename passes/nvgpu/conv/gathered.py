# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family ``unaligned`` of convolutions: whatever TMA does not read in im2col mode.

Few channels, numbers of channels that are no multiple of 8, groups of some channels, transposed
convolutions, windows that reach too far: the same product, but threads load the pixels that the
taps see into registers and put them into the ring, as `unaligned` does with matrices. K runs over
the taps and, fastest, over the channels; there is no filling up, so three channels and 49 taps
are 147 elements of K.

A thread has a chunk of four elements of K in every sixteenth row of a tile. Which places of the
window its rows are is found once a tile, which taps and channels its elements are once a stage.
What is left of an element is a sum, and the test whether the pixel is on the image. Elements that
lie side by side are loaded at once, as far as constants tell that they are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mlir.dialects import arith, llvm

from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    i64,
    mul,
    select,
    sub,
    udiv,
    umin,
    urem,
    value,
)
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.conv.product import ConvProduct
from shapejit.passes.nvgpu.epilogue import Epilogue, directions_of
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.gather import CHUNK, TileShare, join_pairs, load_elements
from shapejit.passes.nvgpu.occupancy import ctas_that_fit
from shapejit.passes.nvgpu.problem import Access
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.scheduling import Place
from shapejit.passes.nvgpu.stores import DirectStore
from shapejit.passes.nvgpu.target import WARPGROUP
from shapejit.passes.nvgpu.unaligned import UnalignedGemm, check_schedule, emit_body
from shapejit.passes.nvgpu.wgmma import ELEMENT_BYTES, TileLayout
from shapejit.symbolic import Expr
from shapejit.symbolic.expr import ONE, ZERO

# A place that is on no image, however far a tap moves it; so is the sum of two.
_NOWHERE = -(1 << 30)

# Of tiles. For wider ones there are no registers beside addresses and elements on their way.
_COLUMNS = (8, 16, 32, 64)

# Threads of a multiprocessor: places of rows, and elements on their way, take many registers.
_THREADS = 256


@dataclass(frozen=True)
class _Column:
    """Elements of K that are loaded at once.

    Attributes:
        offset: from a row's start, in elements, i64.
        exists: whether K has them.
        moves: of the tap, along every spatial dim, i32.
    """

    offset: Num
    exists: Value
    moves: tuple[Num, ...]


class _ConvShare(TileShare):
    """A thread's chunks of a tile of a convolution's operand.

    Args:
        function: the kernel.
        conv: the convolution.
        access: the operand.
        strides: of the channel and of the taps, in elements.
        layout, thread, threads: see `TileShare`.
    """

    def __init__(
        self,
        function: KernelFunction,
        conv: ConvProblem,
        access: Access,
        strides: Sequence[Expr],
        layout: TileLayout,
        thread: Value,
        threads: int,
    ) -> None:
        super().__init__(layout, thread, threads)
        self.function, self.conv = function, conv
        self._strides = [function.size(stride, 8) for stride in strides]
        self._width = load_width(conv, access, strides)

    @property
    def lines(self) -> list[int]:
        """From this thread's first chunk to each, in lines."""
        return [lines for lines, _ in self.steps]

    def load(self, row: Num, k: Num) -> list[Value]:
        """Starts to load the tile from an element of K on; its rows were given before."""
        first = add(k, self.place)
        columns = [self._column(add(first, element)) for element in range(0, CHUNK, self._width)]
        words: list[Value] = []
        for number in range(len(self.lines)):
            parts: list[Value] = []
            for column in columns:
                inside, address = self.element(number, column)
                parts += load_elements(inside, address, self._width)
            words += parts if self._width > 1 else join_pairs(parts)
        return words

    @abstractmethod
    def element(self, number: int, column: _Column) -> tuple[Value, Value]:
        """Whether an element of the thread's ``number``-th row is there, and its address."""

    def _column(self, k: Num) -> _Column:
        """Tap and channel of an element of K."""
        size, conv = self.function.size, self.conv
        channels = size(conv.channels)
        tap = udiv(k, channels)
        indices = [sub(k, mul(tap, channels))]
        taps: list[Num] = []
        for count in reversed(conv.taps[1:]):
            length = size(count)
            rest = udiv(tap, length)
            taps.append(sub(tap, mul(rest, length)))
            tap = rest
        indices += [tap, *reversed(taps)]
        offset: Num = 0
        for index, stride in zip(indices, self._strides, strict=True):
            offset = add(mul(signed_wide(index), stride), offset)
        depth = self.function.size(conv.channels)
        for count in conv.taps:
            depth = mul(depth, size(count))
        moves = tuple(
            mul(index, dilation)
            for index, dilation in zip(indices[1:], conv.window.dilations, strict=True)
        )
        return _Column(offset, compare("ult", k, depth), moves)


class PixelShare(_ConvShare):
    """Rows are places of the window.

    Args:
        product: the convolution as a product.
        place: of the tile.
        row: of the tile's first row.
        (the others as for `TileShare`)
    """

    def __init__(
        self,
        function: KernelFunction,
        product: ConvProduct,
        place: Place,
        layout: TileLayout,
        thread: Value,
        threads: int,
    ) -> None:
        conv = product.conv
        access, window = conv.input, conv.window
        spatial = [_stride(access, 2 + dim) for dim in range(conv.rank)]
        self._spread = any(spread != 1 for spread in window.lhs_dilations)
        # Where there are zeros between pixels, a tap's move does not say how far it moves.
        moved = [
            ZERO if self._spread else stride * dilation
            for stride, dilation in zip(spatial, window.dilations, strict=True)
        ]
        channel = _stride(access, 2 + conv.rank)
        super().__init__(function, conv, access, [channel, *moved], layout, thread, threads)
        self._product = product
        self._pitches = [function.size(stride, 8) for stride in spatial]
        self._rows = [self._row(place, add(place.row, add(self.line, n))) for n in self.lines]

    def _row(self, place: Place, row: Num) -> tuple[Value, list[Num]]:
        """The address of a row's image, and its place along every spatial dim."""
        conv, size = self.conv, self.function.size
        rows = size(self._product.space[self._product.m])
        exists = compare("ult", row, rows)
        rest: Num = umin(row, sub(rows, 1))
        pixels: list[Num] = []
        sizes = [size(each) for each in conv.pixels]
        for length in reversed(sizes if not self._product.by_image else sizes[1:]):
            outer = udiv(rest, length)
            pixels.append(sub(rest, mul(outer, length)))
            rest = outer
        image = rest
        if self._product.by_image:
            pixels.append(rest)
            image = place.batch[-1]
        places = [
            sub(mul(pixel, stride), low)
            for pixel, stride, (low, _) in zip(
                reversed(pixels), conv.window.strides, conv.window.padding, strict=True
            )
        ]
        offset = size(conv.input.start, 8)
        offset = add(mul(signed_wide(image), size(_stride(conv.input, 0), 8)), offset)
        if self._product.grouped:
            group = mul(signed_wide(place.batch[0]), size(_stride(conv.input, 1), 8))
            offset = add(group, offset)
        if not self._spread:
            for at, pitch in zip(places, self._pitches, strict=True):
                offset = add(mul(signed_wide(at), pitch), offset)
        places[0] = select(exists, places[0], _NOWHERE)
        return address_of(self.function, conv.input, offset), places

    def element(self, number: int, column: _Column) -> tuple[Value, Value]:
        start, places = self._rows[number]
        inside = column.exists
        offset = column.offset
        for dim, (place, move) in enumerate(zip(places, column.moves, strict=True)):
            at = add(place, move)
            extent = self.function.size(self.conv.image[dim])
            if self._spread:
                spread = self.conv.window.lhs_dilations[dim]
                inside = arith.andi(inside, compare("sge", at, 0))
                inside = arith.andi(inside, compare("eq", urem(at, spread), 0))
                at = udiv(at, spread)
                offset = add(mul(signed_wide(at), self._pitches[dim]), offset)
            inside = arith.andi(inside, compare("ult", at, extent))
        return inside, add(start, mul(offset, ELEMENT_BYTES))


class FilterShare(_ConvShare):
    """Rows are filters."""

    def __init__(
        self,
        function: KernelFunction,
        product: ConvProduct,
        place: Place,
        layout: TileLayout,
        thread: Value,
        threads: int,
    ) -> None:
        conv = product.conv
        access = conv.weight
        strides = [_stride(access, dim) for dim in range(2, 3 + conv.rank)]
        super().__init__(function, conv, access, strides, layout, thread, threads)
        size = function.size
        start = size(access.start, 8)
        if product.grouped:
            start = add(mul(signed_wide(place.batch[0]), size(_stride(access, 0), 8)), start)
        self._step = mul(size(_stride(access, 1), 8), ELEMENT_BYTES)
        row = add(place.column, self.line)
        start = address_of(function, access, start)
        self._start = add(start, mul(signed_wide(row), self._step))
        # Filters from the first row on. Rows are told by multiples of what all threads share, for
        # the sake of registers.
        self._count = sub(size(conv.filters), row)

    def element(self, number: int, column: _Column) -> tuple[Value, Value]:
        lines = self.lines[number]
        exists = arith.andi(compare("slt", lines, self._count), column.exists)
        first = add(self._start, mul(column.offset, ELEMENT_BYTES))
        return exists, add(first, mul(self._step, lines))


class GatheredConv(UnalignedGemm):
    """Emits the body of one kernel."""

    _problem: ConvProduct

    def _make_layouts(self) -> list[TileLayout]:
        schedule = self._schedule
        return [
            TileLayout(extent, schedule.depth, k_major=True)
            for extent in (schedule.rows, schedule.columns)
        ]

    def _make_epilogue(self) -> Epilogue:
        directions = directions_of(self._problem, swapped=False, mapped=False)
        store = DirectStore(self._function, self._problem.result, directions, self._threads)
        store.groups = 1
        return Epilogue(self._function, self._problem, directions, self._threads, store)

    def _gathers(self, place: Place) -> Sequence[TileShare]:
        rows, columns = self._layouts
        thread, count = self._threads.thread, self._count
        return (
            PixelShare(self._function, self._problem, place, rows, thread, count),
            FilterShare(self._function, self._problem, place, columns, thread, count),
        )


def gathering_schedule(filters: int | None) -> GemmSchedule:
    """The schedule for so many filters of a group; None if that is not known."""
    columns = next((each for each in _COLUMNS if filters is not None and filters <= each), 64)
    return GemmSchedule.parse(f"unaligned_64x{columns}x64_s3_w1")


def check(conv: ConvProblem) -> None:
    """Whether the family computes a convolution.

    Raises:
        LoweringError: an operand has no fixed strides.
    """
    for access in (conv.input, conv.weight):
        if not access.is_linear:
            raise LoweringError(
                f"reads argument {access.operand} at {access.offset}, which has no fixed strides; "
                "copy it to a tensor that has"
            )
    ConvProduct.of(conv, 1)


def emit(request: GemmRequest) -> KernelInterface:
    """Emits a kernel of the family unaligned for a convolution.

    Raises:
        LoweringError: an operand has no fixed strides, or the schedule does not suit.
    """
    problem, schedule = request.problem, request.schedule
    assert isinstance(problem, ConvProduct)
    check_schedule(schedule)
    check(problem.conv)
    ctas = _occupancy(request, schedule)
    return emit_body(request, ctas, lambda function: GatheredConv(function, problem, schedule))


def _occupancy(request: GemmRequest, schedule: GemmSchedule) -> int:
    """CTAs on a multiprocessor, as registers and shared memory allow."""
    tile = (schedule.rows + schedule.columns) * schedule.depth * ELEMENT_BYTES
    most = _THREADS // (WARPGROUP * schedule.consumers)
    return max(min(most, ctas_that_fit(request.architecture, schedule.stages * tile)), 1)


def _stride(access: Access, dim: int) -> Expr:
    return access.stride(dim) or ZERO


def address_of(function: KernelFunction, access: Access, offset: Num) -> Value:
    """The address of an element, i64."""
    base = llvm.ptrtoint(i64(), function.address(access.operand))
    return add(base, mul(value(offset, i64()), ELEMENT_BYTES))


def signed_wide(number: Num) -> Num:
    """A number, which may be negative, as i64."""
    return number if isinstance(number, int) else arith.extsi(i64(), number)


def load_width(conv: ConvProblem, access: Access, strides: Sequence[Expr]) -> int:
    """How many elements of a chunk are known to lie side by side, at a multiple of their size.

    Args:
        conv: the convolution.
        access: an operand.
        strides: of its channels, and others.
    """
    channels = conv.channels.constant
    if channels is None or (strides[0] != ONE and channels != 1):
        return 1
    every = [access.start, *(_stride(access, dim) for dim in access.offset.dims())]
    for width in (CHUNK, 2):
        others = [stride for stride in every if stride != ONE]
        if channels % width == 0 and all(
            coefficient % width == 0 for stride in others for _, coefficient in stride.terms
        ):
            return width
    return 1
