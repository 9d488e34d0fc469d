# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Running sums, products and extrema."""

from __future__ import annotations

from typing import Any

import torch

from shapejit.importer import dtypes
from shapejit.importer.context import Context, UnsupportedCaseError, dim_index
from shapejit.importer.registry import rule
from shapejit.importer.rules.pointwise import subtract
from shapejit.importer.rules.sorts import rows_last
from shapejit.importer.rules.views import identity, join, with_size
from shapejit.importer.values import Affine, Splat, Tensor
from shapejit.symbolic import Expr

_UNSIGNED = (torch.bool, torch.uint8)


def _scan(ctx: Context, x: Tensor, dim: int, kind: str, *, indexed: bool = False) -> list[Tensor]:
    """Element i of a dim combines elements 0..i, which are in torch's dtype of the result."""
    x = ctx.cast(x, ctx.dtype)
    if x.rank == 0:
        return [x, ctx.builder.splat((), torch.int64, 0)] if indexed else [x]
    # Bytes without a sign have no maxima of their own in bodies.
    comparable = ctx.cast(x, torch.int32) if x.dtype in _UNSIGNED else x
    with_rows, restore = rows_last(ctx, comparable, dim)
    found = ctx.builder.scan(with_rows, kind, indexed=indexed)
    return [ctx.cast(restore(found[0]), ctx.dtype), *map(restore, found[1:])]


@rule("aten.cumsum")
def _cumsum(ctx: Context, x: Tensor, dim: int, _: Any) -> Tensor:
    if isinstance(x.content, Splat) and dtypes.is_integer(ctx.dtype) and x.rank:
        # The sum of so many equal numbers.
        total = (Expr.dim(dim_index(dim, x.rank)) + 1) * int(x.content.value)
        return ctx.builder.known(x.shape, ctx.dtype, Affine(total))
    return _scan(ctx, x, dim, "add")[0]


@rule("aten.cumprod")
def _cumprod(ctx: Context, x: Tensor, dim: int, _: Any) -> Tensor:
    return _scan(ctx, x, dim, "mul")[0]


@rule("aten.cummax")
def _cummax(ctx: Context, x: Tensor, dim: int) -> list[Tensor]:
    return _scan(ctx, x, dim, "max", indexed=True)


@rule("aten.cummin")
def _cummin(ctx: Context, x: Tensor, dim: int) -> list[Tensor]:
    return _scan(ctx, x, dim, "min", indexed=True)


@rule("aten.logcumsumexp")
def _logcumsumexp(ctx: Context, x: Tensor, dim: int) -> Tensor:
    return _scan(ctx, x, dim, "logaddexp")[0]


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
