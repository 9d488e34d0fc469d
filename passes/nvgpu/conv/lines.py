# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A convolution as products of rows of pixels, and its tiles of some pixels of some rows.

Rows of pixels and images are batch dims here, so that places of a tile are sums, not divisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit.gpu.interface import Grid
from shapejit.passes.nvgpu.builder import (
    Num,
    ceildiv,
    compare,
    mul,
    select,
    sub,
    udiv,
    umax,
)
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.conv.product import ConvProduct
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.problem import Access
from shapejit.symbolic import Expr, Ranges
from shapejit.symbolic.expr import ONE, ZERO


@dataclass(frozen=True, kw_only=True)
class LineProduct(ConvProduct):
    """A convolution over [g.., images, rows of pixels, pixels, filters, taps and channels]."""

    @property
    def line(self) -> int:
        """The dim of rows of pixels."""
        return self.m - 1

    @property
    def image(self) -> int:
        """The dim of images."""
        return self.m - 2


def line_fields(conv: ConvProblem, k: Expr) -> dict[str, Any]:
    """The fields of a `LineProduct` but for its depth.

    Args:
        conv: of two spatial dims.
        k: size of the summed dim.
    """
    grouped = conv.groups != ONE
    outer = [conv.groups] * grouped + [conv.images]
    space = (*outer, *conv.pixels, conv.filters, k)
    image = len(outer) - 1
    group = Expr.dim(0) if grouped else ZERO
    own = [Expr.dim(image), group, *(Expr.dim(image + each) for each in (1, 2, 3))]
    dims, ranges = dict(enumerate(own)), Ranges(None, list(space[:-1]))

    def restated(access: Access) -> Access:
        offset = ranges.simplify(access.offset.substitute(dims=dims))
        return Access(access.operand, access.element, offset)

    return {
        "space": space,
        "lhs": conv.input,
        "weights": (conv.weight,),
        "extras": tuple(map(restated, conv.extras)),
        "result": restated(conv.result),
        "epilogue": conv.epilogue,
        "conv": conv,
        "grouped": grouped,
        "by_image": True,
    }


@dataclass(frozen=True)
class LineTiles:
    """The tiles of a convolution.

    Attributes:
        problem: the convolution.
        extents: tiles along the height, the width and the filters.
        lengths: of a tile.
        images: how many there are.
        count: of all tiles.
    """

    problem: LineProduct
    extents: tuple[Num, Num, Num]
    lengths: tuple[int, int, int]
    images: Num
    count: Num

    @staticmethod
    def of(
        function: KernelFunction, problem: LineProduct, lengths: tuple[int, int, int]
    ) -> LineTiles:
        """Emits the counts. Without products there are no tiles, see `depthless`."""
        sizes = problem.space[problem.line : problem.k]
        high, wide, filters = (
            ceildiv(function.size(size), length)
            for size, length in zip(sizes, lengths, strict=True)
        )
        images = function.size(problem.space[problem.image])
        count = mul(mul(mul(high, wide), filters), images)
        if problem.grouped:
            count = mul(count, function.size(problem.space[0]))
        depth = function.size(problem.space[problem.k])
        if isinstance(depth, int):
            count = count if depth else 0
        else:
            count = select(compare("eq", depth, 0), 0, count)
        return LineTiles(problem, (high, wide, filters), lengths, images, count)

    def indices(self, tile: Num) -> dict[int, Num]:
        """Where a tile starts, along every dim of the space but K."""
        problem, (high, wide, filters) = self.problem, self.extents
        places: list[Num] = []
        for extent in (filters, wide, high):
            rest = udiv(tile, umax(extent, 1))  # there may be none, and a tile that is not used
            places.append(sub(tile, mul(rest, extent)))
            tile = rest
        found = {
            dim: mul(place, length)
            for dim, place, length in zip(
                (problem.n, problem.m, problem.line), places, reversed(self.lengths), strict=True
            )
        }
        if not problem.grouped:
            return {**found, problem.image: tile}
        group = udiv(tile, umax(self.images, 1))
        return {**found, problem.image: sub(tile, mul(group, self.images)), 0: group}

    def grid(self, function: KernelFunction, ctas_per_sm: int) -> Grid:
        """As many CTAs as there are tiles."""
        problem, number = self.problem, function.value_number
        tiles = [(number(size), 1) for size in problem.space[: problem.line]]
        sizes = problem.space[problem.line : problem.k]
        tiles += [(number(size), length) for size, length in zip(sizes, self.lengths, strict=True)]
        return Grid(tuple(tiles), ctas_per_sm)
