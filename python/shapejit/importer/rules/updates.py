# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operators that replace elements of a tensor: `shapejit.scatter`.

Indices known to be a formula within bounds are part of an index map. Others are read where they
are; torch raises an error for one out of bounds, compiled code leaves its element out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shapejit.importer import dtypes, scatters
from shapejit.importer.builder import Read
from shapejit.importer.context import Context, UnsupportedCaseError, dim_index
from shapejit.importer.registry import rule
from shapejit.importer.rules.gather_index import Lookup, Position, indexed
from shapejit.importer.rules.views import as_expr, identity, slice_extent, with_size
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Tensor, affine_of, substitute
from shapejit.symbolic import Expr


def scatter(
    ctx: Context,
    x: Tensor,
    space: Sequence[Expr],
    source: Tensor,
    positions: Sequence[Position],
) -> Tensor:
    """`x` with the elements of `source`, which broadcasts to `space`, at `positions`.

    Args:
        positions: one a dim of `x`, over the dims of `space`.
    """
    space = tuple(space)
    source = ctx.cast(source, x.dtype)
    read = ctx.builder.broadcast_read(source, space)
    lookups: list[Read] = []
    indices: list[Expr] = []
    for dim, position in enumerate(positions):
        found = _formula(ctx, position, space, x.shape[dim])
        if found is None:
            assert isinstance(position, Lookup)
            lookups.append(_from_start(ctx, position, x.shape[dim]))
            found = Expr.dim(len(space) + len(lookups) - 1)
        indices.append(found)
    return scatters.scatter(ctx.builder, space, read, lookups, x, indices)


def _formula(ctx: Context, position: Position, space: tuple[Expr, ...], size: Expr) -> Expr | None:
    """A position as a formula, if it is known to be one within bounds."""
    if isinstance(position, Expr):
        return position
    content = position.read.tensor.content
    found = affine_of(substitute(content, position.read.indices)) if content else None
    if found is None:
        return None
    ranges = ctx.builder.ranges(space)
    if position.wraps and ranges.is_nonnegative(-1 - found):
        found = found + size
    inside = ranges.is_nonnegative(found) and ranges.is_nonnegative(size - 1 - found)
    return found if inside else None


def _from_start(ctx: Context, lookup: Lookup, size: Expr) -> Read:
    """Where the indices are read, counted from the start."""
    tensor = lookup.read.tensor
    if not lookup.wraps or dtypes.is_unsigned(tensor.dtype):
        if tensor.dtype not in (torch.int32, torch.int64):
            tensor = ctx.cast(tensor, torch.int64)
        return Read(tensor, lookup.read.indices)
    ops = ctx.ops

    def body(s: Scalar) -> Scalar:
        value = ops.to_index(s)
        from_end = ops.index_op("arith.addi", value, ops.index_expr(size))
        negative = ops.compare_indices("lt", value, ops.index_const(0))
        chosen = ops.op("arith.select", ops.types.index, [negative.value, from_end, value])
        return ops.from_index(chosen, torch.int64)

    return Read(ctx.builder.pointwise(body, [tensor], torch.int64), lookup.read.indices)


@rule("shapejit.slice_update")
def _slice_update(
    ctx: Context, x: Tensor, source: Tensor, dim: int, start: Any, end: Any, step: int
) -> Tensor:
    axis = dim_index(dim, x.rank)
    first, length = slice_extent(ctx, x.shape[axis], start, end)
    space = with_size(x.shape, axis, length.ceildiv(step))
    positions: list[Position] = list(identity(x.rank))
    positions[axis] = Expr.dim(axis) * step + first
    return scatter(ctx, x, space, source, positions)


@rule("shapejit.select_update")
def _select_update(ctx: Context, x: Tensor, source: Tensor, dim: int, index: Any) -> Tensor:
    axis = dim_index(dim, x.rank)
    place = x.shape[axis] + index if isinstance(index, int) and index < 0 else as_expr(index)
    space = [*x.shape[:axis], *x.shape[axis + 1 :]]
    positions: list[Position] = [*identity(axis), place]
    positions += [Expr.dim(i) for i in range(axis, x.rank - 1)]
    return scatter(ctx, x, space, source, positions)


@rule("aten.index_copy")
def _index_copy(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if x.rank == 0:
        return ctx.builder.reshape(ctx.cast(source, x.dtype), ())
    axis = dim_index(dim, x.rank)
    if index.rank == 0:
        index = ctx.builder.reshape(index, [Expr.const(1)])
    if source.rank == 0:
        source = ctx.builder.reshape(source, [Expr.const(1)])
    positions: list[Position] = list(identity(x.rank))
    positions[axis] = Lookup(Read(index, (Expr.dim(axis),)), wraps=False)
    return scatter(ctx, x, with_size(x.shape, axis, index.shape[0]), source, positions)


@rule("aten.scatter.src", "aten.scatter.value")
def _scatter(ctx: Context, x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    source = ctx.tensor(source, x.dtype)
    if x.rank == 0:
        index = ctx.builder.reshape(index, [Expr.const(1)])
        source = ctx.builder.reshape(source, [Expr.const(1)])
        made = _scatter(ctx, ctx.builder.reshape(x, [Expr.const(1)]), 0, index, source)
        return ctx.builder.reshape(made, ())
    axis = dim_index(dim, x.rank)
    if source.rank:  # what lies beyond the index is left out
        source = ctx.builder.view(source, index.shape, identity(x.rank))
    positions: list[Position] = list(identity(x.rank))
    positions[axis] = Lookup(Read(index, tuple(identity(x.rank))), wraps=False)
    return scatter(ctx, x, index.shape, source, positions)


@rule("aten.index_put", "aten._unsafe_index_put")
def _index_put(
    ctx: Context, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    if accumulate:
        raise UnsupportedCaseError("that accumulates")
    given = {dim: index for dim, index in enumerate(indices) if index is not None}
    if any(index.dtype in (torch.bool, torch.uint8) for index in given.values()):
        return _masked_put(ctx, x, list(given.items()), values)
    if not given:
        return ctx.builder.expand(ctx.cast(values, x.dtype), x.shape)
    space, positions = indexed(ctx, x, given)
    return scatter(ctx, x, space, values, positions)


def _masked_put(
    ctx: Context, x: Tensor, given: Sequence[tuple[int, Tensor]], values: Tensor
) -> Tensor:
    """One value where a mask over adjacent dims of `x` is true."""
    (dim, mask), *others = given
    if others:
        raise UnsupportedCaseError("by a mask and other indices")
    if any(size != 1 for size in values.shape):
        raise UnsupportedCaseError("by a mask, with more than one value")
    one = Expr.const(1)
    whole = [*[one] * dim, *mask.shape, *[one] * (x.rank - dim - mask.rank)]
    mask, value = ctx.builder.reshape(mask, whole), ctx.builder.reshape(values, ())
    ops = ctx.ops

    def body(old: Scalar, here: Scalar, new: Scalar) -> Scalar:
        return ops.select(ops.cast(here, torch.bool), ops.cast(new, x.dtype), old)

    return ctx.builder.pointwise(body, [x, mask, value], x.dtype)
