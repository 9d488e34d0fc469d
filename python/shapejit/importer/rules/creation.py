# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors made from nothing. Where their contents are a formula, nothing is built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from shapejit.importer.builder import Write
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.registry import rule
from shapejit.importer.rules.views import as_expr
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.size_float import SizeFloat
from shapejit.importer.values import Affine, Splat, Tensor
from shapejit.symbolic import Expr


def _filled(ctx: Context, sizes: Sequence[Any], value: Any) -> Tensor:
    shape = [ctx.builder.symbols.maximum(as_expr(size), Expr.const(0)) for size in sizes]
    if isinstance(value, (Tensor, Expr, SizeFloat)):
        return ctx.builder.expand(ctx.cast(ctx.tensor(value), ctx.dtype), shape)
    return ctx.builder.splat(shape, ctx.dtype, value)


@rule("aten.full", "aten.new_full", "aten.full_like")
def _full(ctx: Context, first: Any, second: Any, *rest: Any) -> Tensor:
    if ctx.op == "aten.full":
        return _filled(ctx, first, second)
    if ctx.op == "aten.full_like":
        return _filled(ctx, first.shape, second)
    return _filled(ctx, second, rest[0])


@rule("aten.zeros", "aten.empty.memory_format", "aten.empty")
def _zeros(ctx: Context, sizes: Sequence[Any], *_: Any) -> Tensor:
    return _filled(ctx, sizes, 0)


@rule("aten.ones")
def _ones(ctx: Context, sizes: Sequence[Any], *_: Any) -> Tensor:
    return _filled(ctx, sizes, 1)


@rule("aten.new_zeros", "aten.new_empty")
def _new_zeros(ctx: Context, _: Tensor, sizes: Sequence[Any], *__: Any) -> Tensor:
    return _filled(ctx, sizes, 0)


@rule("aten.new_ones")
def _new_ones(ctx: Context, _: Tensor, sizes: Sequence[Any], *__: Any) -> Tensor:
    return _filled(ctx, sizes, 1)


@rule("aten.zeros_like", "aten.empty_like")
def _zeros_like(ctx: Context, x: Tensor, *_: Any) -> Tensor:
    return _filled(ctx, x.shape, 0)


@rule("aten.ones_like")
def _ones_like(ctx: Context, x: Tensor, *_: Any) -> Tensor:
    return _filled(ctx, x.shape, 1)


@rule("aten.scalar_tensor")
def _scalar_tensor(ctx: Context, value: Any, *_: Any) -> Tensor:
    return _filled(ctx, [], value)


# Ranges -------------------------------------------------------------------------------------------


@rule("aten.arange")
def _arange(ctx: Context, end: Any, *_: Any) -> Tensor:
    return _range(ctx, 0, end, 1)


@rule("aten.arange.start")
def _arange_start(ctx: Context, start: Any, end: Any, *_: Any) -> Tensor:
    return _range(ctx, start, end, 1)


@rule("aten.arange.start_step")
def _arange_step(ctx: Context, start: Any, end: Any, step: Any, *_: Any) -> Tensor:
    return _range(ctx, start, end, step)


def _range(ctx: Context, start: Any, end: Any, step: Any) -> Tensor:
    operands = (start, end, step)
    if all(isinstance(value, (int, Expr)) for value in operands):
        begin = as_expr(start)
        distance, stride = as_expr(end) - begin, step
        if isinstance(stride, Expr):
            raise UnsupportedCaseError("with a step that depends on sizes")
        if stride < 0:
            distance, stride = -distance, -stride
        size = ctx.builder.symbols.maximum(distance.ceildiv(stride), Expr.const(0))
        formula = Affine(begin + Expr.dim(0) * step)
        return ctx.cast(ctx.builder.known((size,), torch.int64, formula), ctx.dtype)
    if any(isinstance(value, (Expr, SizeFloat)) for value in operands):
        raise UnsupportedCaseError("of floats with bounds that depend on sizes")
    return _float_range(ctx, float(start), step, math.ceil((end - start) / step))


def _float_range(ctx: Context, start: float, step: float, count: int) -> Tensor:
    """start + i * step, computed in f64 as torch does on the CPU."""
    ops = ctx.ops

    def body() -> list[Scalar]:
        index = ops.from_index(ops.loop_index(0), torch.float64)
        offset = ops.mul(index, ops.const(step, torch.float64))
        return [ops.add(ops.const(start, torch.float64), offset)]

    return ctx.builder.loop([Expr.const(count)], [], body, [Write(ctx.dtype, (0,))])[0]


@rule("aten.linspace")
def _linspace(ctx: Context, start: Any, end: Any, steps: int, *_: Any) -> Tensor:
    if not all(isinstance(value, (int, float)) for value in (start, end, steps)):
        raise UnsupportedCaseError("with bounds that depend on sizes")
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    return _float_range(ctx, float(start), step, steps)


# Triangles ----------------------------------------------------------------------------------------


@rule("aten.eye", "aten.eye.m")
def _eye(ctx: Context, rows: Any, *rest: Any) -> Tensor:
    columns = as_expr(rest[0]) if ctx.op == "aten.eye.m" else as_expr(rows)
    difference = Expr.dim(0) - Expr.dim(1)
    mask = ctx.builder.predicate([as_expr(rows), columns], [difference, -difference])
    return ctx.cast(mask, ctx.dtype)


@rule("aten.tril")
def _tril(ctx: Context, x: Tensor, diagonal: Any) -> Tensor:
    return _triangle(ctx, x, Expr.dim(x.rank - 2) - Expr.dim(x.rank - 1) + diagonal)


@rule("aten.triu")
def _triu(ctx: Context, x: Tensor, diagonal: Any) -> Tensor:
    return _triangle(ctx, x, Expr.dim(x.rank - 1) - Expr.dim(x.rank - 2) - diagonal)


def _triangle(ctx: Context, x: Tensor, term: Expr) -> Tensor:
    """`x` where the term is >= 0, else 0. A triangle of ones is a mask, and stays a formula."""
    mask = ctx.builder.predicate(x.shape, [term])
    if x.dtype is torch.bool and x.content == Splat(True):
        return mask

    def body(inside: Scalar, value: Scalar) -> Scalar:
        return ctx.ops.select(inside, value, ctx.ops.const(0, x.dtype))

    return ctx.builder.pointwise(body, [mask, x], x.dtype)
