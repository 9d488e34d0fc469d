# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of matrices. Transposes and broadcasts are the operands' maps."""

from __future__ import annotations

from typing import Any

import torch

from shapejit.importer.builder import Read, Write
from shapejit.importer.context import Context
from shapejit.importer.registry import rule
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr

ONE = Expr.const(1)


def matmul(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    """torch.matmul of tensors of rank 2 or more; batch dims broadcast."""
    builder = ctx.builder
    if x.shape[-1] == 1:  # an outer product is pointwise
        return ctx.pointwise(ctx.ops.mul, x, y)
    batch = builder.broadcast(x.shape[:-2], y.shape[:-2])
    rank = len(batch)
    space = (*batch, x.shape[-2], y.shape[-1], x.shape[-1])
    m, n, k = (Expr.dim(rank + i) for i in range(3))
    lhs = Read(x, (*_batch_read(x, batch), m, k))
    rhs = Read(y, (*_batch_read(y, batch), k, n))
    return builder.gemm(space, lhs, rhs, x.dtype)


def _batch_read(x: Tensor, batch: tuple[Expr, ...]) -> list[Expr]:
    shift = len(batch) - (x.rank - 2)
    return [
        Expr.const(0) if size == 1 and batch[shift + i] != 1 else Expr.dim(shift + i)
        for i, size in enumerate(x.shape[:-2])
    ]


@rule("aten.linear")
def _linear(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.rank == 1:
        result = _matmul(ctx, x, weight)
        return result if bias is None else ctx.pointwise(ctx.ops.add, result, bias)
    row = x.rank == 1
    if row:
        x = ctx.builder.reshape(x, (ONE, *x.shape))
    # x is read at (m.., k), the weight at (n, k).
    space = (*x.shape[:-1], weight.shape[0], x.shape[-1])
    rank = len(space)
    lhs = Read(x, (*(Expr.dim(i) for i in range(rank - 2)), Expr.dim(rank - 1)))
    rhs = Read(weight, (Expr.dim(rank - 2), Expr.dim(rank - 1)))
    result = ctx.builder.gemm(space, lhs, rhs, x.dtype)
    if row:
        result = ctx.builder.reshape(result, result.shape[1:])
    return result if bias is None else ctx.pointwise(ctx.ops.add, result, bias)


@rule("aten.matmul", "aten.mm", "aten.bmm")
def _matmul(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    if x.rank == 1 and y.rank == 1:
        return _dot(ctx, x, y)
    left, right = x, y
    if x.rank == 1:
        left = ctx.builder.reshape(x, (ONE, *x.shape))
    if y.rank == 1:
        right = ctx.builder.reshape(y, (*y.shape, ONE))
    result = matmul(ctx, left, right)
    if x.rank == 1:
        return ctx.builder.reshape(result, (*result.shape[:-2], result.shape[-1]))
    return ctx.builder.reshape(result, result.shape[:-1]) if y.rank == 1 else result


@rule("aten._int_mm")
def _int_mm(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return matmul(ctx, ctx.cast(x, torch.int32), ctx.cast(y, torch.int32))


@rule("aten.dot", "aten.vdot", "aten.mv")
def _vector(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return _matmul(ctx, x, y)


def _dot(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    """The product of two vectors is a reduction."""
    reads = [Read(x, (Expr.dim(0),)), Read(y, (Expr.dim(0),))]

    def body(a: Scalar, b: Scalar) -> list[Scalar]:
        return [ctx.ops.mul(a, b)]

    return ctx.builder.loop(x.shape, reads, body, [Write(x.dtype, (), "add")])[0]


@rule("aten.addmm", "aten.baddbmm", "aten.addmv")
def _addmm(ctx: Context, base: Tensor, x: Tensor, y: Tensor, beta: Any, alpha: Any) -> Tensor:
    product = _matmul(ctx, x, y)
    if beta == 0:  # not even NaN of the base shows
        return _scaled(ctx, product, alpha)
    return ctx.pointwise(ctx.ops.add, _scaled(ctx, base, beta), _scaled(ctx, product, alpha))


def _scaled(ctx: Context, x: Tensor, factor: Any) -> Tensor:
    return x if factor == 1 else ctx.pointwise(ctx.ops.mul, x, factor)


@rule("aten.outer", "aten.ger")
def _outer(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    column = ctx.builder.reshape(x, (*x.shape, ONE))
    return ctx.pointwise(ctx.ops.mul, column, y)
