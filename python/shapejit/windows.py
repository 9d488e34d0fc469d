# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""How a ``shapejit.conv`` moves over its image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir

from .symbolic import Expr


@dataclass(frozen=True)
class Window:
    """The window of a convolution; one entry a spatial dim.

    Output pixel o sees, through tap t, pixel ``(o * stride + t * dilation - low) / lhs_dilation``
    of the image, or zero where that has a remainder or lies outside.

    Attributes:
        strides: places between neighbouring output pixels.
        dilations: places between neighbouring taps.
        padding: (low, high), zeros before and after the image; negative ones crop it.
        lhs_dilations: places from one pixel of the image to the next, zeros in between.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilations: tuple[int, ...]

    @staticmethod
    def of(op: Any) -> Window:
        """The window of a ``shapejit.conv``."""
        strides, dilations, padding, lhs_dilations = (
            tuple(ir.DenseI64ArrayAttr(op.attributes[name]))
            for name in ("strides", "dilations", "padding", "lhs_dilations")
        )
        pairs = tuple(zip(padding[::2], padding[1::2], strict=True))
        return Window(strides, dilations, pairs, lhs_dilations)

    def attributes(self, context: Any = None) -> dict[str, Any]:
        """The attributes of the op that hold it."""
        lists = {
            "strides": self.strides,
            "dilations": self.dilations,
            "padding": [pad for pair in self.padding for pad in pair],
            "lhs_dilations": self.lhs_dilations,
        }
        return {
            name: ir.DenseI64ArrayAttr.get(list(values), context) for name, values in lists.items()
        }

    def output_sizes(self, image: Sequence[Expr], taps: Sequence[Expr | int]) -> list[Expr]:
        """Output pixels of an image that is not empty; where below 0, there are none."""
        rows = zip(
            image,
            taps,
            self.strides,
            self.dilations,
            self.padding,
            self.lhs_dilations,
            strict=True,
        )
        return [
            ((size - 1) * spread + (low + high) - (count - 1) * dilation) // stride + 1
            for size, count, stride, dilation, (low, high), spread in rows
        ]

    @property
    def is_trivial(self) -> bool:
        """Whether output pixel o sees pixel o through the first tap, and no padding."""
        factors = {*self.strides, *self.lhs_dilations}
        return factors == {1} and all(pair == (0, 0) for pair in self.padding)
