# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions of one to three spatial dims.

Everything is one op: strides, dilation, groups and padding are its window, and a transposed
convolution is one that puts zeros between the pixels of its input and reads the kernel backwards.
Results are built with the channels last, whatever the model says, and viewed with them where torch
has them: a chain of layers then runs channels last from its first convolution on, since views fold
into the maps of what reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shapejit.importer.builder import Read
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.registry import rule
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr
from shapejit.windows import Window

Ints = Sequence[Any]
"""A list of ints, or of sizes."""


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d")
def _conv(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    spatial = weight.rank - 2
    window = Window(
        _entries(stride, spatial),
        _entries(dilation, spatial),
        tuple((pad, pad) for pad in _entries(padding, spatial)),
        (1,) * spatial,
    )
    return _convolution(ctx, x, weight, bias, window, groups)


@rule("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def _conv_padding(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: str,
    dilation: Ints,
    groups: int,
) -> Tensor:
    spatial = weight.rank - 2
    dilations = _entries(dilation, spatial)
    pads: tuple[tuple[int, int], ...] = ((0, 0),) * spatial
    if padding == "same":  # an odd pixel goes behind
        reaches = [d * (t - 1) for d, t in zip(dilations, _taps(weight), strict=True)]
        pads = tuple((reach // 2, reach - reach // 2) for reach in reaches)
    window = Window(_entries(stride, spatial), dilations, pads, (1,) * spatial)
    return _convolution(ctx, x, weight, bias, window, groups)


@rule("aten.conv_transpose1d", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def _conv_transpose(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> Tensor:
    """The adjoint of a convolution: each input pixel adds its multiple of the kernel."""
    spatial = weight.rank - 2
    dilations = _entries(dilation, spatial)
    pads = []
    for pad, more, d, taps in zip(
        _entries(padding, spatial),
        _entries(output_padding, spatial),
        dilations,
        _taps(weight),
        strict=True,
    ):
        around = d * (taps - 1) - pad
        pads.append((around, around + more))
    window = Window((1,) * spatial, dilations, tuple(pads), _entries(stride, spatial))
    return _convolution(ctx, x, weight, bias, window, groups, transposed=True)


@rule("aten.convolution")
def _any_convolution(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    if transposed:
        return _conv_transpose(
            ctx, x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return _conv(ctx, x, weight, bias, stride, padding, dilation, groups)


def _entries(values: Ints, spatial: int) -> tuple[int, ...]:
    """One entry a spatial dim; torch lets one stand for all."""
    found = tuple(values) * spatial if len(values) == 1 else tuple(values)
    if not all(isinstance(value, int) for value in found):
        raise UnsupportedCaseError(f"with a stride, padding or dilation that is no number: {found}")
    return found


def _taps(weight: Tensor) -> list[int]:
    """The kernel's spatial sizes."""
    found = [size.constant for size in weight.shape[2:]]
    if None in found:
        raise UnsupportedCaseError(f"with a kernel of dynamic size {weight.shape[2:]}")
    return [size for size in found if size is not None]


def _convolution(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Window,
    groups: int,
    *,
    transposed: bool = False,
) -> Tensor:
    """The convolution, bias added; an input without a batch dim gets one meanwhile."""
    builder, spatial = ctx.builder, weight.rank - 2
    if x.rank not in (spatial + 1, spatial + 2):
        raise UnsupportedCaseError(f"with an input of rank {x.rank}")
    taps = _taps(weight)
    batched = x.rank == spatial + 2
    if not batched:
        x = builder.reshape(x, (Expr.const(1), *x.shape))
    image = x.shape[2:]
    inside = weight.shape[0] // groups if transposed else weight.shape[1]
    outside = weight.shape[1] if transposed else weight.shape[0] // groups
    space = (
        x.shape[0],
        Expr.const(groups),
        *(
            builder.symbols.maximum(size, Expr.const(0))
            for size in window.output_sizes(image, taps)
        ),
        outside,
        inside,
        *weight.shape[2:],
    )
    result = builder.conv(
        space,
        image,
        Read(x, _input_indices(spatial, inside)),
        Read(weight, _weight_indices(taps, outside, inside, transposed)),
        window,
    )
    if bias is not None:
        result = ctx.pointwise(ctx.ops.add, result, bias)
    result = ctx.permuted(result, [0, spatial + 1, *range(1, spatial + 1)])
    return result if batched else builder.reshape(result, result.shape[1:])


def _input_indices(spatial: int, inside: Expr) -> tuple[Expr, ...]:
    """An image [n, c, p..] over (n, g, p.., c)."""
    channel = Expr.dim(1) * inside + Expr.dim(2 + spatial)
    return (Expr.dim(0), channel, *(Expr.dim(2 + i) for i in range(spatial)))


def _weight_indices(
    taps: Sequence[int], outside: Expr, inside: Expr, transposed: bool
) -> tuple[Expr, ...]:
    """A kernel [f, c, t..] over (g, f, c, t..); if transposed, [c, f, t..], read backwards."""
    group, filter_, channel = Expr.dim(0), Expr.dim(1), Expr.dim(2)
    tap = [Expr.dim(3 + i) for i in range(len(taps))]
    if not transposed:
        return (group * outside + filter_, channel, *tap)
    flipped = [size - 1 - index for size, index in zip(taps, tap, strict=True)]
    return (group * inside + channel, filter_, *flipped)
