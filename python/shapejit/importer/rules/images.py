# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the rules of operators on images share: guarded reads, and loops with the channels last.

An image is [n, c, p..] to torch. Loops over its pixels run over [n, o.., c] and their results are
viewed as torch has them, as those of convolutions are: so channels stay innermost through a model.

A pixel that may lie off the image is read at the nearest one that is on it, by `tensor.extract`,
and what the body does with a condition decides whether that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from shapejit.importer.builder import Write
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr, Ranges

IndexValue: TypeAlias = Any
"""A value of type index in a body."""


@dataclass(frozen=True)
class Place:
    """An index of one dim of a tensor.

    Attributes:
        index: its value, within the dim.
        inside: whether the index that was asked for is within; None if it always is.
    """

    index: IndexValue
    inside: Scalar | None = None


def guarded(ctx: Context, index: Expr, size: Expr, ranges: Ranges) -> Place:
    """An index over the loop's dims, limited to [0, size) where `ranges` do not show that it is."""
    ops = ctx.ops
    value, conditions = ops.index_expr(index), []
    if not ranges.is_nonnegative(size - 1 - index):
        conditions.append(ops.compare_indices("lt", value, ops.index_expr(size)))
    if not ranges.is_nonnegative(index):
        conditions.append(ops.compare_indices("ge", value, ops.index_const(0)))
    if not conditions:
        return Place(value)
    return Place(limited(ctx, value, size), all_of(ctx, conditions))


def limited(ctx: Context, index: IndexValue, size: Expr) -> IndexValue:
    """An index limited to [0, size); 0 if that is empty."""
    ops = ctx.ops
    last = ops.index_expr(size - 1)
    return ops.index_op("arith.maxsi", ops.index_op("arith.minsi", index, last), ops.index_const(0))


def all_of(ctx: Context, conditions: Sequence[Scalar | None]) -> Scalar | None:
    """The conjunction of conditions; None stands for true."""
    result: Scalar | None = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else ctx.ops.logical_and(result, condition)
    return result


# Images -------------------------------------------------------------------------------------------


def with_batch(ctx: Context, x: Tensor, spatial: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """`x` as [n, c, p..], and how to take the batch dim from a result if `x` has none."""
    if x.rank == spatial + 2:
        return x, lambda result: result
    if x.rank != spatial + 1:
        raise UnsupportedCaseError(f"with an input of rank {x.rank}")
    batched = ctx.builder.reshape(x, (Expr.const(1), *x.shape))
    return batched, lambda result: ctx.builder.reshape(result, result.shape[1:])


class Pixels:
    """Reads of an image in the body of a loop over [n, o.., c].

    Args:
        ctx: the operator.
        x: the image, [n, c, p..].
        rank: of the loop; its first dim is the batch, its last the channel.
    """

    def __init__(self, ctx: Context, x: Tensor, rank: int) -> None:
        self._ctx, self._rank = ctx, rank
        ctx.builder.value(x)
        self._x = x

    def at(self, pixel: Sequence[IndexValue]) -> Scalar:
        """The element of the loop's own batch and channel at a pixel."""
        ops = self._ctx.ops
        batch, channel = ops.loop_index(0), ops.loop_index(self._rank - 1)
        return self._ctx.builder.extract(self._x, [batch, channel, *pixel])


def image_loop(
    ctx: Context,
    x: Tensor,
    sizes: Sequence[Expr],
    body: Callable[[Pixels, Ranges], Scalar],
    dtype: torch.dtype,
) -> Tensor:
    """An image [n, c, o..] whose elements `body` makes from those of `x`, [n, c, p..].

    Args:
        sizes: o.., which are dims 1 and so on of the loop.
        body: gets the pixels of `x` and what is known of the loop's indices.
        dtype: of the result.
    """
    space = (x.shape[0], *sizes, x.shape[1])
    rank = len(space)
    pixels = Pixels(ctx, x, rank)
    ranges = ctx.builder.ranges(space)
    write = Write(dtype, tuple(range(rank)))
    result = ctx.builder.loop(space, [], lambda: [body(pixels, ranges)], [write])[0]
    return channels_first(ctx, result)


def channels_first(ctx: Context, x: Tensor) -> Tensor:
    """[n, o.., c] as [n, c, o..]."""
    return ctx.permuted(x, [0, x.rank - 1, *range(1, x.rank - 1)])
