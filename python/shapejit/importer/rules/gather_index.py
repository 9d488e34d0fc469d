# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads at indices that are data: `tensor.extract` in a loop's body.

Indices known to be a formula within bounds make a view instead. Other indices are clamped to the
tensor: torch raises an error for one out of bounds, compiled code reads the nearest element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shapejit.importer import dtypes
from shapejit.importer.builder import Read, Write
from shapejit.importer.context import Context, UnsupportedCaseError, dim_index
from shapejit.importer.registry import rule
from shapejit.importer.rules.views import as_expr, identity, with_size
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Tensor, affine_of, substitute
from shapejit.symbolic import Expr, product


@dataclass(frozen=True)
class Lookup:
    """An index for one dim of a gathered tensor: a tensor of indices, and where it is read."""

    read: Read
    wraps: bool
    """Whether negative indices count from the end."""


Position = Expr | Lookup


def gather(ctx: Context, x: Tensor, shape: Sequence[Expr], positions: Sequence[Position]) -> Tensor:
    """The tensor of `shape` whose element is that of `x` at `positions`, one a dim of `x`."""
    shape = tuple(shape)
    known = _known_positions(ctx, x, shape, positions)
    if known is not None:
        return ctx.builder.view(x, shape, known)
    lookups = [position for position in positions if isinstance(position, Lookup)]
    ctx.builder.value(x)
    ops = ctx.ops

    def body(*scalars: Scalar) -> list[Scalar]:
        found = iter(scalars)
        indices = [
            ops.index_expr(position)
            if isinstance(position, Expr)
            else _clamped(ctx, next(found), x.shape[dim], position.wraps)
            for dim, position in enumerate(positions)
        ]
        return [ctx.builder.extract(x, indices)]

    reads = [lookup.read for lookup in lookups]
    return ctx.builder.loop(shape, reads, body, [Write(x.dtype, tuple(range(len(shape))))])[0]


def _known_positions(
    ctx: Context, x: Tensor, shape: tuple[Expr, ...], positions: Sequence[Position]
) -> list[Expr] | None:
    """The positions as formulas, if all are known and within `x`."""
    ranges = ctx.builder.ranges(shape)
    found: list[Expr] = []
    for dim, position in enumerate(positions):
        if isinstance(position, Expr):
            found.append(position)
            continue
        content = position.read.tensor.content
        formula = affine_of(substitute(content, position.read.indices)) if content else None
        if formula is None:
            return None
        if position.wraps and ranges.is_nonnegative(-1 - formula):
            formula = formula + x.shape[dim]
        inside = ranges.is_nonnegative(formula) and ranges.is_nonnegative(
            x.shape[dim] - 1 - formula
        )
        if not inside:
            return None
        found.append(formula)
    return found


def _clamped(ctx: Context, index: Scalar, size: Expr, wraps: bool) -> Any:
    ops = ctx.ops
    value, zero = ops.to_index(index), ops.index_const(0)
    if wraps and not dtypes.is_unsigned(index.dtype):
        from_end = ops.index_op("arith.addi", value, ops.index_expr(size))
        negative = ops.compare_indices("lt", value, zero)
        value = ops.op("arith.select", ops.types.index, [negative.value, from_end, value])
    last = ops.index_expr(size - 1)
    return ops.index_op("arith.maxsi", ops.index_op("arith.minsi", value, last), zero)


@rule("aten.embedding")
def _embedding(ctx: Context, table: Tensor, indices: Tensor, *_: Any) -> Tensor:
    rank = indices.rank
    rows = Lookup(Read(indices, tuple(identity(rank))), wraps=False)
    return gather(ctx, table, [*indices.shape, table.shape[1]], [rows, Expr.dim(rank)])


@rule("aten.index_select")
def _index_select(ctx: Context, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if x.rank == 0:
        return x
    axis = dim_index(dim, x.rank)
    if index.rank == 0:
        index = ctx.builder.reshape(index, [Expr.const(1)])
    positions: list[Position] = list(identity(x.rank))
    positions[axis] = Lookup(Read(index, (Expr.dim(axis),)), wraps=False)
    return gather(ctx, x, with_size(x.shape, axis, index.shape[0]), positions)


@rule("aten.gather")
def _gather(ctx: Context, x: Tensor, dim: int, index: Tensor, *_: Any) -> Tensor:
    if x.rank == 0:
        return ctx.builder.reshape(x, index.shape)
    axis = dim_index(dim, x.rank)
    positions: list[Position] = list(identity(x.rank))
    positions[axis] = Lookup(Read(index, tuple(identity(x.rank))), wraps=False)
    return gather(ctx, x, index.shape, positions)


def indexed(
    ctx: Context, x: Tensor, given: Mapping[int, Tensor]
) -> tuple[list[Expr], list[Position]]:
    """The shape of `x` indexed by tensors of places, and where in `x` each element of that is.

    Args:
        given: integers by dim of `x`, at least one; they broadcast, and count from the end if
            negative.
    """
    common = ctx.builder.broadcast(*(index.shape for index in given.values()))
    first, last = min(given), max(given)
    # torch puts the indices' dims where the indexed dims were, or first if those are apart.
    start = first if last - first + 1 == len(given) else 0
    free = [dim for dim in range(x.rank) if dim not in given]
    shape = [*(x.shape[d] for d in free[:start]), *common, *(x.shape[d] for d in free[start:])]
    place = {dim: Expr.dim(i if i < start else i + len(common)) for i, dim in enumerate(free)}
    positions: list[Position] = []
    for dim in range(x.rank):
        if dim in place:
            positions.append(place[dim])
            continue
        read = ctx.builder.broadcast_read(given[dim], common)
        moved = {i: Expr.dim(start + i) for i in range(len(common))}
        indices_in = tuple(index.substitute(dims=moved) for index in read.indices)
        positions.append(Lookup(Read(given[dim], indices_in), wraps=True))
    return shape, positions


@rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _index(ctx: Context, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    given = {dim: index for dim, index in enumerate(indices) if index is not None}
    if any(index.dtype in (torch.bool, torch.uint8) for index in given.values()):
        raise UnsupportedCaseError("by a mask: the size of the result would depend on data")
    if not given:
        return x
    shape, positions = indexed(ctx, x, given)
    return gather(ctx, x, shape, positions)


@rule("aten.take")
def _take(ctx: Context, x: Tensor, index: Tensor) -> Tensor:
    flat = ctx.builder.reshape(x, [product(x.shape)])
    lookup = Lookup(Read(index, tuple(identity(index.rank))), wraps=True)
    return gather(ctx, flat, index.shape, [lookup])


@rule("aten.one_hot")
def _one_hot(ctx: Context, x: Tensor, classes: Any) -> Tensor:
    if classes == -1:
        raise UnsupportedCaseError("with a number of classes that depends on data")
    ops, rank = ctx.ops, x.rank

    def body(s: Scalar) -> list[Scalar]:
        here = ops.compare_indices("eq", ops.to_index(s), ops.loop_index(rank))
        return [ops.cast(here, torch.int64)]

    shape = [*x.shape, as_expr(classes)]
    reads = [Read(x, tuple(identity(rank)))]
    return ctx.builder.loop(shape, reads, body, [Write(torch.int64, tuple(range(rank + 1)))])[0]
