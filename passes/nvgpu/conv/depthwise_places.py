# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where a thread of a depthwise convolution is, and the addresses of what it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu.builder import Num, Value, add, i64, mul, value
from shapejit.passes.nvgpu.conv.depthwise_schedule import stride_of
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.passes.nvgpu.problem import Access


@dataclass(frozen=True)
class Tile:
    """What a thread has at a time: all numbers i32.

    Attributes:
        image: number of the image.
        channel: the first of its channels.
        leading: the pixel of the result along the spatial dims that tiles do not extend along.
        firsts: the first pixel along the others.
    """

    image: Num
    channel: Num
    leading: Sequence[Num]
    firsts: Sequence[Num]

    def dims(self) -> dict[int, Num]:
        """Indices of its first element, over (n, g, o.., f)."""
        places = [self.image, self.channel, *self.leading, *self.firsts, 0]
        return dict(enumerate(places))


class LinearAccess:
    """Addresses of a tensor with fixed strides, over (n, g, p.., c), in bytes."""

    def __init__(self, function: KernelFunction, access: Access) -> None:
        self._function, self._access = function, access
        self.element = access.element
        self._bytes = bytes_of(access.element)

    def pitch(self, dim: int) -> Num:
        """How far apart neighbours along a dim are: an int where it is constant, else i64."""
        return mul(self._function.size(stride_of(self._access, dim), 8), self._bytes)

    def address(self, places: Mapping[int, Num]) -> Value:
        """Of an element: i64.

        Args:
            places: its indices that are not 0, i32; they may be negative.
        """
        base = llvm.ptrtoint(i64(), self._function.address(self._access.operand))
        total = mul(self._function.size(self._access.start, 8), self._bytes)
        address = add(base, total)
        for dim, place in places.items():
            address = self.moved(address, dim, place)
        return address

    def moved(self, address: Value, dim: int, places: Num) -> Value:
        """The address so many places further along a dim."""
        further = mul(signed(places), self.pitch(dim))
        return add(address, value(further, i64()))

    def beside(self, address: Value, dim: int, places: int) -> tuple[Value, int]:
        """The same as an address and a constant offset, which is part of an instruction."""
        pitch = self.pitch(dim)
        if isinstance(pitch, int) or places == 0:
            return address, places * (pitch if isinstance(pitch, int) else 0)
        return self.moved(address, dim, places), 0


def signed(number: Num) -> Num:
    """A number, which may be negative, as i64."""
    return number if isinstance(number, int) else arith.extsi(i64(), number)


def both(lhs: Value | None, rhs: Value | None) -> Value | None:
    """Whether two conditions hold; None holds always."""
    if lhs is None or rhs is None:
        return rhs if lhs is None else lhs
    return arith.andi(lhs, rhs)
