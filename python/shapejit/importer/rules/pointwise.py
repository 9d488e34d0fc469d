# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arithmetic, comparison, logic, selection and conversion, element by element.

Integer arithmetic and comparison of tensors with known contents stay formulas (see `values`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from shapejit.importer import dtypes
from shapejit.importer.context import Context
from shapejit.importer.registry import rule
from shapejit.importer.scalar_ops import Scalar
from shapejit.importer.values import (
    Affine,
    Splat,
    Tensor,
    affine_of,
    substitute,
    terms_of,
)
from shapejit.symbolic import Expr

# Known contents -----------------------------------------------------------------------------------


def _formulas(ctx: Context, *operands: Any) -> tuple[tuple[Expr, ...], list[Expr]] | None:
    """The common shape and the integer formulas of operands that all have one; else None."""
    tensors = [ctx.tensor(operand) for operand in operands]
    if any(dtypes.is_float(t.dtype) or t.dtype is torch.bool for t in tensors):
        return None
    shape = ctx.builder.broadcast(*(t.shape for t in tensors))
    found = []
    for tensor in tensors:
        if tensor.content is None:
            return None
        indices = ctx.builder.broadcast_read(tensor, shape).indices
        formula = affine_of(substitute(tensor.content, indices))
        if formula is None:
            return None
        found.append(formula)
    return shape, found


def _wide(dtype: torch.dtype) -> bool:
    """Whether formulas of sizes and indices cannot overflow."""
    return dtype in (torch.int32, torch.int64)


def _integer(ctx: Context, combine: Callable[[Expr, Expr], Expr], x: Any, y: Any) -> Tensor | None:
    """An integer operation on formulas, if both operands are known."""
    if not _wide(ctx.dtype):
        return None
    known = _formulas(ctx, x, y)
    if known is None:
        return None
    shape, (lhs, rhs) = known
    return ctx.builder.known(shape, ctx.dtype, Affine(combine(lhs, rhs)))


def _known(ctx: Context, combine: Callable[[Any, Any], Any], x: Any, y: Any) -> Tensor | None:
    """An operation on formulas, or on operands that are one value each, done now."""
    if (formula := _integer(ctx, combine, x, y)) is not None:
        return formula
    tensors = [ctx.tensor(x), ctx.tensor(y)]
    values = [t.content.value for t in tensors if isinstance(t.content, Splat)]
    if len(values) != 2 or ctx.dtype is torch.bool:
        return None
    shape = ctx.builder.broadcast(*(t.shape for t in tensors))
    return ctx.builder.splat(shape, ctx.dtype, combine(*values))


# Arithmetic ---------------------------------------------------------------------------------------


def _scaled(ctx: Context, y: Any, alpha: Any) -> Any:
    """alpha * y."""
    if alpha == 1:
        return y
    if isinstance(y, (int, float, Expr)) and not isinstance(y, bool):
        return y * alpha
    formula = _integer(ctx, operator.mul, y, alpha)
    return formula or ctx.pointwise(ctx.ops.mul, y, alpha)


@rule("aten.add.Tensor", "aten.add.Scalar")
def _add(ctx: Context, x: Any, y: Any, alpha: Any) -> Tensor:
    y = _scaled(ctx, y, alpha)
    if isinstance(y, (int, float)) and y == 0 and _unchanged(ctx, x):
        return x  # type: ignore[no-any-return]
    return _known(ctx, operator.add, x, y) or ctx.pointwise(ctx.ops.add, x, y)


@rule("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(ctx: Context, x: Any, y: Any, alpha: Any) -> Tensor:
    return subtract(ctx, x, _scaled(ctx, y, alpha))


def subtract(ctx: Context, x: Any, y: Any) -> Tensor:
    """x - y in torch's dtype of the result."""
    return _known(ctx, operator.sub, x, y) or ctx.pointwise(ctx.ops.sub, x, y)


@rule("aten.rsub.Tensor", "aten.rsub.Scalar")
def _rsub(ctx: Context, x: Any, y: Any, alpha: Any) -> Tensor:
    return _sub(ctx, y, x, alpha)


@rule("aten.mul.Tensor", "aten.mul.Scalar")
def _mul(ctx: Context, x: Any, y: Any) -> Tensor:
    if isinstance(y, (int, float)) and y == 1 and _unchanged(ctx, x):
        return x  # type: ignore[no-any-return]
    return _known(ctx, operator.mul, x, y) or ctx.pointwise(ctx.ops.mul, x, y)


def _unchanged(ctx: Context, x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype is ctx.dtype


@rule("aten.neg")
def _neg(ctx: Context, x: Tensor) -> Tensor:
    return _known(ctx, lambda a, _: -a, x, 0) or ctx.pointwise(ctx.ops.neg, x)


@rule("aten.abs")
def _abs(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.abs, x)


@rule("aten.square")
def _square(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(lambda s: ctx.ops.mul(s, s), x)


@rule("aten.div.Tensor", "aten.div.Scalar")
def _div(ctx: Context, x: Any, y: Any) -> Tensor:
    return ctx.pointwise(ctx.ops.div, x, y)


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(ctx: Context, x: Any, y: Any, mode: str | None) -> Tensor:
    if mode is None:
        return _div(ctx, x, y)
    if mode == "floor":
        return _floor_divide(ctx, x, y)
    return ctx.pointwise(ctx.ops.trunc_div, x, y)


@rule("aten.floor_divide", "aten.floor_divide.Scalar")
def _floor_divide(ctx: Context, x: Any, y: Any) -> Tensor:
    if _is_positive(y) and (known := _integer(ctx, operator.floordiv, x, y)):
        return known
    return ctx.pointwise(ctx.ops.floor_div, x, y)


@rule("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def _remainder(ctx: Context, x: Any, y: Any) -> Tensor:
    if _is_positive(y) and (known := _integer(ctx, operator.mod, x, y)):
        return known
    return ctx.pointwise(ctx.ops.remainder, x, y)


def _is_positive(y: Any) -> bool:
    return isinstance(y, int) and not isinstance(y, bool) and y > 0


@rule("aten.fmod.Tensor", "aten.fmod.Scalar")
def _fmod(ctx: Context, x: Any, y: Any) -> Tensor:
    return ctx.pointwise(ctx.ops.fmod, x, y)


@rule("aten.maximum", "aten.max.other")
def _maximum(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.maximum, x, y)


@rule("aten.minimum", "aten.min.other")
def _minimum(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.minimum, x, y)


@rule("aten.fmax")
def _fmax(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.fmax, x, y)


@rule("aten.fmin")
def _fmin(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.fmin, x, y)


@rule("aten.addcmul")
def _addcmul(ctx: Context, x: Tensor, y: Tensor, z: Tensor, value: Any) -> Tensor:
    def body(a: Scalar, b: Scalar, c: Scalar, v: Scalar) -> Scalar:
        return ctx.ops.add(a, ctx.ops.mul(ctx.ops.mul(v, b), c))

    return ctx.pointwise(body, x, y, z, value)


@rule("aten.addcdiv")
def _addcdiv(ctx: Context, x: Tensor, y: Tensor, z: Tensor, value: Any) -> Tensor:
    def body(a: Scalar, b: Scalar, c: Scalar, v: Scalar) -> Scalar:
        return ctx.ops.add(a, ctx.ops.div(ctx.ops.mul(v, b), c))

    return ctx.pointwise(body, x, y, z, value)


@rule("aten.lerp.Scalar", "aten.lerp.Tensor")
def _lerp(ctx: Context, x: Tensor, y: Tensor, weight: Any) -> Tensor:
    def body(a: Scalar, b: Scalar, w: Scalar) -> Scalar:
        # Two formulas, as in torch: each is exact at its own end.
        ops, step = ctx.ops, ctx.ops.sub(b, a)
        near = ops.add(a, ops.mul(w, step))
        far = ops.sub(b, ops.mul(step, ops.sub(ops.const(1, w.dtype), w)))
        return ops.select(ops.compare("lt", ops.abs(w), ops.const(0.5, w.dtype)), near, far)

    return ctx.pointwise(body, x, y, weight)


# Comparison ---------------------------------------------------------------------------------------

_TERMS: dict[str, Callable[[Expr, Expr], list[Expr]]] = {
    "lt": lambda x, y: [y - x - 1],
    "le": lambda x, y: [y - x],
    "gt": lambda x, y: [x - y - 1],
    "ge": lambda x, y: [x - y],
    "eq": lambda x, y: [x - y, y - x],
}


def _compare(ctx: Context, predicate: str, x: Any, y: Any) -> Tensor:
    known = _formulas(ctx, x, y)
    if known is not None:
        shape, (lhs, rhs) = known
        if predicate in _TERMS:
            return ctx.builder.predicate(shape, _TERMS[predicate](lhs, rhs))
        if (difference := (lhs - rhs).constant) is not None:
            return ctx.builder.splat(shape, torch.bool, difference != 0)
    compute = dtypes.compute_dtype(dtypes.promoted((x, y)))
    return ctx.pointwise(
        lambda a, b: ctx.ops.compare(predicate, a, b), x, y, compute=compute, result=torch.bool
    )


@rule("aten.eq.Tensor", "aten.eq.Scalar")
def _eq(ctx: Context, x: Any, y: Any) -> Tensor:
    return _compare(ctx, "eq", x, y)


@rule("aten.ne.Tensor", "aten.ne.Scalar")
def _ne(ctx: Context, x: Any, y: Any) -> Tensor:
    return _compare(ctx, "ne", x, y)


@rule("aten.lt.Tensor", "aten.lt.Scalar")
def _lt(ctx: Context, x: Any, y: Any) -> Tensor:
    return _compare(ctx, "lt", x, y)


@rule("aten.le.Tensor", "aten.le.Scalar")
def _le(ctx: Context, x: Any, y: Any) -> Tensor:
    return _compare(ctx, "le", x, y)


@rule("aten.gt.Tensor", "aten.gt.Scalar")
def _gt(ctx: Context, x: Any, y: Any) -> Tensor:
    return _compare(ctx, "gt", x, y)


@rule("aten.ge.Tensor", "aten.ge.Scalar")
def _ge(ctx: Context, x: Any, y: Any) -> Tensor:
    return _compare(ctx, "ge", x, y)


@rule("aten.isnan")
def _isnan(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.is_nan, x, compute=x.dtype)


@rule("aten.isinf")
def _isinf(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.is_inf, x, compute=x.dtype)


@rule("aten.isfinite")
def _isfinite(ctx: Context, x: Tensor) -> Tensor:
    def body(s: Scalar) -> Scalar:
        return ctx.ops.bitwise_not(ctx.ops.logical_or(ctx.ops.is_nan(s), ctx.ops.is_inf(s)))

    return ctx.pointwise(body, x, compute=x.dtype)


# Logic and bits -----------------------------------------------------------------------------------


def _conjoined(ctx: Context, x: Any, y: Any) -> Tensor | None:
    """The conjunction of masks: of two known ones, or of one that is true or false everywhere."""
    x, y = ctx.tensor(x), ctx.tensor(y)
    if x.dtype is not torch.bool or y.dtype is not torch.bool:
        return None
    shape = ctx.builder.broadcast(x.shape, y.shape)
    for mask, other in ((x, y), (y, x)):
        if mask.content == Splat(False):
            return ctx.builder.splat(shape, torch.bool, False)
        if mask.content == Splat(True):
            return ctx.builder.expand(other, shape)
    terms: list[Expr] = []
    for mask in (x, y):
        if mask.content is None:
            return None
        indices = ctx.builder.broadcast_read(mask, shape).indices
        terms += terms_of(substitute(mask.content, indices)) or ()
    return ctx.builder.predicate(shape, terms)


@rule(
    "aten.__and__.Tensor",
    "aten.__and__.Scalar",
    "aten.bitwise_and.Tensor",
    "aten.bitwise_and.Scalar",
)
def _and(ctx: Context, x: Any, y: Any) -> Tensor:
    return _conjoined(ctx, x, y) or ctx.pointwise(ctx.ops.logical_and, x, y)


@rule(
    "aten.__or__.Tensor", "aten.__or__.Scalar", "aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar"
)
def _or(ctx: Context, x: Any, y: Any) -> Tensor:
    return ctx.pointwise(ctx.ops.logical_or, x, y)


@rule(
    "aten.__xor__.Tensor",
    "aten.__xor__.Scalar",
    "aten.bitwise_xor.Tensor",
    "aten.bitwise_xor.Scalar",
)
def _xor(ctx: Context, x: Any, y: Any) -> Tensor:
    return ctx.pointwise(ctx.ops.logical_xor, x, y)


@rule("aten.bitwise_not")
def _bitwise_not(ctx: Context, x: Tensor) -> Tensor:
    return _inverted(ctx, x) or ctx.pointwise(ctx.ops.bitwise_not, x)


@rule("aten.logical_not")
def _logical_not(ctx: Context, x: Tensor) -> Tensor:
    return _inverted(ctx, x) or ctx.pointwise(ctx.ops.bitwise_not, x, compute=torch.bool)


def _inverted(ctx: Context, mask: Tensor) -> Tensor | None:
    """The inverse of a mask that is known and has one term."""
    if mask.dtype is not torch.bool or mask.content is None:
        return None
    if isinstance(mask.content, Splat):
        return ctx.builder.splat(mask.shape, torch.bool, not mask.content.value)
    terms = terms_of(mask.content)
    if terms is None or len(terms) != 1:
        return None
    return ctx.builder.predicate(mask.shape, [-1 - terms[0]])


@rule("aten.logical_and")
def _logical_and(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    known = _conjoined(ctx, x, y)
    return known or ctx.pointwise(ctx.ops.logical_and, x, y, compute=torch.bool)


@rule("aten.logical_or")
def _logical_or(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.logical_or, x, y, compute=torch.bool)


@rule("aten.logical_xor")
def _logical_xor(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.logical_xor, x, y, compute=torch.bool)


@rule(
    "aten.__lshift__.Tensor",
    "aten.__lshift__.Scalar",
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
)
def _left_shift(ctx: Context, x: Any, y: Any) -> Tensor:
    return ctx.pointwise(lambda a, b: ctx.ops.shift("left", a, b), x, y)


@rule(
    "aten.__rshift__.Tensor",
    "aten.__rshift__.Scalar",
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
)
def _right_shift(ctx: Context, x: Any, y: Any) -> Tensor:
    return ctx.pointwise(lambda a, b: ctx.ops.shift("right", a, b), x, y)


# Selection ----------------------------------------------------------------------------------------


def _select(ctx: Context, condition: Tensor, x: Any, y: Any) -> Tensor:
    """x where the condition holds, else y; both in torch's dtype of the result."""
    builder = ctx.builder
    x, y = ctx.tensor(x), ctx.tensor(y)
    if isinstance(condition.content, Splat):
        chosen = x if condition.content.value else y
        shape = builder.broadcast(condition.shape, x.shape, y.shape)
        return builder.expand(ctx.cast(chosen, ctx.dtype), shape)

    def body(c: Scalar, a: Scalar, b: Scalar) -> Scalar:
        ops = ctx.ops
        return ops.select(ops.cast(c, torch.bool), ops.cast(a, ctx.dtype), ops.cast(b, ctx.dtype))

    return builder.pointwise(body, [condition, x, y], ctx.dtype)


@rule("aten.where.self", "aten.where.Scalar", "aten.where.ScalarOther", "aten.where.ScalarSelf")
def _where(ctx: Context, condition: Tensor, x: Any, y: Any) -> Tensor:
    return _select(ctx, condition, x, y)


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(ctx: Context, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return _select(ctx, mask, value, x)


@rule("aten.clamp", "aten.clamp.Tensor")
def _clamp(ctx: Context, x: Tensor, low: Any, high: Any) -> Tensor:
    bounds = [bound for bound in (low, high) if bound is not None]

    def body(s: Scalar, *limits: Scalar) -> Scalar:
        if low is not None:
            s = ctx.ops.maximum(s, limits[0])
        return s if high is None else ctx.ops.minimum(s, limits[-1])

    return ctx.pointwise(body, x, *bounds)


@rule("aten.clamp_min", "aten.clamp_min.Tensor")
def _clamp_min(ctx: Context, x: Tensor, low: Any) -> Tensor:
    return _clamp(ctx, x, low, None)


@rule("aten.clamp_max", "aten.clamp_max.Tensor")
def _clamp_max(ctx: Context, x: Tensor, high: Any) -> Tensor:
    return _clamp(ctx, x, None, high)


@rule("aten.threshold")
def _threshold(ctx: Context, x: Tensor, threshold: Any, value: Any) -> Tensor:
    def body(s: Scalar, t: Scalar, v: Scalar) -> Scalar:
        return ctx.ops.select(ctx.ops.compare("le", s, t), v, s)

    return ctx.pointwise(body, x, threshold, value)


@rule("aten.nan_to_num")
def _nan_to_num(ctx: Context, x: Tensor, nan: Any, posinf: Any, neginf: Any) -> Tensor:
    if not dtypes.is_float(x.dtype):
        return x
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf

    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        zero = ops.const(0, s.dtype)
        infinite = ops.select(
            ops.compare("gt", s, zero), ops.const(high, s.dtype), ops.const(low, s.dtype)
        )
        finite = ops.select(ops.is_inf(s), infinite, s)
        return ops.select(ops.is_nan(s), ops.const(nan or 0.0, s.dtype), finite)

    return ctx.pointwise(body, x)


# Conversion ---------------------------------------------------------------------------------------


@rule(
    "aten._to_copy",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten.type_as",
    "prims.convert_element_type",
)
def _convert(ctx: Context, x: Tensor, *_: Any) -> Tensor:
    return ctx.cast(x, ctx.dtype)


@rule(
    "aten.alias",
    "aten.clone",
    "aten.contiguous",
    "aten.detach",
    "aten.detach_",
    "aten.dropout",
    "aten.feature_dropout",
    "aten.alpha_dropout",
    "aten.lift_fresh_copy",
    "aten.positive",
)
def _same(_: Context, x: Tensor, *__: Any) -> Tensor:
    """Copies make no difference to values; dropout in training is refused before import."""
    return x


@rule("aten.native_dropout")
def _native_dropout(ctx: Context, x: Tensor, *_: Any) -> list[Tensor]:
    return [x, ctx.builder.splat(x.shape, torch.bool, True)]


@rule("aten.copy")
def _copy(ctx: Context, x: Tensor, source: Tensor, _: Any) -> Tensor:
    return ctx.builder.expand(ctx.cast(source, ctx.dtype), x.shape)


@rule("aten.fill.Scalar", "aten.fill.Tensor")
def _fill(ctx: Context, x: Tensor, value: Any) -> Tensor:
    return ctx.builder.expand(ctx.cast(ctx.tensor(value), ctx.dtype), x.shape)


@rule("prim.NumToTensor.Scalar")
def _num_to_tensor(ctx: Context, value: Any) -> Tensor:
    return ctx.cast(ctx.tensor(value), ctx.dtype)


@rule("aten.heaviside")
def _heaviside(ctx: Context, x: Tensor, values: Tensor) -> Tensor:
    def body(s: Scalar, v: Scalar) -> Scalar:
        ops = ctx.ops
        zero, one = ops.const(0, s.dtype), ops.const(1, s.dtype)
        step = ops.select(ops.compare("gt", s, zero), one, zero)
        return ops.select(ops.compare("eq", s, zero), v, step)

    return ctx.pointwise(body, x, values)
