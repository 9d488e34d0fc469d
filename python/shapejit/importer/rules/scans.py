# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Running sums and products.

A scan is a masked reduction here: element i combines all j <= i. That costs the square of the dim's
size, which is fine for the short integer scans that models make of masks and positions.
"""

from __future__ import annotations

from typing import Any

import torch

from shapejit.importer import dtypes
from shapejit.importer.builder import Kind, Read, Write
from shapejit.importer.context import Context, UnsupportedCaseError, dim_index
from shapejit.importer.registry import rule
from shapejit.importer.rules.pointwise import subtract
from shapejit.importer.rules.views import identity, join, with_size
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Splat, Tensor
from shapejit.symbolic import Expr


def _scan(ctx: Context, x: Tensor, dim: int, kind: Kind) -> Tensor:
    """Element i of a dim combines elements 0..i."""
    if x.rank == 0:
        return ctx.cast(x, ctx.dtype)
    axis = dim_index(dim, x.rank)
    inner = dtypes.compute_dtype(ctx.dtype)
    space = [*x.shape, x.shape[axis]]
    indices = identity(x.rank)
    indices[axis] = Expr.dim(x.rank)
    ops = ctx.ops

    def body(s: Scalar) -> list[Scalar]:
        seen = ops.compare_indices("le", ops.loop_index(x.rank), ops.loop_index(axis))
        return [ops.select(seen, ops.cast(s, inner), ops.const(kind == "mul", inner))]

    write = Write(inner, tuple(range(x.rank)), kind)
    return ctx.cast(ctx.builder.loop(space, [Read(x, tuple(indices))], body, [write])[0], ctx.dtype)


@rule("aten.cumsum")
def _cumsum(ctx: Context, x: Tensor, dim: int, _: Any) -> Tensor:
    if isinstance(x.content, Splat) and x.content.value == 0:
        return ctx.builder.splat(x.shape, ctx.dtype, 0)
    return _scan(ctx, x, dim, "add")


@rule("aten.cumprod")
def _cumprod(ctx: Context, x: Tensor, dim: int, _: Any) -> Tensor:
    return _scan(ctx, x, dim, "mul")


@rule("aten.diff")
def _diff(
    ctx: Context, x: Tensor, order: int, dim: int, prepend: Tensor | None, append: Tensor | None
) -> Tensor:
    axis = dim_index(dim, x.rank)
    if order != 1:
        raise UnsupportedCaseError(f"of order {order}")
    parts = [part for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        x = join(ctx, [ctx.cast(part, ctx.dtype) for part in parts], axis)
    return _difference(ctx, x, axis)


def _difference(ctx: Context, x: Tensor, axis: int) -> Tensor:
    """Element i + 1 less element i of a dim."""
    later = identity(x.rank)
    later[axis] = later[axis] + 1
    length = ctx.builder.symbols.maximum(x.shape[axis] - 1, Expr.const(0))
    shape = with_size(x.shape, axis, length)
    views = [ctx.builder.view(x, shape, i) for i in (later, identity(x.rank))]
    if x.dtype is torch.bool:
        return ctx.pointwise(ctx.ops.logical_xor, *views)
    return subtract(ctx, *views)
