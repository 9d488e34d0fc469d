# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Filters of a depthwise convolution, in a thread's registers.

They are kept as they are in memory, two of 16 bits a register, and made f32 where they are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shapejit.passes.nvgpu.builder import Num, Type, Value
from shapejit.passes.nvgpu.conv.depthwise_memory import load_words, numbers_in
from shapejit.passes.nvgpu.conv.depthwise_places import LinearAccess
from shapejit.passes.nvgpu.conv.depthwise_schedule import count_of, stride_of
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import bytes_of

Taps: TypeAlias = "tuple[int, ...]"


class Filters:
    """Loads what some neighbouring channels multiply with.

    What they need lies in one piece, whether channels are the fastest moving dim, as in packed
    filters, or taps are, as in torch's. So it is loaded in vectors of as many elements as there are
    channels, and which of them belongs to which tap is known here.

    Args:
        function: the kernel.
        conv: what it computes.
        channels: of a thread.
        dims: spatial dims, from the last one, of which all taps are loaded at once.
    """

    def __init__(
        self, function: KernelFunction, conv: ConvProblem, channels: int, dims: int
    ) -> None:
        self._channels = channels
        self._memory = LinearAccess(function, conv.weight)
        self._bytes = bytes_of(conv.weight.element)
        self._leading = conv.rank - dims
        self._places = self._offsets(conv, dims)
        self._width = channels if self._is_aligned(conv) and self._in_one_piece() else 1

    def _offsets(self, conv: ConvProblem, dims: int) -> dict[Taps, list[int]]:
        """Of the channels of each tap, from the first channel's first tap on."""
        steps = [
            count_of(stride_of(conv.weight, 3 + dim)) for dim in range(conv.rank - dims, conv.rank)
        ]
        step = count_of(stride_of(conv.weight, 0))
        ranges = [range(count_of(taps)) for taps in conv.taps[-dims:]]
        return {
            taps: [
                sum(tap * each for tap, each in zip(taps, steps, strict=True)) + channel * step
                for channel in range(self._channels)
            ]
            for taps in itertools.product(*ranges)
        }

    def _is_aligned(self, conv: ConvProblem) -> bool:
        """Whether vectors start at multiples of their size. Those of channels do."""
        steps = [stride_of(conv.weight, 3 + dim) for dim in range(self._leading)]
        return all(count_of(each) % self._channels == 0 for each in (conv.weight.start, *steps))

    def _in_one_piece(self) -> bool:
        offsets = {each for row in self._places.values() for each in row}
        return len({each // self._channels for each in offsets}) <= len(self._places)

    def load(self, channel: Num, leading: Sequence[Num]) -> LoadedFilters:
        """The channels of each tap.

        Args:
            channel: the first one.
            leading: taps along the other dims.
        """
        places = {0: channel, **{3 + dim: tap for dim, tap in enumerate(leading)}}
        address = self._memory.address(places)
        width, element = self._width, self._memory.element
        vectors = {
            number: load_words(address, number * width * self._bytes, width, element)
            for number in sorted({each // width for row in self._places.values() for each in row})
        }
        return LoadedFilters(vectors, width, element, self._places)


@dataclass(frozen=True)
class LoadedFilters:
    """Filters as they lie in registers.

    Attributes:
        vectors: words of each, by number.
        width: elements of a vector.
        element: their type.
        places: elements of each tap, counted over all vectors.
    """

    vectors: Mapping[int, Sequence[Value]]
    width: int
    element: Type
    places: Mapping[Taps, Sequence[int]]

    def of(self, taps: Taps) -> list[Value]:
        """The channels of a tap, made f32 at the current point."""
        found = []
        for place in self.places[taps]:
            words, number = self.vectors[place // self.width], place % self.width
            each = 4 // bytes_of(self.element)  # elements of a word
            first = number - number % each
            numbers = numbers_in([words[number // each]], self.width - first, self.element)
            found.append(numbers[number % each])
        return found
