# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds `shapejit.scatter`; writes into a part of a part become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir

from shapejit.importer.builder import Builder, Read
from shapejit.importer.values import Shape, Tensor
from shapejit.ir import defining_op, shape_of
from shapejit.symbolic import Expr, is_reshape, map_exprs

_SCATTER = "shapejit.scatter"
_VIEW = "shapejit.view"


def scatter(
    builder: Builder,
    space: Sequence[Expr],
    source: Read,
    positions: Sequence[Read],
    dest: Tensor,
    indices: Sequence[Expr],
) -> Tensor:
    """`dest` with some elements replaced.

    Args:
        builder: at the point where the op goes.
        space: sizes of the iteration space.
        source: what is written; of `dest`'s dtype.
        positions: of i32 or i64.
        dest: the tensor.
        indices: where, over the space's dims and then a dim for each of the positions.
    """
    space, reads = tuple(space), [source, *positions]
    operands = [builder.value(read.tensor) for read in reads]
    if not positions:
        inner = _within(builder, source, space, dest, indices)
        if inner is not None:
            return inner
    maps = [builder.map_attr(len(space), read.indices) for read in reads]
    maps.append(builder.map_attr(len(space) + len(positions), indices))
    return _made(builder, builder.space_attr(space), operands, maps, dest)


def _made(
    builder: Builder, space: Any, operands: Sequence[Any], maps: Sequence[Any], dest: Tensor
) -> Tensor:
    result = ir.Operation.create(
        _SCATTER,
        results=[builder.tensor_type(dest.shape, dest.dtype)],
        operands=[*operands, builder.value(dest)],
        attributes={"space": space, "maps": ir.ArrayAttr.get(list(maps))},
    ).result
    return Tensor(dest.shape, dest.dtype, result)


def _within(
    builder: Builder, source: Read, space: Shape, dest: Tensor, indices: Sequence[Expr]
) -> Tensor | None:
    """The update of `dest` in one step, if what is written into a part of it is that very part with
    some elements replaced; None if it is something else.

    The part is a view of `dest` at `indices`, and `space` is its shape.
    """
    inner = defining_op(source.tensor.value)
    identity = tuple(map(Expr.dim, range(len(space))))
    if inner is None or inner.name != _SCATTER or source.indices != identity:
        return None
    *operands, part = inner.operands
    view = defining_op(part)
    if view is None or view.name != _VIEW or view.operands[0] != dest.value:
        return None
    if map_exprs(view.attributes["map"].value) != tuple(indices):
        return None
    *maps, written = inner.attributes["maps"]
    replaced = dict(enumerate(map_exprs(written.value)))
    rank = written.value.n_dims - len(operands) + 1
    for dim, index in replaced.items():
        # Beyond the end of the part is still inside of dest.
        is_read = any(number >= rank for number in index.dims())
        if is_read and not _is_whole(dim, space[dim], dest, indices):
            return None
    composed = [index.substitute(dims=replaced) for index in indices]
    maps.append(builder.map_attr(written.value.n_dims, composed))
    return _made(builder, inner.attributes["space"], operands, maps, dest)


def _is_whole(dim: int, size: Expr, dest: Tensor, indices: Sequence[Expr]) -> bool:
    """Whether a dim of a part is a whole dim of `dest`."""
    found = (own for own, index in zip(dest.shape, indices, strict=True) if index.dim_index == dim)
    return next(found, None) == size


def leads_from(x: Tensor, start: Tensor) -> bool:
    """Whether scatters alone lead from `start` to `x`, but for views that keep the order."""
    value = x.value
    while value is not None and value != start.value:
        op = defining_op(value)
        if op is None or op.name not in (_SCATTER, _VIEW):
            return False
        value = op.operands[len(op.operands) - 1]
        if op.name == _VIEW:
            exprs = map_exprs(op.attributes["map"].value)
            if not is_reshape(exprs, shape_of(value), shape_of(op.results[0])):
                return False
    return value is not None
