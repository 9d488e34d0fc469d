# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Softmax and the normalization layers, as reductions over a row and one pointwise loop.

All are computed in f32 for the 16-bit floats and rounded once at the end, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shapejit.importer import dtypes
from shapejit.importer.builder import Read, Write
from shapejit.importer.context import Context, dim_index
from shapejit.importer.registry import rule
from shapejit.importer.rules.reductions import (
    count_of,
    divided_by_count,
    reduce,
    reduce_tensor,
    row_read,
    variance,
    with_unit_dims,
)
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr, product


def _whole(x: Tensor) -> Read:
    return Read(x, tuple(Expr.dim(i) for i in range(x.rank)))


# Softmax ------------------------------------------------------------------------------------------


def _shifted_exponentials(ctx: Context, x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """The input in the dtype of the computation, its maximum, and sum of exp(x - maximum)."""
    inner = dtypes.compute_dtype(ctx.dtype)
    best = reduce_tensor(ctx, x, [axis], "max", inner)

    def body(s: Scalar, m: Scalar) -> Scalar:
        return ctx.ops.math("math.exp", ctx.ops.sub(ctx.ops.cast(s, inner), m))

    reads = [_whole(x), row_read(x.rank, [axis], best)]
    return x, best, reduce(ctx, body, reads, x.shape, [axis], "add", inner)


@rule("aten.softmax.int", "aten._softmax", "aten._safe_softmax")
def _softmax(ctx: Context, x: Tensor, dim: int, *_: Any) -> Tensor:
    axis = dim_index(dim, x.rank)
    if x.rank == 0:
        return ctx.pointwise(lambda s: ctx.ops.const(1, s.dtype), x)
    x, best, total = _shifted_exponentials(ctx, x, axis)
    ops, inner = ctx.ops, total.dtype

    def body(s: Scalar, m: Scalar, t: Scalar) -> list[Scalar]:
        part = ops.div(ops.math("math.exp", ops.sub(ops.cast(s, inner), m)), t)
        if ctx.op == "aten._safe_softmax":  # a row of -inf gives 0
            empty = ops.logical_and(ops.is_inf(m), ops.compare("lt", m, ops.const(0, inner)))
            part = ops.select(empty, ops.const(0, inner), part)
        return [part]

    rows = [row_read(x.rank, [axis], t) for t in (best, total)]
    write = Write(ctx.dtype, tuple(range(x.rank)))
    return ctx.builder.loop(x.shape, [_whole(x), *rows], body, [write])[0]


@rule("aten.log_softmax.int", "aten._log_softmax")
def _log_softmax(ctx: Context, x: Tensor, dim: int, *_: Any) -> Tensor:
    axis = dim_index(dim, x.rank)
    if x.rank == 0:
        return ctx.pointwise(lambda s: ctx.ops.const(0, s.dtype), x)
    x, best, total = _shifted_exponentials(ctx, x, axis)
    ops, inner = ctx.ops, total.dtype

    def body(s: Scalar, m: Scalar, t: Scalar) -> list[Scalar]:
        return [ops.sub(ops.sub(ops.cast(s, inner), m), ops.math("math.log", t))]

    rows = [row_read(x.rank, [axis], t) for t in (best, total)]
    write = Write(ctx.dtype, tuple(range(x.rank)))
    return ctx.builder.loop(x.shape, [_whole(x), *rows], body, [write])[0]


# Layer norm, RMS norm -----------------------------------------------------------------------------


def _normalized(
    ctx: Context,
    x: Tensor,
    axes: Sequence[int],
    eps: float,
    weight: Read | None,
    bias: Read | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the mean and the variance."""
    average, spread = variance(ctx, x, axes, 0)
    ops, inner = ctx.ops, average.dtype
    reads = [_whole(x), row_read(x.rank, axes, average), row_read(x.rank, axes, spread)]
    reads += [read for read in (weight, bias) if read is not None]

    def body(s: Scalar, m: Scalar, v: Scalar, *affine: Scalar) -> list[Scalar]:
        factors = [ops.cast(a, inner) for a in affine]
        scale = ops.math("math.rsqrt", ops.add(v, ops.const(eps, inner)))
        result = ops.mul(ops.sub(ops.cast(s, inner), m), scale)
        if weight is not None:
            result = ops.mul(result, factors[0])
        return [result if bias is None else ops.add(result, factors[-1])]

    write = Write(x.dtype, tuple(range(x.rank)))
    return ctx.builder.loop(x.shape, reads, body, [write])[0], average, spread


def _trailing(x: Tensor, parameter: Tensor | None) -> Read | None:
    """A parameter of the last dims."""
    if parameter is None:
        return None
    shift = x.rank - parameter.rank
    return Read(parameter, tuple(Expr.dim(shift + i) for i in range(parameter.rank)))


@rule("aten.layer_norm", "aten.native_layer_norm")
def _layer_norm(
    ctx: Context, x: Tensor, sizes: Sequence[Any], weight: Any, bias: Any, eps: float, *_: Any
) -> Any:
    axes = list(range(x.rank - len(sizes), x.rank))
    result, average, spread = _normalized(
        ctx, x, axes, eps, _trailing(x, weight), _trailing(x, bias)
    )
    if ctx.op == "aten.layer_norm":
        return result
    return [result, *_saved_statistics(ctx, x.rank, axes, average, spread, eps)]


def _saved_statistics(
    ctx: Context, rank: int, axes: Sequence[int], average: Tensor, spread: Tensor, eps: float
) -> list[Tensor]:
    """The mean and 1 / sqrt(variance + eps), as the native norms return them."""
    ops = ctx.ops
    scale = ctx.builder.pointwise(
        lambda v: ops.math("math.rsqrt", ops.add(v, ops.const(eps, v.dtype))),
        [spread],
        spread.dtype,
    )
    return [
        with_unit_dims(ctx, ctx.cast(t, dtype), rank, axes)
        for t, dtype in zip((average, scale), ctx.dtypes[1:], strict=True)
    ]


@rule("aten.rms_norm", "aten._fused_rms_norm")
def _rms_norm(ctx: Context, x: Tensor, sizes: Sequence[Any], weight: Any, eps: Any) -> Any:
    axes = list(range(x.rank - len(sizes), x.rank))
    ops, inner = ctx.ops, dtypes.compute_dtype(x.dtype)
    epsilon = torch.finfo(inner).eps if eps is None else eps
    total = reduce_tensor(ctx, x, axes, "add", inner, lambda s: ops.mul(s, s))
    count = count_of(ctx, x, axes)

    def scale_of(s: Scalar) -> Scalar:
        return ops.math(
            "math.rsqrt", ops.add(divided_by_count(ctx, s, count), ops.const(epsilon, inner))
        )

    def body(s: Scalar, t: Scalar, *factor: Scalar) -> list[Scalar]:
        result = ops.mul(ops.cast(s, inner), scale_of(t))
        return [ops.mul(result, ops.cast(factor[0], inner)) if factor else result]

    trailing = _trailing(x, weight)
    reads = [_whole(x), row_read(x.rank, axes, total), *([trailing] if trailing else [])]
    write = Write(ctx.dtypes[0], tuple(range(x.rank)))
    result = ctx.builder.loop(x.shape, reads, body, [write])[0]
    if ctx.op == "aten.rms_norm":
        return result
    saved = ctx.builder.pointwise(scale_of, [total], ctx.dtypes[1])
    return [result, with_unit_dims(ctx, saved, x.rank, axes)]


# Group norm, instance norm, batch norm ------------------------------------------------------------


def _grouped(
    ctx: Context, x: Tensor, groups: Expr, weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm of [n, c, p..], with the mean and variance of each group, [n, groups].

    Pixels are summed by channel and the channels of a group then combined (Chan et al., 1979), so
    that images are read in order whether their channels come first or last.
    """
    batch, channels, *rest = x.shape
    per_group = channels.exact_div(groups) or channels // groups
    if not rest:
        split = ctx.builder.reshape(x, (batch, groups, per_group))
        channel = (Expr.dim(1) * per_group + Expr.dim(2),)
        affine = [None if p is None else Read(p, channel) for p in (weight, bias)]
        result, average, spread = _normalized(ctx, split, [2], eps, *affine)
        return ctx.builder.reshape(result, x.shape), average, spread
    sums = _channel_sums(ctx, x, product(rest))
    shape = (batch, groups, per_group)
    average, spread = _group_statistics(ctx, shape, *sums, product(rest))
    factor, offset = _group_affine(ctx, shape, average, spread, weight, bias, eps)
    by_channel = [ctx.builder.reshape(t, (batch, channels)) for t in (factor, offset)]
    ops, inner = ctx.ops, average.dtype

    def body(s: Scalar, f: Scalar, o: Scalar) -> list[Scalar]:
        return [ops.add(ops.mul(ops.cast(s, inner), f), o)]

    reads = [_whole(x), *(Read(t, (Expr.dim(0), Expr.dim(1))) for t in by_channel)]
    result = ctx.builder.loop(x.shape, reads, body, [Write(x.dtype, tuple(range(x.rank)))])[0]
    return result, average, spread


def _channel_sums(ctx: Context, x: Tensor, pixels: Expr) -> tuple[Tensor, Tensor]:
    """The sums of each channel and of its squared deviations from its mean, [n, c]."""
    axes, inner = list(range(2, x.rank)), dtypes.compute_dtype(x.dtype)
    totals = reduce_tensor(ctx, x, axes, "add", inner)
    ops = ctx.ops

    def square(s: Scalar, t: Scalar) -> Scalar:
        off = ops.sub(ops.cast(s, inner), _per(ctx, t, pixels))
        return ops.mul(off, off)

    reads = [_whole(x), row_read(x.rank, axes, totals)]
    return totals, reduce(ctx, square, reads, x.shape, axes, "add", inner)


def _per(ctx: Context, total: Scalar, count: Expr) -> Scalar:
    """A total over a number of elements. The reciprocal of a size is worked out once."""
    ops = ctx.ops
    number = ops.from_index(ops.index_expr(count), total.dtype)
    return ops.mul(total, ops.div(ops.const(1, total.dtype), number))


def _group_statistics(
    ctx: Context, shape: Sequence[Expr], totals: Tensor, squares: Tensor, pixels: Expr
) -> tuple[Tensor, Tensor]:
    """Means and variances of [n, groups] from the sums of channels, `shape` in all."""
    ops, inner, count = ctx.ops, totals.dtype, pixels * shape[2]
    parts = [ctx.builder.reshape(t, shape) for t in (totals, squares)]
    average = reduce_tensor(ctx, parts[0], [2], "add", inner, lambda s: _per(ctx, s, count))

    def square(t: Scalar, q: Scalar, m: Scalar) -> Scalar:
        off = ops.sub(_per(ctx, t, pixels), m)
        number = ops.from_index(ops.index_expr(pixels), inner)
        return _per(ctx, ops.add(q, ops.mul(number, ops.mul(off, off))), count)

    reads = [*map(_whole, parts), row_read(3, [2], average)]
    return average, reduce(ctx, square, reads, shape, [2], "add", inner)


def _group_affine(
    ctx: Context,
    shape: Sequence[Expr],
    average: Tensor,
    spread: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> list[Tensor]:
    """What each channel is multiplied by and what is then added, over [n, groups, channels]."""
    channel = (Expr.dim(1) * shape[2] + Expr.dim(2),)
    statistics = [row_read(3, [2], average), row_read(3, [2], spread)]
    return _affine(ctx, shape, statistics, channel, weight, bias, eps, average.dtype)


def _affine(
    ctx: Context,
    shape: Sequence[Expr],
    statistics: Sequence[Read],
    channel: tuple[Expr, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    inner: torch.dtype,
) -> list[Tensor]:
    """What a value is multiplied by and what is then added to normalize it, over `shape`.

    Args:
        shape: what mean and variance, and the channels, are numbered by.
        statistics: mean and variance.
        channel: where weight and bias are read.
        weight, bias, eps: of the layer.
        inner: the dtype of the computation.
    """
    ops = ctx.ops
    reads = [*statistics]
    reads += [Read(parameter, channel) for parameter in (weight, bias) if parameter is not None]

    def body(m: Scalar, v: Scalar, *affine: Scalar) -> list[Scalar]:
        m, v, *factors = (ops.cast(value, inner) for value in (m, v, *affine))
        factor = ops.math("math.rsqrt", ops.add(v, ops.const(eps, inner)))
        if weight is not None:
            factor = ops.mul(factor, factors[0])
        offset = ops.neg(ops.mul(m, factor))
        return [factor, offset if bias is None else ops.add(factors[-1], offset)]

    return ctx.builder.loop(shape, reads, body, [Write(inner, tuple(range(len(shape))))] * 2)


@rule("aten.group_norm")
def _group_norm(
    ctx: Context, x: Tensor, groups: int, weight: Any, bias: Any, eps: float, _: Any
) -> Tensor:
    return _grouped(ctx, x, Expr.const(groups), weight, bias, eps)[0]


@rule("aten.native_group_norm")
def _native_group_norm(
    ctx: Context,
    x: Tensor,
    weight: Any,
    bias: Any,
    batch: Any,
    channels: Any,
    area: Any,
    groups: int,
    eps: float,
) -> list[Tensor]:
    result, average, spread = _grouped(ctx, x, Expr.const(groups), weight, bias, eps)
    return [result, *_saved_statistics(ctx, 2, [], average, spread, eps)]


@rule("aten.instance_norm")
def _instance_norm(
    ctx: Context, x: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, *rest: Any
) -> Tensor:
    use_input_stats, _, eps, _ = rest
    if not use_input_stats:
        return _channel_norm(ctx, x, weight, bias, running_mean, running_var, eps)
    return _grouped(ctx, x, x.shape[1], weight, bias, eps)[0]


def _channel_norm(
    ctx: Context, x: Tensor, weight: Any, bias: Any, average: Tensor, spread: Tensor, eps: float
) -> Tensor:
    """Normalization by stored statistics of each channel.

    A factor and an offset a channel, as torch computes it on a CPU: they depend on weights alone,
    so that they are there when calls begin (`shapejit-hoist-weights`).
    """
    ops, inner = ctx.ops, dtypes.compute_dtype(x.dtype)
    channel = (Expr.dim(0),)
    statistics = [Read(average, channel), Read(spread, channel)]
    shape = average.shape
    affine = _affine(ctx, shape, statistics, channel, weight, bias, eps, inner)

    def body(s: Scalar, factor: Scalar, offset: Scalar) -> list[Scalar]:
        return [ops.add(ops.mul(ops.cast(s, inner), factor), offset)]

    reads = [_whole(x), *(Read(each, (Expr.dim(1),)) for each in affine)]
    return ctx.builder.loop(x.shape, reads, body, [Write(x.dtype, tuple(range(x.rank)))])[0]


@rule("aten.batch_norm")
def _batch_norm(
    ctx: Context, x: Tensor, weight: Any, bias: Any, average: Tensor, spread: Tensor, *rest: Any
) -> Tensor:
    return _channel_norm(ctx, x, weight, bias, average, spread, rest[2])


@rule("aten._native_batch_norm_legit_no_training")
def _native_batch_norm(
    ctx: Context, x: Tensor, weight: Any, bias: Any, average: Tensor, spread: Tensor, *rest: Any
) -> list[Tensor]:
    """The norm, and saved statistics, which torch gives on GPUs; on CPUs they are empty."""
    eps = rest[1]
    result = _channel_norm(ctx, x, weight, bias, average, spread, eps)
    if ctx.shapes[1] == (0,):
        return [result, *(ctx.builder.splat([Expr.const(0)], kind, 0) for kind in ctx.dtypes[1:])]
    return [result, *_saved_statistics(ctx, 1, [], average, spread, eps)]
