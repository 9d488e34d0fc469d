# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Filters and patches of images of few channels, from global into shared memory, for wgmma.

Both lie there without a swizzle: 8 rows of 16 bytes are 128 neighbouring bytes, and a descriptor
says how far it is to the next 8 rows and to the next 8 elements of K. Threads load elements, fill
units of 16 bytes up with zeros and store these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import llvm

from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    compare,
    constant,
    i32,
    integer,
    loop,
    mul,
    select,
    sub,
    udiv,
    urem,
    value,
    when,
)
from shapejit.passes.nvgpu.conv.gathered import address_of, load_width, signed_wide
from shapejit.passes.nvgpu.conv.lines import LineProduct
from shapejit.passes.nvgpu.conv.patch_window import (
    FILTERS,
    PATCHES,
    UNIT_BYTES,
    Patch,
    PatchWindow,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.gather import join_pairs, load_elements
from shapejit.passes.nvgpu.problem import Access
from shapejit.passes.nvgpu.ptx import join_words
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.wgmma import ELEMENT_BYTES, OperandLayout, address_word
from shapejit.symbolic.expr import ZERO

_GROUP_BYTES = 8 * UNIT_BYTES
_WORDS = UNIT_BYTES // 4
# Elements of filters that a thread has on their way.
_FILTER_LOADS = 96
_WARP = 32


@dataclass(frozen=True)
class Chunks(OperandLayout):
    """An operand of which the places of all chunks of K are given.

    Attributes:
        places: of the first row, in units.
        group_bytes: from 8 rows to the next.
        size: bytes of a tile.
    """

    places: tuple[int, ...]
    group_bytes: int
    size: int

    @property
    def k_major(self) -> bool:
        return True

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES

    @property
    def bytes(self) -> int:
        return self.size

    @property
    def steps(self) -> int:
        return len(self.places) // 2

    @staticmethod
    def low_word(address: Value) -> Value:
        """Lower half of the descriptor of a tile at a shared address."""
        return address_word(address)

    def descriptor(self, low_word: Value, k: int = 0) -> Value:
        first, second = self.places[2 * k : 2 * k + 2]
        word = add(low_word, first | (second - first) << 16)
        return join_words(word, self.group_bytes // UNIT_BYTES)

    @staticmethod
    def of_filters(window: PatchWindow) -> Chunks:
        """A block of filters: chunk after chunk, filter after filter."""
        places = tuple(FILTERS * chunk for chunk in range(window.chunks))
        return Chunks(places, _GROUP_BYTES, window.chunks * FILTERS * UNIT_BYTES)

    @staticmethod
    def of_patch(patch: Patch) -> Chunks:
        """A patch: a row of 8 pixels of the result are 8 rows."""
        return Chunks(tuple(patch.places), patch.line_bytes, patch.bytes)


class _Units:
    """Loads units of an operand.

    Args:
        function: the kernel.
        problem: the convolution.
        access: the operand.
        window: of the convolution.
        dims: of the operand that the channels and the columns are.
    """

    def __init__(
        self,
        function: KernelFunction,
        problem: LineProduct,
        access: Access,
        window: PatchWindow,
        dims: tuple[int, int],
    ) -> None:
        self._function, self._access, self._window = function, access, window
        strides = [access.stride(dim) or ZERO for dim in dims]
        self._channel, self._column = (function.size(stride, 8) for stride in strides)
        self._width = load_width(problem.conv, access, strides)

    def load(self, conditions: Sequence[Value], address: Value) -> list[Value]:
        """The four words of a unit.

        Args:
            conditions: whether each pixel, or tap, is there.
            address: of the first one's first channel, i64.
        """
        window, width = self._window, self._width
        words: list[Value] = []
        for number, condition in enumerate(conditions):
            first = add(address, mul(self._column, ELEMENT_BYTES * number))
            parts: list[Value] = []
            for channel in range(0, window.channels, width):
                place = add(first, mul(self._channel, ELEMENT_BYTES * channel))
                parts += load_elements(condition, place, width)
            if width == 1:
                nothing = [constant(0, integer(16))] * (len(parts) % 2)
                parts = join_pairs([*parts, *nothing])
            words += [*parts, *[constant(0)] * (window.room // 2 - len(parts))]
        return words


def _store_unit(memory: SharedMemory, offset: Num, words: Sequence[Value]) -> None:
    vector = llvm.mlir_undef(ir.VectorType.get([_WORDS], i32()))
    for lane, word in enumerate(words):
        vector = llvm.insertelement(vector, word, value(lane))
    llvm.StoreOp(vector, memory.pointer(offset), alignment=UNIT_BYTES)


def clear_zeros(
    memory: SharedMemory, patch: Patch, offset: int, thread: Value, threads: int
) -> None:
    """Fills the planes of zeros of all patches, by all threads."""
    if not patch.has_zeros:
        return
    rows = patch.height
    with loop(thread, PATCHES * rows * 8, threads) as each:
        row, unit = udiv(each.index, 8), urem(each.index, 8)
        number = udiv(row, rows)
        place = add(mul(sub(row, mul(number, rows)), patch.pitch), add(unit, patch.zeros))
        start = add(mul(number, patch.bytes), mul(place, UNIT_BYTES))
        _store_unit(memory, add(start, offset), [constant(0)] * _WORDS)


class FilterFill:
    """Brings all filters into shared memory.

    A warp loads neighbouring chunks of neighbouring filters. Chunks of a filter are neighbours in
    global memory, so its loads touch few lines; filters are in shared memory, so its stores, eight
    threads at a time, touch each bank once.

    Args:
        function: the kernel.
        problem: the convolution.
        window: of the convolution.
        filters: how many there are.
        blocks: of `FILTERS` of them.
    """

    def __init__(
        self,
        function: KernelFunction,
        problem: LineProduct,
        window: PatchWindow,
        filters: int,
        blocks: int,
    ) -> None:
        access, size = problem.conv.weight, function.size
        self._function, self._window, self._access = function, window, access
        self._filters, self._count = filters, blocks * FILTERS * window.chunks
        self._side = 4 if window.chunks % 4 == 0 else 2  # chunks; their number is even
        self._units = _Units(function, problem, access, window, (2, 4))
        self._filter, self._row, self._column = (
            size(access.stride(dim) or ZERO, 8) for dim in (1, 3, 4)
        )

    def emit(self, memory: SharedMemory, offset: int, thread: Value, threads: int) -> None:
        """Loads and stores, by all threads."""
        window = self._window
        loads = window.pixels * window.channels
        batch = min(max(_FILTER_LOADS // loads, 1), -(-self._count // threads))
        with loop(thread, self._count, batch * threads) as each:
            numbers = [add(each.index, part * threads) for part in range(batch)]
            places = [self._place(number) for number in numbers]
            units = [
                self._load(*place, compare("ult", number, self._count))
                for place, number in zip(places, numbers, strict=True)
            ]
            for number, (chunk, within), words in zip(numbers, places, units, strict=True):
                with when(compare("ult", number, self._count)):
                    unit = add(mul(chunk, FILTERS), within)
                    _store_unit(memory, add(mul(unit, UNIT_BYTES), offset), words)

    def _place(self, number: Value) -> tuple[Value, Value]:
        """The chunk of a unit, counted over all blocks, and the filter in its block."""
        filters = _WARP // self._side
        rest, within = udiv(number, filters), urem(number, filters)
        rest, chunk = udiv(rest, self._side), urem(rest, self._side)
        rest, group = udiv(rest, FILTERS // filters), urem(rest, FILTERS // filters)
        return add(mul(rest, self._side), chunk), add(mul(group, filters), within)

    def _load(self, chunk: Value, within: Value, exists: Value) -> list[Value]:
        """A unit, if there is one."""
        window = self._window
        block, chunk = udiv(chunk, window.chunks), urem(chunk, window.chunks)
        filter_ = add(mul(block, FILTERS), within)
        row, place = udiv(chunk, window.columns), urem(chunk, window.columns)
        exists = and_(exists, compare("ult", filter_, self._filters))
        exists = and_(exists, compare("ult", row, window.taps[0]))
        tap = mul(self._column_of(place), window.pixels)
        offset = mul(signed_wide(filter_), self._filter)
        offset = add(offset, mul(signed_wide(row), self._row))
        offset = add(offset, mul(signed_wide(tap), self._column))
        offset = add(offset, self._function.size(self._access.start, 8))
        conditions = [
            and_(exists, compare("ult", add(tap, pixel), window.taps[1]))
            for pixel in range(window.pixels)
        ]
        return self._units.load(conditions, address_of(self._function, self._access, offset))

    def _column_of(self, place: Value) -> Value:
        """The column of taps at a place in the order of K."""
        order = self._window.order
        if order == sorted(order):
            return place
        found: Num = order[-1]
        for number, column in enumerate(order[:-1]):
            found = select(compare("eq", place, number), column, found)
        return found


class PatchFill:
    """Brings patches into shared memory, through registers.

    Args:
        function: the kernel.
        problem: the convolution.
        patch: of a tile.
        thread: number of this thread.
        threads: of the CTA, all of which take part.
    """

    def __init__(
        self,
        function: KernelFunction,
        problem: LineProduct,
        patch: Patch,
        thread: Value,
        threads: int,
    ) -> None:
        self._function, self._problem, self._patch = function, problem, patch
        conv = problem.conv
        self._units = _Units(function, problem, conv.input, patch.window, (4, 3))
        self._image, self._row, self._column = (
            function.size(conv.input.stride(dim) or ZERO, 8) for dim in (0, 2, 3)
        )
        self._height, self._width = (function.size(size) for size in conv.image)
        self._threads = threads
        numbers = [add(thread, first) for first in range(0, patch.units, threads)]
        self._places = [
            (number, udiv(number, patch.width), urem(number, patch.width)) for number in numbers
        ]

    @property
    def words(self) -> int:
        """i32 values that a thread holds of a patch."""
        return _WORDS * len(self._places)

    def load(self, indices: dict[int, Num], exists: Value) -> list[Value]:
        """Starts to load a tile's patch.

        Args:
            indices: of the tile's first element, along every dim of the space.
            exists: whether there is such a tile.
        """
        problem, window = self._problem, self._patch.window
        (above, _), (left, _) = problem.conv.window.padding
        line = sub(mul(indices[problem.line], window.strides[0]), above)
        pixel = sub(mul(indices[problem.m], window.strides[1]), left)
        start = mul(signed_wide(indices[problem.image]), self._image)
        start = add(start, self._function.size(problem.conv.input.start, 8))
        base = address_of(self._function, problem.conv.input, start)
        words: list[Value] = []
        for round_, (number, down, along) in enumerate(self._places):
            there = exists
            if self._is_partial(round_):
                there = and_(there, compare("ult", number, self._patch.units))
            row, first = add(line, down), add(pixel, mul(along, window.pixels))
            there = and_(there, compare("ult", row, self._height))
            offset = mul(signed_wide(row), self._row)
            offset = add(offset, mul(signed_wide(first), self._column))
            conditions = [
                and_(there, compare("ult", add(first, number), self._width))
                for number in range(window.pixels)
            ]
            words += self._units.load(conditions, add(base, mul(offset, ELEMENT_BYTES)))
        return words

    def _is_partial(self, round_: int) -> bool:
        """Whether some threads have no unit in a round."""
        return (round_ + 1) * self._threads > self._patch.units

    def store(self, words: Sequence[Value], memory: SharedMemory, offset: Num) -> None:
        """Puts a loaded patch at an offset of shared memory."""
        for round_, (number, down, along) in enumerate(self._places):
            own = words[_WORDS * round_ : _WORDS * (round_ + 1)]
            if not self._is_partial(round_):
                self._store_one(own, memory, offset, down, along)
                continue
            with when(compare("ult", number, self._patch.units)):
                self._store_one(own, memory, offset, down, along)

    def _store_one(
        self, words: Sequence[Value], memory: SharedMemory, offset: Num, down: Value, along: Value
    ) -> None:
        patch, window = self._patch, self._patch.window
        position, plane = udiv(along, window.planes), urem(along, window.planes)
        row = add(mul(down, patch.pitch), position)
        place = add(row, mul(plane, patch.plane))
        _store_unit(memory, add(mul(place, UNIT_BYTES), offset), words)
        if not window.has_tail:
            return
        half = [*words[: _WORDS // 2], *[constant(0)] * (_WORDS // 2)]
        last = window.offset(window.columns - 1) % window.planes
        start = add(mul(add(row, patch.tail), UNIT_BYTES), offset)
        if window.planes == 1:
            _store_unit(memory, start, half)
            return
        with when(compare("eq", plane, last)):
            _store_unit(memory, start, half)
