# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reductions over dims. 16-bit floats are reduced in f32 and rounded once, as in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shapejit.importer import dtypes
from shapejit.importer.builder import Kind, Read, Write
from shapejit.importer.context import Context, UnsupportedCaseError, dim_index, dim_list
from shapejit.importer.registry import rule
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Splat, Tensor
from shapejit.symbolic import Expr, product


def reduce(
    ctx: Context,
    body: Callable[..., Scalar],
    reads: Sequence[Read],
    space: Sequence[Expr],
    dims: Sequence[int],
    kind: Kind,
    dtype: torch.dtype,
) -> Tensor:
    """`body` combined over `dims` of `space`, which go away."""
    kept = tuple(i for i in range(len(space)) if i not in dims)
    return ctx.builder.loop(
        space, reads, lambda *scalars: [body(*scalars)], [Write(dtype, kept, kind)]
    )[0]


def reduce_tensor(
    ctx: Context,
    x: Tensor,
    dims: Sequence[int],
    kind: Kind,
    dtype: torch.dtype,
    body: Callable[[Scalar], Scalar] | None = None,
) -> Tensor:
    """`x` (or `body` of its elements, in `dtype`) combined over `dims`, which go away."""
    read = Read(x, tuple(Expr.dim(i) for i in range(x.rank)))

    def element(scalar: Scalar) -> Scalar:
        scalar = ctx.ops.cast(scalar, dtype)
        return scalar if body is None else body(scalar)

    return reduce(ctx, element, [read], x.shape, dims, kind, dtype)


