# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which convolutions of float32 have kernels of their own, before they are in a kernel.

Tensor cores multiply float32 that TMA loads, rounded to tf32 or in two parts. There is no other way
into their kernels, so it is decided where a convolution can still become something else: from what
lies in memory behind the views of a function. Depthwise ones run on CUDA cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shapejit import ir as sir
from shapejit.passes.buckets.bindings import divisor_of
from shapejit.passes.nvgpu.conv.depthwise_schedule import suits
from shapejit.passes.nvgpu.conv.problem import ConvProblem, read_conv
from shapejit.passes.nvgpu.conv.product import DEPTH_BYTES, ConvProduct
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import Access, OperandReader, lhs_matrix
from shapejit.passes.nvgpu.target import MAP_ALIGNMENT
from shapejit.symbolic import Expr, map_exprs, product


class _Sources(OperandReader):
    """Reads values of a function; operands are numbered as they are read.

    Attributes:
        found: the values behind views that were read.
    """

    def __init__(self) -> None:
        self.found: list[Any] = []

    def read(self, value: Any, indices: Sequence[Expr], space: Sequence[Expr]) -> Access:
        while (view := sir.defining_op(value)) is not None and view.name == "shapejit.view":
            dims = dict(enumerate(indices))
            source = map_exprs(view.attributes["map"].value)
            indices = [index.substitute(dims=dims) for index in source]
            value = view.operands[0]
        self.found.append(value)
        return self.access(len(self.found) - 1, value, indices, space)


def has_maps(op: Any, function: Any, divisors: Mapping[int, int]) -> bool:
    """Whether tensor maps can read the image and, once packed, the filters of a convolution.

    Args:
        op: ``shapejit.conv``, without an epilogue.
        function: that it is in.
        divisors: of the module's symbols, by id.
    """
    sources = _Sources()
    try:
        conv = read_conv(sources, op, len(op.operands))
        width = sir.element_bytes(conv.element)
        image = lhs_matrix(ConvProduct.of(conv, DEPTH_BYTES // width))
    except LoweringError:
        return False
    multiple = MAP_ALIGNMENT // width
    strides = [*image.strides[1:], conv.channels]
    if any(divisor_of(stride, divisors) % multiple for stride in strides):
        return False
    return _is_packed(conv, sources.found[1], function)


def is_depthwise(op: Any) -> bool:
    """Whether the kernels of depthwise convolutions compute a convolution.

    Args:
        op: ``shapejit.conv``, without an epilogue.
    """
    try:
        return suits(read_conv(_Sources(), op, len(op.operands)))
    except LoweringError:
        return False


def _is_packed(conv: ConvProblem, filters: Any, function: Any) -> bool:
    """Whether `shapejit-pack-weights` will put the channels of filters last: it does with weights
    of which each element is read once."""
    arguments = list(sir.body(function).arguments)
    if filters not in arguments or not conv.weight.is_linear:
        return False
    if sir.argument_kind(function, arguments.index(filters)) != "weight":
        return False
    read = product((conv.groups, conv.filters, conv.channels, *conv.taps))
    whole = product(sir.shape_of(filters))
    return read.constant is not None and read == whole
