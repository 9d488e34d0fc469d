# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The epilogue of a depthwise convolution, and its stores."""

from __future__ import annotations

from collections.abc import Sequence

from shapejit.passes.nvgpu.bodies import ScalarBody
from shapejit.passes.nvgpu.builder import Num, Value, add, compare, sub, umin
from shapejit.passes.nvgpu.conv.depthwise_memory import is_float, load_numbers, store_numbers
from shapejit.passes.nvgpu.conv.depthwise_places import LinearAccess, Tile, both
from shapejit.passes.nvgpu.conv.depthwise_schedule import (
    DepthwiseSchedule,
    is_multiple,
    stride_of,
    tiled_dims,
)
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import IndexAlgebra, load_element
from shapejit.passes.nvgpu.problem import Access, is_half
from shapejit.symbolic.expr import ONE


class Output:
    """Makes the results of a tile and stores them.

    Args:
        function: the kernel.
        conv: what it computes.
        schedule: how.
    """

    def __init__(
        self, function: KernelFunction, conv: ConvProblem, schedule: DepthwiseSchedule
    ) -> None:
        self._function, self._conv = function, conv
        self._channels = schedule.channels
        dims = tiled_dims(conv, schedule.channels)
        self._lengths = (schedule.rows, schedule.columns)[-dims:]
        self._body = ScalarBody(function, conv.epilogue, short=is_half(conv.result.element))
        self._result = LinearAccess(function, conv.result)
        self._is_wide = stride_of(conv.result, 1) == ONE
        self._extras = [_Extra(function, conv, each, self._channels, dims) for each in conv.extras]

    def load(self, tile: Tile) -> list[list[Value] | None]:
        """Of each extra, what all pixels of a tile share; None if they share nothing."""
        return [each.load(tile) for each in self._extras]

    def store(
        self, tile: Tile, shared: Sequence[list[Value] | None], sums: Sequence[Value]
    ) -> None:
        """Stores a tile's results.

        Args:
            shared: as of `load`.
            sums: of each channel of each pixel, channels moving fastest.
        """
        start = self._result.address(_without_last(tile))
        *outer, columns = self._lengths
        rows = outer[0] if outer else 1
        inside = [self._inside(tile, -1, column) for column in range(columns)]
        for row in range(rows):
            exists = self._inside(tile, -2, row) if outer else None
            kept = [both(exists, each) for each in inside]
            extras = [
                given or [extra.pixel(tile, row, column, kept[column]) for column in range(columns)]
                for extra, given in zip(
                    self._extras, [each and [each] * columns for each in shared], strict=True
                )
            ]
            for column in range(columns):
                first = (row * columns + column) * self._channels
                own = sums[first : first + self._channels]
                results = [
                    self._body.emit([total, *[extra[column][number] for extra in extras]])
                    for number, total in enumerate(own)
                ]
                place = _beside(self._result, self._conv, start, row, column)
                self._store(*place, results, kept[column])

    def _store(
        self, place: Value, further: int, results: Sequence[Value], kept: Value | None
    ) -> None:
        """Stores the channels of a pixel: at once where they are neighbours."""
        element = self._result.element
        if self._is_wide:
            store_numbers(place, further, results, element, kept)
            return
        for number, each in enumerate(results):
            address, beside = self._result.beside(place, 1, number)
            store_numbers(address, further + beside, [each], element, kept)

    def _inside(self, tile: Tile, dim: int, further: int) -> Value | None:
        """Whether a pixel of a tile exists along a dim, counted from the last one."""
        if self._lengths[dim] == 1:
            return None
        size = self._function.size(self._conv.pixels[dim])
        return compare("ult", add(tile.firsts[dim], further), size)


class _Extra:
    """An operand of an epilogue."""

    def __init__(
        self, function: KernelFunction, conv: ConvProblem, access: Access, channels: int, dims: int
    ) -> None:
        self._function, self._conv, self._access = function, conv, access
        self._channels = channels
        self._memory = LinearAccess(function, access)
        self._is_wide = (
            is_float(access.element)
            and access.is_linear
            and stride_of(access, 1) == ONE
            and is_multiple(access, (1, 2 + conv.rank), channels)
        )
        tiled = range(2 + conv.rank - dims, 2 + conv.rank)
        self._is_shared = access.offset.dims().isdisjoint(tiled)

    def load(self, tile: Tile) -> list[Value] | None:
        """The channels of all pixels of a tile; None if it has its own of each."""
        if not self._is_shared:
            return None
        if self._is_wide:
            address = self._memory.address(_without_last(tile))
            return load_numbers(address, 0, self._channels, self._access.element)
        return self._elements(tile.dims())

    def pixel(self, tile: Tile, row: int, column: int, kept: Value | None) -> list[Value]:
        """The channels of a pixel of a tile that may be outside of the image."""
        if self._is_wide:
            start = self._memory.address(_without_last(tile))
            place = _beside(self._memory, self._conv, start, row, column)
            return load_numbers(*place, self._channels, self._access.element, kept)
        # Outside, what is read is the last pixel.
        dims = tile.dims()
        tiled = range(len(tile.leading), self._conv.rank)
        for dim, further in zip(tiled, (row, column)[-len(tiled) :], strict=True):
            last = sub(self._function.size(self._conv.pixels[dim]), 1)
            dims[2 + dim] = umin(add(dims[2 + dim], further), last)
        return self._elements(dims)

    def _elements(self, dims: dict[int, Num]) -> list[Value]:
        base, access = self._function.address(self._access.operand), self._access
        found = []
        for number in range(self._channels if 1 in access.offset.dims() else 1):
            here = {**dims, 1: add(dims[1], number)}
            offset = access.offset.build(IndexAlgebra(self._function, here))
            found.append(load_element(base, offset, access.element))
        return found if len(found) == self._channels else found * self._channels


def _without_last(tile: Tile) -> dict[int, Num]:
    """The indices of a tile's first element, less that along the dim of size 1."""
    *places, _ = tile.dims().items()
    return dict(places)


def _beside(
    memory: LinearAccess, conv: ConvProblem, start: Value, row: int, column: int
) -> tuple[Value, int]:
    """Where a pixel of a tile is."""
    line, further = memory.beside(start, 2 + conv.rank - 2, row) if row else (start, 0)
    place, beside = memory.beside(line, 2 + conv.rank - 1, column)
    return place, further + beside
