# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a `shapejit.kernel` with one convolution to the problem that the emitters solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.nvgpu.builder import Type
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import Access, OperandReader, is_half
from shapejit.symbolic import Expr, map_exprs
from shapejit.windows import Window


@dataclass(frozen=True)
class ConvProblem:
    """``result[n, g, o.., f] = epilogue(sum of input[n, g, p.., c] * weight[g, f, c, t..], ..)``

    The sum is over c and t..; p is the pixel of the image that output pixel o sees through tap t.

    Attributes:
        space: sizes of n, g, o.., f, c, t..
        image: spatial sizes of the input.
        window: stride, padding and so on.
        input: over (n, g, p.., c).
        weight: over (g, f, c, t..).
        extras: what the epilogue reads, over (n, g, o.., f).
        result: over (n, g, o.., f).
        epilogue: the region's block: the sum and extras to the result; None for the sum itself.
    """

    space: tuple[Expr, ...]
    image: tuple[Expr, ...]
    window: Window
    input: Access
    weight: Access
    extras: tuple[Access, ...]
    result: Access
    epilogue: Any = None

    @property
    def rank(self) -> int:
        """Spatial dims."""
        return len(self.image)

    @property
    def images(self) -> Expr:
        return self.space[0]

    @property
    def groups(self) -> Expr:
        return self.space[1]

    @property
    def pixels(self) -> tuple[Expr, ...]:
        """Of the result."""
        return self.space[2 : 2 + self.rank]

    @property
    def filters(self) -> Expr:
        """Output channels of a group."""
        return self.space[2 + self.rank]

    @property
    def channels(self) -> Expr:
        """Input channels of a group."""
        return self.space[3 + self.rank]

    @property
    def taps(self) -> tuple[Expr, ...]:
        return self.space[4 + self.rank :]

    @property
    def element(self) -> Type:
        """Of the input and the weight."""
        return self.input.element

    @property
    def is_depthwise(self) -> bool:
        """Whether every group has one channel and one filter."""
        return self.filters == 1 and self.channels == 1


def is_conv(kernel: Any) -> bool:
    """Whether a ``shapejit.kernel`` holds a convolution."""
    return any(op.name == "shapejit.conv" for op in sir.operations(sir.body(kernel)))


def conv_problem(kernel: Any) -> ConvProblem:
    """The problem of a kernel.

    Args:
        kernel: ``shapejit.kernel``.

    Raises:
        LoweringError: it holds other ops, or a convolution of types that the tensor cores lack.
    """
    body = sir.body(kernel)
    *ops, terminator = (op for op in sir.operations(body) if op.name != "arith.constant")
    for op in ops:
        if op.name not in ("shapejit.conv", "shapejit.view"):
            raise LoweringError(
                f"holds '{op.name}' beside a convolution; pointwise ops go into its epilogue"
            )
    convs = [op for op in ops if op.name == "shapejit.conv"]
    if len(convs) != 1 or list(terminator.operands) != list(convs[0].results):
        raise LoweringError("does not yield exactly the result of one convolution")
    [conv] = convs
    _check_types(conv)
    return read_conv(OperandReader(kernel), conv, len(body.arguments))


def _check_types(conv: Any) -> None:
    factors = [value.type.element_type for value in list(conv.operands)[:2]]
    known = is_half(factors[0]) or isinstance(factors[0], ir.F32Type)
    if not known or factors[1] != factors[0]:
        found = ", ".join(map(str, factors))
        raise LoweringError(
            f"multiplies {found}; convolutions on a GPU take bf16 by bf16, f16 by f16, or f32 by "
            "f32 rounded to tf32: convert the model and its inputs"
        )
    if "accumulate" in conv.attributes:
        accumulate = ir.TypeAttr(conv.attributes["accumulate"]).value
        if not isinstance(accumulate, ir.F32Type):
            raise LoweringError(f"sums in {accumulate}; wgmma sums in f32")


def read_conv(reader: OperandReader, conv: Any, result_operand: int) -> ConvProblem:
    """The problem of a ``shapejit.conv``.

    Args:
        reader: finds the memory behind its operands.
        result_operand: number of its result.
    """
    space = sir.attr_sizes(conv.attributes["space"])
    image = sir.attr_sizes(conv.attributes["image"])
    rank = len(image)
    n, g, f, c = space[0], space[1], space[2 + rank], space[3 + rank]
    written = space[: 3 + rank]
    spaces = [(n, g, *image, c), (g, f, c, *space[4 + rank :])]
    spaces += [written] * (len(conv.operands) - 2)
    *maps, target = (map_exprs(each) for each in sir.op_maps(conv))
    accesses = [
        reader.read(value, indices, over)
        for value, indices, over in zip(conv.operands, maps, spaces, strict=True)
    ]
    [result] = conv.results
    blocks = conv.regions[0].blocks
    return ConvProblem(
        space=space,
        image=image,
        window=Window.of(conv),
        input=accesses[0],
        weight=accesses[1],
        extras=tuple(accesses[2:]),
        result=reader.access(result_operand, result, target, written),
        epilogue=blocks[0] if len(blocks) else None,
    )
