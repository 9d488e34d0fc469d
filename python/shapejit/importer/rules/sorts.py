# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sorting, and what is read off sorted rows: the greatest, the k-th, the median.

All of them are one op, the head of a stable sort. A head that may be long is a slice of the whole
sort, which then can be sorted in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from shapejit.importer import dtypes
from shapejit.importer.builder import Write
from shapejit.importer.context import Context, dim_index
from shapejit.importer.registry import rule
from shapejit.importer.rules.images import guarded
from shapejit.importer.rules.reductions import extreme_with_place, with_unit_dims
from shapejit.importer.rules.views import identity
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Tensor
from shapejit.passes.rowwise.problem import MAX_HEAD
from shapejit.symbolic import Expr, product
from shapejit.symbolic.expr import as_expr

_UNSIGNED = (torch.bool, torch.uint8)


def rows_last(ctx: Context, x: Tensor, dim: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The tensor with a dim moved to the end, and what moves it back in results."""
    axis = dim_index(dim, x.rank)
    order = [*(d for d in range(x.rank) if d != axis), axis]
    back = [order.index(d) for d in range(x.rank)]
    if axis == x.rank - 1:
        return x, lambda result: result
    return ctx.permuted(x, order), lambda result: ctx.permuted(result, back)


def _sorted(
    ctx: Context, x: Tensor, dim: int, *, descending: bool, count: Expr | None = None
) -> list[Tensor]:
    """The first so many elements of each sorted row (all if None) and their places."""
    if x.rank == 0:
        return [x, ctx.builder.splat((), torch.int64, 0)]
    comparable = ctx.cast(x, torch.int32) if x.dtype in _UNSIGNED else x
    rows, restore = rows_last(ctx, comparable, dim)
    length = rows.shape[-1]
    wanted = length if count is None else count
    most = ctx.builder.ranges(()).bounds(wanted)[1]
    is_short = most is not None and most <= MAX_HEAD
    found = ctx.builder.sort(rows, wanted if is_short else length, descending=descending)
    if not is_short and wanted != length:
        shape = (*rows.shape[:-1], wanted)
        found = [ctx.builder.view(each, shape, identity(rows.rank)) for each in found]
    return [ctx.cast(restore(found[0]), x.dtype), restore(found[1])]


@rule("aten.sort")
def _sort(ctx: Context, x: Tensor, dim: int = -1, descending: bool = False) -> list[Tensor]:
    return _sorted(ctx, x, dim, descending=descending)


@rule("aten.sort.stable")
def _sort_stable(ctx: Context, x: Tensor, _: Any, dim: int, descending: bool) -> list[Tensor]:
    return _sorted(ctx, x, dim, descending=descending)


@rule("aten.argsort")
def _argsort(ctx: Context, x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return _sorted(ctx, x, dim, descending=descending)[1]


@rule("aten.argsort.stable")
def _argsort_stable(ctx: Context, x: Tensor, _: Any, dim: int, descending: bool) -> Tensor:
    return _sorted(ctx, x, dim, descending=descending)[1]


@rule("aten.msort")
def _msort(ctx: Context, x: Tensor) -> Tensor:
    return _sorted(ctx, x, 0, descending=False)[0]


@rule("aten.topk")
def _topk(
    ctx: Context, x: Tensor, k: Any, dim: int = -1, largest: bool = True, _: bool = True
) -> list[Tensor]:
    return _sorted(ctx, x, dim, descending=largest, count=as_expr(k))


@rule("aten.kthvalue")
def _kthvalue(ctx: Context, x: Tensor, k: Any, dim: int = -1, keep: bool = False) -> list[Tensor]:
    if x.rank == 0:
        return _sorted(ctx, x, 0, descending=False)
    count, axis = as_expr(k), dim_index(dim, x.rank)
    found = _sorted(ctx, x, dim, descending=False, count=count)
    found = [_selected(ctx, y, axis, count - 1) for y in found]
    return [with_unit_dims(ctx, y, x.rank, [axis]) for y in found] if keep else found


@rule("aten.median.dim")
def _median_dim(ctx: Context, x: Tensor, dim: int, keep: bool = False) -> list[Tensor]:
    """The lower of the two in the middle; NaN, the first one, if there is one."""
    if x.rank == 0:
        return _sorted(ctx, x, 0, descending=False)
    axis = dim_index(dim, x.rank)
    middle = (x.shape[axis] - 1) // 2
    found = [_selected(ctx, y, axis, middle) for y in _sorted(ctx, x, dim, descending=False)]
    if dtypes.is_float(x.dtype):
        greatest, place = extreme_with_place(ctx, x, "max", axis)
        found = [
            ctx.builder.pointwise(
                lambda top, y, nan: ctx.ops.select(ctx.ops.is_nan(top), nan, y),
                [greatest, own, other],
                own.dtype,
            )
            for own, other in zip(found, (greatest, place), strict=True)
        ]
    return [with_unit_dims(ctx, y, x.rank, [axis]) for y in found] if keep else found


@rule("aten.median")
def _median(ctx: Context, x: Tensor) -> Tensor:
    """As over a dim; of no elements NaN."""
    ops, count = ctx.ops, product(x.shape)
    if not ctx.builder.ranges(()).is_nonnegative(count - 1):
        # Where there is nothing, one element is made up.
        longer = ctx.builder.symbols.maximum(count, Expr.const(1))
        blank = math.nan if dtypes.is_float(x.dtype) else 0

        def element() -> list[Scalar]:
            place = guarded(ctx, Expr.dim(0), count, ctx.builder.ranges((longer,)))
            found = ctx.builder.extract(flat, [place.index])
            if place.inside is not None:
                found = ops.select(place.inside, found, ops.const(blank, x.dtype))
            return [found]

        flat = ctx.builder.reshape(x, [count])
        ctx.builder.value(flat)
        x = ctx.builder.loop((longer,), [], element, [Write(x.dtype, (0,))])[0]
        count = longer
    return _median_dim(ctx, ctx.builder.reshape(x, [count]), 0)[0]


def _selected(ctx: Context, x: Tensor, axis: int, index: Expr) -> Tensor:
    """One element of a dim, which goes away."""
    shape = [size for dim, size in enumerate(x.shape) if dim != axis]
    indices = identity(len(shape))
    indices.insert(axis, index)
    return ctx.builder.view(x, shape, indices)
