# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A convolution as products of rows of pixels, for kernels that load tiles with their halo once.

Why: in im2col mode every tap loads its pixels anew, though all but an edge of them are those of the
tap before. A window that moves from pixel to pixel sees of a tile of the result one box of the
image. It is loaded once a block of channels, and each tap's pixels are a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shapejit.gpu.interface import TensorMap
from shapejit.passes.nvgpu.builder import Num, add, mul, sub
from shapejit.passes.nvgpu.conv.halo_window import HaloWindow
from shapejit.passes.nvgpu.conv.lines import LineProduct, line_fields
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.conv.product import ConvMatrix, ConvProduct, image_dims, image_strides
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.problem import Matrix, check_box, map_element
from shapejit.symbolic import product
from shapejit.symbolic.expr import ONE

_WAY_OUT = "Use a schedule of another family"


@dataclass(frozen=True, kw_only=True)
class HaloProduct(LineProduct):
    """A convolution whose taps share pixels.

    Attributes:
        window: how it moves.
    """

    window: HaloWindow

    @staticmethod
    def of(conv: ConvProblem, depth: int) -> HaloProduct:
        """The product.

        Raises:
            LoweringError: its window is not one whose taps share pixels.
        """
        window = halo_window(conv)
        k = product(conv.taps) * conv.channels.ceildiv(depth) * depth
        return HaloProduct(**line_fields(conv, k), depth=depth, window=window)

    def lhs_matrix(self) -> Matrix:
        return HaloMatrix.of_product(self)


@dataclass(frozen=True, kw_only=True)
class HaloMatrix(ConvMatrix):
    """The image, in boxes with their halo."""

    @staticmethod
    def of_product(product: ConvProduct) -> HaloMatrix:
        """The matrix.

        Raises:
            LoweringError: TMA cannot read the image.
        """
        strides = (ONE, *image_strides(product))
        dims = (product.k, *reversed(range(product.m + 1)))
        sizes = tuple(product.space[dim] for dim in dims)
        return HaloMatrix(product.conv.input, dims, sizes, strides, product=product)

    def coordinates(self, function: KernelFunction, place: Sequence[Num]) -> list[Num]:
        """Channel, pixel, row and image of a box, of where its tile of the result starts."""
        conv = self.product.conv
        k, pixel, line, image, *_ = place
        channel, _ = self.block_and_tap(function, k)
        channel = add(channel, function.size(self.access.start))
        if self.product.grouped:
            channel = add(channel, mul(self.group(place), function.size(conv.channels)))
        (above, _), (left, _) = conv.window.padding
        return [channel, sub(pixel, left), sub(line, above), image]

    def record(self, function: KernelFunction, box: Sequence[int], swizzle: int) -> TensorMap:
        sizes, strides = image_dims(self.product.conv)
        check_box(box)
        return TensorMap(
            operand=self.access.operand,
            element=map_element(self.access.element),
            dims=tuple(map(function.value_number, sizes)),
            strides=tuple(map(function.value_number, strides)),
            box=(*box, 1),
            swizzle=swizzle,
            promotion=self.promotion,
        )


def halo_window(conv: ConvProblem) -> HaloWindow:
    """The window of a convolution.

    Raises:
        LoweringError: its taps share no pixels that one box of the image could hold.
    """
    window = conv.window
    if conv.rank != 2:
        raise LoweringError(f"has {conv.rank} spatial dims; tiles with a halo have two. {_WAY_OUT}")
    if any(stride != 1 for stride in window.strides):
        strides = ", ".join(map(str, window.strides))
        raise LoweringError(
            f"moves its window by ({strides}) pixels; for tiles with a halo it moves by 1. "
            f"{_WAY_OUT}"
        )
    rows, columns = (size.constant for size in conv.taps)
    if rows is None or columns is None or rows * columns < 2:
        taps = " x ".join(map(str, conv.taps))
        raise LoweringError(
            f"has a window of {taps} taps; tiles with a halo want a constant number, more than "
            f"one. {_WAY_OUT}"
        )
    down, along = window.dilations
    return HaloWindow((rows, columns), (down, along), conv.channels.constant)
