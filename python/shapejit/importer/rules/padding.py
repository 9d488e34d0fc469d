# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Padding: around a tensor with a value, its edge, its mirror image or itself again.

All dims are padded by one loop, or by one view where no element is made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from shapejit.importer.builder import Write
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.registry import rule
from shapejit.importer.rules.images import IndexValue, Place, all_of, guarded, limited
from shapejit.importer.rules.views import as_expr, identity
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr, Ranges

_Pads = dict[int, tuple[Expr, Expr]]
"""For each padded dim, how much before and behind."""


@rule("aten.constant_pad_nd")
def _constant_pad(ctx: Context, x: Tensor, pads: Sequence[Any], value: Any) -> Tensor:
    return _padded(ctx, x, pads, "constant", value)


@rule("aten.pad")
def _pad(ctx: Context, x: Tensor, pads: Sequence[Any], mode: str, value: Any) -> Tensor:
    return _padded(ctx, x, pads, mode, value)


@rule("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
def _reflection_pad(ctx: Context, x: Tensor, pads: Sequence[Any]) -> Tensor:
    return _padded(ctx, x, pads, "reflect", None)


@rule("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def _replication_pad(ctx: Context, x: Tensor, pads: Sequence[Any]) -> Tensor:
    return _padded(ctx, x, pads, "replicate", None)


def _padded(ctx: Context, x: Tensor, pads: Sequence[Any], mode: str, value: Any) -> Tensor:
    """`x` padded; amounts come in pairs from the last dim on, negative ones cut off."""
    amounts: _Pads = {}
    for number in range(len(pads) // 2):
        before, after = map(as_expr, pads[2 * number : 2 * number + 2])
        if before != 0 or after != 0:
            amounts[x.rank - 1 - number] = (before, after)
    shape = [
        size + sum(amounts[dim], Expr.const(0)) if dim in amounts else size
        for dim, size in enumerate(x.shape)
    ]
    if mode == "circular" or _only_cuts(amounts):
        return _wrapped(ctx, x, shape, amounts)
    if mode == "constant":
        return _filled(ctx, x, shape, amounts, 0 if value is None else value)
    if mode not in _PLACES:
        raise UnsupportedCaseError(f"with mode {mode}")
    return _mapped(ctx, x, shape, amounts, _PLACES[mode])


def _only_cuts(amounts: _Pads) -> bool:
    """Whether nothing is added."""
    found = [pad.constant for pads in amounts.values() for pad in pads]
    return all(pad is not None and pad <= 0 for pad in found)


def _wrapped(ctx: Context, x: Tensor, shape: Sequence[Expr], amounts: _Pads) -> Tensor:
    """The tensor, with what negative amounts cut off taken away, repeated: an index map."""
    indices = identity(x.rank)
    ranges = ctx.builder.ranges(tuple(shape))
    for dim, (before, after) in amounts.items():
        index, size = indices[dim] - before, x.shape[dim]
        if ranges.is_nonnegative(index) and ranges.is_nonnegative(size - 1 - index):
            indices[dim] = index
        else:
            first = _cut(before)
            indices[dim] = (index - first) % (size - first - _cut(after)) + first
    return ctx.builder.view(x, shape, indices)


def _cut(amount: Expr) -> Expr:
    """How much is cut off; amounts that vary are taken to add."""
    known = amount.constant
    return Expr.const(0 if known is None else max(-known, 0))


def _filled(ctx: Context, x: Tensor, shape: Sequence[Expr], amounts: _Pads, value: Any) -> Tensor:
    """A value around the tensor."""

    def element(read: Callable[[list[Place]], Scalar], ranges: Ranges) -> Scalar:
        places = []
        for dim, size in enumerate(x.shape):
            before = amounts[dim][0] if dim in amounts else Expr.const(0)
            places.append(guarded(ctx, Expr.dim(dim) - before, size, ranges))
        inside = all_of(ctx, [place.inside for place in places])
        found = read(places)
        if inside is None:
            return found
        return ctx.ops.select(inside, found, ctx.ops.const(value, x.dtype))

    return _loop(ctx, x, shape, element)


_Place = Callable[[Context, IndexValue, Expr], IndexValue]
"""From an index that may be off a dim, and the dim's size, to one on it."""


def _mapped(
    ctx: Context, x: Tensor, shape: Sequence[Expr], amounts: _Pads, place: _Place
) -> Tensor:
    """Elements of the tensor around it."""
    ops = ctx.ops

    def element(read: Callable[[list[Place]], Scalar], _: Ranges) -> Scalar:
        places = []
        for dim, size in enumerate(x.shape):
            if dim in amounts:
                index = ops.index_expr(Expr.dim(dim) - amounts[dim][0])
                places.append(Place(place(ctx, index, size)))
            else:
                places.append(Place(ops.loop_index(dim)))
        return read(places)

    return _loop(ctx, x, shape, element)


def _reflected(ctx: Context, index: IndexValue, size: Expr) -> IndexValue:
    """last - ||index| - last|: mirrored once at either end."""
    ops = ctx.ops

    def absolute(value: IndexValue) -> IndexValue:
        negated = ops.index_op("arith.subi", ops.index_const(0), value)
        return ops.index_op("arith.maxsi", value, negated)

    last = ops.index_expr(size - 1)
    mirrored = absolute(ops.index_op("arith.subi", absolute(index), last))
    return limited(ctx, ops.index_op("arith.subi", last, mirrored), size)


_PLACES: Final[dict[str, _Place]] = {"reflect": _reflected, "replicate": limited}


def _loop(
    ctx: Context,
    x: Tensor,
    shape: Sequence[Expr],
    element: Callable[[Callable[[list[Place]], Scalar], Ranges], Scalar],
) -> Tensor:
    space = tuple(shape)
    ranges = ctx.builder.ranges(space)
    ctx.builder.value(x)

    def read(places: list[Place]) -> Scalar:
        return ctx.builder.extract(x, [place.index for place in places])

    write = Write(x.dtype, tuple(range(len(space))))
    return ctx.builder.loop(space, [], lambda: [element(read, ranges)], [write])[0]