def kept_dims(ctx: Context, x: Tensor, reduced: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    """`reduced` with the reduced dims of `x` as size one if `keep`, in torch's result dtype."""
    result = ctx.cast(reduced, ctx.dtype)
    return with_unit_dims(ctx, result, x.rank, dims) if keep else result


def with_unit_dims(ctx: Context, reduced: Tensor, rank: int, dims: Sequence[int]) -> Tensor:
    """A reduced tensor with size-one dims where `dims` were."""
    sizes = iter(reduced.shape)
    shape = [Expr.const(1) if i in dims else next(sizes) for i in range(rank)]
    kept = [Expr.dim(i) for i in range(rank) if i not in dims]
    return ctx.builder.view(reduced, shape, kept)


def row_read(rank: int, dims: Sequence[int], tensor: Tensor) -> Read:
    """Reads a tensor reduced over `dims` in a space of the tensor's own rank."""
    return Read(tensor, tuple(Expr.dim(i) for i in range(rank) if i not in dims))


def count_of(ctx: Context, x: Tensor, dims: Sequence[int]) -> Expr:
    """Number of elements reduced into one."""
    return product(x.shape[i] for i in dims)


def divided_by_count(ctx: Context, total: Scalar, count: Expr, correction: float = 0) -> Scalar:
    """total / (count - correction), which may be 0 / 0."""
    ops = ctx.ops
    if (constant := count.constant) is not None:
        divisor = max(constant - correction, 0)
        if divisor:
            return ops.mul(total, ops.const(1 / divisor, total.dtype))
        return ops.div(total, ops.const(0, total.dtype))
    divisor_value = ops.from_index(ops.index_expr(count), total.dtype)
    if correction:
        shifted = ops.sub(divisor_value, ops.const(correction, total.dtype))
        divisor_value = ops.maximum(shifted, ops.const(0, total.dtype))
    return ops.div(total, divisor_value)


# Sums ---------------------------------------------------------------------------------------------


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return dtypes.compute_dtype(dtype)


@rule("aten.sum", "aten.sum.dim_IntList")
def _sum(ctx: Context, x: Tensor, dims: Any = None, keep: Any = False, *_: Any) -> Tensor:
    if ctx.op == "aten.sum":
        dims, keep = None, False
    axes = dim_list(dims, x.rank)
    total = reduce_tensor(ctx, x, axes, "add", _accumulator(ctx.dtype))
    return kept_dims(ctx, x, total, axes, keep)


@rule("aten.nansum")
def _nansum(ctx: Context, x: Tensor, dims: Any, keep: bool, _: Any) -> Tensor:
    axes = dim_list(dims, x.rank)

    def body(s: Scalar) -> Scalar:
        return ctx.ops.select(ctx.ops.is_nan(s), ctx.ops.const(0, s.dtype), s)

    total = reduce_tensor(ctx, x, axes, "add", _accumulator(ctx.dtype), body)
    return kept_dims(ctx, x, total, axes, keep)


@rule("aten.mean", "aten.mean.dim")
def _mean(ctx: Context, x: Tensor, dims: Any = None, keep: Any = False, *_: Any) -> Tensor:
    if ctx.op == "aten.mean":
        dims, keep = None, False
    axes = dim_list(dims, x.rank)
    return kept_dims(ctx, x, mean(ctx, x, axes), axes, keep)


def mean(ctx: Context, x: Tensor, axes: Sequence[int]) -> Tensor:
    """The mean over `axes`, which go away, in the accumulator's dtype."""
    inner = _accumulator(ctx.dtype if dtypes.is_float(ctx.dtype) else x.dtype)
    count = count_of(ctx, x, axes)
    if len(axes) > 1 and ctx.builder.ranges(()).is_nonnegative(count - 1):
        return mean_of_images(ctx, x, axes, inner)
    total = reduce_tensor(ctx, x, axes, "add", inner)
    return ctx.builder.pointwise(lambda s: divided_by_count(ctx, s, count), [total], inner)


def mean_of_images(ctx: Context, x: Tensor, axes: Sequence[int], inner: torch.dtype) -> Tensor:
    """The mean over several dims, of which none is empty, in one loop: a sum of parts.

    A division of the sum would be a kernel of its own where channels are last, as it is no row.
    """
    ops, count = ctx.ops, count_of(ctx, x, axes)

    def part(s: Scalar) -> Scalar:
        number = ops.from_index(ops.index_expr(count), inner)
        return ops.mul(s, ops.div(ops.const(1, inner), number))

    return reduce_tensor(ctx, x, axes, "add", inner, part)


@rule("aten.prod", "aten.prod.dim_int")
def _prod(ctx: Context, x: Tensor, dim: Any = None, keep: Any = False, *_: Any) -> Tensor:
    if ctx.op == "aten.prod":
        dim, keep = None, False
    axes = dim_list(dim, x.rank)
    return kept_dims(
        ctx, x, reduce_tensor(ctx, x, axes, "mul", _accumulator(ctx.dtype)), axes, keep
    )


# Extremes -----------------------------------------------------------------------------------------


def _extreme(ctx: Context, x: Tensor, kind: Kind, axes: Sequence[int], keep: bool) -> Tensor:
    if x.dtype is torch.bool:
        kind = "or" if kind == "max" else "and"
    elif dtypes.is_unsigned(x.dtype):
        # The loop's max and min compare with sign.
        wide = reduce_tensor(ctx, x, axes, kind, torch.int32)
        return kept_dims(ctx, x, wide, axes, keep)
    return kept_dims(ctx, x, reduce_tensor(ctx, x, axes, kind, x.dtype), axes, keep)


@rule("aten.amax", "aten.max")
def _amax(ctx: Context, x: Tensor, dims: Any = None, keep: bool = False) -> Tensor:
    return _extreme(ctx, x, "max", dim_list(dims, x.rank), keep)


@rule("aten.amin", "aten.min")
def _amin(ctx: Context, x: Tensor, dims: Any = None, keep: bool = False) -> Tensor:
    return _extreme(ctx, x, "min", dim_list(dims, x.rank), keep)


@rule("aten.aminmax")
def _aminmax(ctx: Context, x: Tensor, dim: Any, keep: bool) -> list[Tensor]:
    axes = dim_list(dim, x.rank)
    return [_extreme(ctx, x, "min", axes, keep), _extreme(ctx, x, "max", axes, keep)]


def _position(ctx: Context, x: Tensor, best: Tensor, axis: int) -> Tensor:
    """The first index along a dim at which `x` is `best` (both NaN counts), as int64."""
    ops = ctx.ops
    reads = [
        Read(x, tuple(Expr.dim(i) for i in range(x.rank))),
        row_read(x.rank, [axis], best),
    ]

    def body(s: Scalar, b: Scalar) -> Scalar:
        same = ops.compare("eq", s, b)
        if dtypes.is_float(s.dtype):
            same = ops.logical_or(same, ops.is_nan(s))
        here = ops.from_index(ops.loop_index(axis), torch.int64)
        return ops.select(same, here, ops.const(torch.iinfo(torch.int64).max, torch.int64))

    return reduce(ctx, body, reads, x.shape, [axis], "min", torch.int64)


def _argument(ctx: Context, x: Tensor, kind: Kind, dim: Any, keep: bool) -> Tensor:
    if x.rank == 0:
        return ctx.builder.splat((), torch.int64, 0)
    if dim is None:
        flat = ctx.builder.reshape(x, [product(x.shape)])
        index = _argument(ctx, flat, kind, 0, False)
        return with_unit_dims(ctx, index, x.rank, range(x.rank)) if keep else index
    axis = dim_index(dim, x.rank)
    x = _comparable(ctx, x)
    index = _position(ctx, x, reduce_tensor(ctx, x, [axis], kind, x.dtype), axis)
    return with_unit_dims(ctx, index, x.rank, [axis]) if keep else index


def _comparable(ctx: Context, x: Tensor) -> Tensor:
    """`x` in a dtype whose order the loop's max and min know: with a sign."""
    return ctx.cast(x, torch.int32) if dtypes.is_unsigned(x.dtype) else x


@rule("aten.argmax")
def _argmax(ctx: Context, x: Tensor, dim: Any, keep: bool) -> Tensor:
    return _argument(ctx, x, "max", dim, keep)


@rule("aten.argmin")
def _argmin(ctx: Context, x: Tensor, dim: Any, keep: bool) -> Tensor:
    return _argument(ctx, x, "min", dim, keep)


@rule("aten.max.dim", "aten.min.dim")
def _max_dim(ctx: Context, x: Tensor, dim: int, keep: bool) -> list[Tensor]:
    kind: Kind = "max" if ctx.op == "aten.max.dim" else "min"
    if x.rank == 0:
        return [x, ctx.builder.splat((), torch.int64, 0)]
    found = extreme_with_place(ctx, x, kind, dim_index(dim, x.rank))
    if keep:
        return [with_unit_dims(ctx, t, x.rank, [dim_index(dim, x.rank)]) for t in found]
    return found


def extreme_with_place(ctx: Context, x: Tensor, kind: Kind, axis: int) -> list[Tensor]:
    """The extremum over a dim, which goes away, and the place of the first one."""
    wide = _comparable(ctx, x)
    best = reduce_tensor(ctx, wide, [axis], kind, wide.dtype)
    return [ctx.cast(best, x.dtype), _position(ctx, wide, best, axis)]


# Truth --------------------------------------------------------------------------------------------


def _truth(ctx: Context, x: Tensor, kind: Kind, dims: Any, keep: bool) -> Tensor:
    axes = dim_list(dims, x.rank)
    result = reduce_tensor(ctx, x, axes, kind, torch.bool)
    return kept_dims(ctx, x, result, axes, keep)


@rule("aten.any", "aten.any.dim", "aten.any.dims")
def _any(ctx: Context, x: Tensor, dims: Any = None, keep: bool = False) -> Tensor:
    return _truth(ctx, x, "or", dims, keep)


@rule("aten.all", "aten.all.dim", "aten.all.dims")
def _all(ctx: Context, x: Tensor, dims: Any = None, keep: bool = False) -> Tensor:
    return _truth(ctx, x, "and", dims, keep)


# Spread -------------------------------------------------------------------------------------------


def variance(
    ctx: Context, x: Tensor, axes: Sequence[int], correction: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance over `axes`, which go away, both in the accumulator's dtype."""
    average = mean(ctx, x, axes)
    inner = average.dtype
    reads = [
        Read(x, tuple(Expr.dim(i) for i in range(x.rank))),
        row_read(x.rank, axes, average),
    ]

    def square(s: Scalar, m: Scalar) -> Scalar:
        off = ctx.ops.sub(ctx.ops.cast(s, inner), m)
        return ctx.ops.mul(off, off)

    total = reduce(ctx, square, reads, x.shape, axes, "add", inner)
    count = count_of(ctx, x, axes)
    spread = ctx.builder.pointwise(
        lambda s: divided_by_count(ctx, s, count, correction), [total], inner
    )
    return average, spread


def _correction(value: Any) -> float:
    if isinstance(value, bool):
        return 1.0 if value else 0.0
    return 1.0 if value is None else float(value)


def _spread(ctx: Context, x: Tensor, operands: Sequence[Any], *, root: bool) -> list[Tensor]:
    """[variance or deviation, mean] for the var and std operators' operands."""
    if ctx.op.endswith((".correction", ".dim")):
        dims, correction, keep = operands
    else:
        (correction,) = operands
        dims, keep = None, False
    axes = dim_list(dims, x.rank)
    average, spread = variance(ctx, x, axes, _correction(correction))
    if root:
        spread = ctx.builder.pointwise(
            lambda s: ctx.ops.math("math.sqrt", s), [spread], spread.dtype
        )
    return [kept_dims(ctx, x, t, axes, keep) for t in (spread, average)]


@rule("aten.var", "aten.var.dim", "aten.var.correction")
def _var(ctx: Context, x: Tensor, *operands: Any) -> Tensor:
    return _spread(ctx, x, operands, root=False)[0]


@rule("aten.std", "aten.std.dim", "aten.std.correction")
def _std(ctx: Context, x: Tensor, *operands: Any) -> Tensor:
    return _spread(ctx, x, operands, root=True)[0]


@rule("aten.var_mean", "aten.var_mean.dim", "aten.var_mean.correction")
def _var_mean(ctx: Context, x: Tensor, *operands: Any) -> list[Tensor]:
    return _spread(ctx, x, operands, root=False)


@rule("aten.std_mean", "aten.std_mean.dim", "aten.std_mean.correction")
def _std_mean(ctx: Context, x: Tensor, *operands: Any) -> list[Tensor]:
    return _spread(ctx, x, operands, root=True)


# Norms of vectors ---------------------------------------------------------------------------------


@rule("aten.linalg_vector_norm")
def _vector_norm(ctx: Context, x: Tensor, order: Any, dims: Any, keep: bool, _: Any) -> Tensor:
    axes = dim_list(dims, x.rank)
    inner = _accumulator(ctx.dtype)
    ops = ctx.ops
    if order in (math.inf, -math.inf):
        kind: Kind = "max" if order > 0 else "min"
        return kept_dims(ctx, x, reduce_tensor(ctx, x, axes, kind, inner, ops.abs), axes, keep)
    if order == 0:
        raise UnsupportedCaseError("of order 0")
    if order == 2:
        total = reduce_tensor(ctx, x, axes, "add", inner, lambda s: ops.mul(s, s))
        norm = ctx.builder.pointwise(lambda s: ops.math("math.sqrt", s), [total], inner)
    elif order == 1:
        norm = reduce_tensor(ctx, x, axes, "add", inner, ops.abs)
    else:
        powered = reduce_tensor(ctx, x, axes, "add", inner, lambda s: _power(ctx, s, order))
        norm = ctx.builder.pointwise(lambda s: _power(ctx, s, 1 / order), [powered], inner)
    return kept_dims(ctx, x, norm, axes, keep)


def _power(ctx: Context, s: Scalar, order: float) -> Scalar:
    """|s| to a power."""
    return ctx.ops.math("math.powf", ctx.ops.abs(s), ctx.ops.const(order, s.dtype))


@rule("aten.logsumexp")
def _logsumexp(ctx: Context, x: Tensor, dims: Any, keep: bool) -> Tensor:
    axes = dim_list(dims, x.rank)
    inner = _accumulator(ctx.dtype)
    ops = ctx.ops
    best = reduce_tensor(ctx, x, axes, "max", inner)
    # An infinite maximum would give inf - inf.
    shift = ctx.builder.pointwise(
        lambda s: ops.select(ops.is_inf(s), ops.const(0, inner), s), [best], inner
    )
    reads = [Read(x, tuple(Expr.dim(i) for i in range(x.rank))), row_read(x.rank, axes, shift)]

    def body(s: Scalar, m: Scalar) -> Scalar:
        return ops.math("math.exp", ops.sub(ops.cast(s, inner), m))

    total = reduce(ctx, body, reads, x.shape, axes, "add", inner)
    result = ctx.builder.pointwise(
        lambda t, m: ops.add(ops.math("math.log", t), m), [total, shift], inner
    )
    return kept_dims(ctx, x, result, axes, keep)


@rule("aten.count_nonzero", "aten.count_nonzero.dim_IntList")
def _count_nonzero(ctx: Context, x: Tensor, dims: Any = None) -> Tensor:
    axes = dim_list(dims, x.rank)
    if isinstance(x.content, Splat):
        x = ctx.cast(x, torch.bool)

    def body(s: Scalar) -> Scalar:
        return ctx.ops.cast(ctx.ops.cast(s, torch.bool), torch.int64)

    read = Read(x, tuple(Expr.dim(i) for i in range(x.rank)))
    return reduce(ctx, body, [read], x.shape, axes, "add", torch.int64)
