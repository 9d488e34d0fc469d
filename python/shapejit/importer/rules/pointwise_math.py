# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Elementary functions and activations, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from shapejit.importer import dtypes
from shapejit.importer.context import Context, UnsupportedCaseError
from shapejit.importer.registry import rule
from shapejit.importer.scalar_ops import Scalar, ScalarOps
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr

_MATH: Final = {
    "aten.acos": "math.acos",
    "aten.acosh": "math.acosh",
    "aten.asin": "math.asin",
    "aten.asinh": "math.asinh",
    "aten.atan": "math.atan",
    "aten.atanh": "math.atanh",
    "aten.cos": "math.cos",
    "aten.cosh": "math.cosh",
    "aten.erf": "math.erf",
    "aten.erfc": "math.erfc",
    "aten.exp": "math.exp",
    "aten.exp2": "math.exp2",
    "aten.expm1": "math.expm1",
    "aten.log": "math.log",
    "aten.log10": "math.log10",
    "aten.log1p": "math.log1p",
    "aten.log2": "math.log2",
    "aten.rsqrt": "math.rsqrt",
    "aten.sin": "math.sin",
    "aten.sinh": "math.sinh",
    "aten.sqrt": "math.sqrt",
    "aten.tan": "math.tan",
    "aten.tanh": "math.tanh",
}
"""Functions that the math dialect has."""

_ROUNDINGS: Final = {
    "aten.ceil": "math.ceil",
    "aten.floor": "math.floor",
    "aten.round": "math.roundeven",
    "aten.trunc": "math.trunc",
}


@rule(*_MATH)
def _function(ctx: Context, x: Tensor) -> Tensor:
    name = _MATH[ctx.op]
    return ctx.pointwise(lambda s: ctx.ops.math(name, s), x)


@rule(*_ROUNDINGS)
def _rounding(ctx: Context, x: Tensor) -> Tensor:
    name = _ROUNDINGS[ctx.op]
    return ctx.pointwise(lambda s: ctx.ops.rounded(name, s), x)


@rule("aten.round.decimals")
def _round_decimals(ctx: Context, x: Tensor, decimals: int) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        ten = ops.const(10.0 ** abs(decimals), s.dtype)
        if decimals < 0:
            return ops.mul(ops.math("math.roundeven", ops.div(s, ten)), ten)
        return ops.div(ops.math("math.roundeven", ops.mul(s, ten)), ten)

    return ctx.pointwise(body, x)


@rule("aten.frac")
def _frac(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(lambda s: ctx.ops.sub(s, ctx.ops.math("math.trunc", s)), x)


@rule("aten.reciprocal")
def _reciprocal(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(lambda s: ctx.ops.div(ctx.ops.const(1, s.dtype), s), x)


@rule("aten.sign", "aten.sgn")
def _sign(ctx: Context, x: Tensor) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        zero, one = ops.const(0, s.dtype), ops.const(1, s.dtype)
        if dtypes.is_unsigned(s.dtype):
            return ops.select(ops.compare("ne", s, zero), one, zero)
        negative = ops.select(ops.compare("lt", s, zero), ops.const(-1, s.dtype), zero)
        return ops.select(ops.compare("gt", s, zero), one, negative)

    return ctx.pointwise(body, x)


@rule("aten.signbit")
def _signbit(ctx: Context, x: Tensor) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        if dtypes.is_float(s.dtype):
            s = ops.math("math.copysign", ops.const(1, s.dtype), s)
        return ops.compare("lt", s, ops.const(0, s.dtype))

    return ctx.pointwise(body, x, compute=x.dtype)


@rule("aten.atan2")
def _atan2(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    return ctx.pointwise(lambda a, b: ctx.ops.math("math.atan2", a, b), x, y)


@rule("aten.copysign.Tensor", "aten.copysign.Scalar")
def _copysign(ctx: Context, x: Tensor, y: Any) -> Tensor:
    return ctx.pointwise(lambda a, b: ctx.ops.math("math.copysign", a, b), x, y)


@rule("aten.hypot")
def _hypot(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    def body(a: Scalar, b: Scalar) -> Scalar:
        # Scaled by the greater, so that squares do not overflow.
        ops = ctx.ops
        a, b = ops.abs(a), ops.abs(b)
        infinite = ops.logical_or(ops.is_inf(a), ops.is_inf(b))
        large, small = ops.maximum(a, b), ops.minimum(a, b)
        zero = ops.const(0, a.dtype)
        ratio = ops.select(ops.compare("eq", large, zero), zero, ops.div(small, large))
        one = ops.const(1, a.dtype)
        length = ops.mul(large, ops.math("math.sqrt", ops.add(one, ops.mul(ratio, ratio))))
        return ops.select(infinite, ops.const(math.inf, a.dtype), length)

    return ctx.pointwise(body, x, y)


@rule("aten.logaddexp")
def _logaddexp(ctx: Context, x: Tensor, y: Tensor) -> Tensor:
    def body(a: Scalar, b: Scalar) -> Scalar:
        ops = ctx.ops
        large = ops.maximum(a, b)
        spread = ops.neg(ops.abs(ops.sub(a, b)))
        total = ops.add(large, ops.math("math.log1p", ops.math("math.exp", spread)))
        same_infinity = ops.logical_and(ops.is_inf(a), ops.compare("eq", a, b))
        return ops.select(same_infinity, a, total)

    return ctx.pointwise(body, x, y)


@rule("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self")
def _xlogy(ctx: Context, x: Any, y: Any) -> Tensor:
    def body(a: Scalar, b: Scalar) -> Scalar:
        ops = ctx.ops
        zero = ops.const(0, a.dtype)
        product = ops.mul(a, ops.math("math.log", b))
        product = ops.select(ops.compare("eq", a, zero), zero, product)
        return ops.select(ops.is_nan(b), b, product)

    return ctx.pointwise(body, x, y)


# Powers -------------------------------------------------------------------------------------------


@rule("aten.pow.Tensor_Scalar")
def _pow_scalar(ctx: Context, x: Tensor, exponent: Any) -> Tensor:
    ops = ctx.ops
    special: dict[Any, Callable[[Scalar], Scalar]] = {
        0.5: lambda s: ops.math("math.sqrt", s),
        -0.5: lambda s: ops.math("math.rsqrt", s),
        -1: lambda s: ops.div(ops.const(1, s.dtype), s),
        -2: lambda s: ops.div(ops.const(1, s.dtype), ops.mul(s, s)),
    }
    if isinstance(exponent, Expr):
        return _pow(ctx, x, exponent)
    if dtypes.is_float(ctx.dtype) and exponent in special:
        return ctx.pointwise(special[exponent], x)
    whole = int(exponent) if float(exponent).is_integer() else None
    if whole is not None and (0 <= whole <= 4 or (whole >= 0 and not dtypes.is_float(ctx.dtype))):
        return ctx.pointwise(lambda s: ops.power(s, whole), x)
    return _pow(ctx, x, exponent)


@rule("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(ctx: Context, x: Any, y: Any) -> Tensor:
    if dtypes.is_float(ctx.dtype):
        return ctx.pointwise(lambda a, b: ctx.ops.math("math.powf", a, b), x, y)
    return ctx.pointwise(ctx.ops.int_power, x, y)


# Activations --------------------------------------------------------------------------------------


@rule("aten.relu")
def _relu(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(lambda s: ctx.ops.maximum(s, ctx.ops.const(0, s.dtype)), x)


@rule("aten.relu6")
def _relu6(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(lambda s: _clamped(ctx.ops, s, 0, 6), x)


@rule("aten.hardtanh")
def _hardtanh(ctx: Context, x: Tensor, low: Any, high: Any) -> Tensor:
    return ctx.pointwise(lambda s: _clamped(ctx.ops, s, low, high), x)


def _clamped(ops: ScalarOps, s: Scalar, low: float, high: float) -> Scalar:
    return ops.minimum(ops.maximum(s, ops.const(low, s.dtype)), ops.const(high, s.dtype))


@rule("aten.sigmoid")
def _sigmoid(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(ctx.ops.sigmoid, x)


@rule("aten.silu")
def _silu(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(lambda s: ctx.ops.mul(s, ctx.ops.sigmoid(s)), x)


@rule("aten.hardsigmoid")
def _hardsigmoid(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(lambda s: _hard_gate(ctx.ops, s), x)


@rule("aten.hardswish")
def _hardswish(ctx: Context, x: Tensor) -> Tensor:
    return ctx.pointwise(lambda s: ctx.ops.mul(s, _hard_gate(ctx.ops, s)), x)


def _hard_gate(ops: ScalarOps, s: Scalar) -> Scalar:
    """clamp(s + 3, 0, 6) / 6."""
    return ops.div(_clamped(ops, ops.add(s, ops.const(3, s.dtype)), 0, 6), ops.const(6, s.dtype))


@rule("aten.gelu")
def _gelu(ctx: Context, x: Tensor, approximate: str) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        one, half = ops.const(1, s.dtype), ops.const(0.5, s.dtype)
        if approximate == "tanh":
            cube = ops.mul(ops.mul(s, s), s)
            inner = ops.add(s, ops.mul(ops.const(0.044715, s.dtype), cube))
            gate = ops.math("math.tanh", ops.mul(ops.const(math.sqrt(2 / math.pi), s.dtype), inner))
        else:
            gate = ops.math("math.erf", ops.mul(s, ops.const(math.sqrt(0.5), s.dtype)))
        return ops.mul(ops.mul(s, half), ops.add(one, gate))

    return ctx.pointwise(body, x)


@rule("aten.elu")
def _elu(ctx: Context, x: Tensor, alpha: Any, scale: Any, input_scale: Any) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        scaled = ops.mul(s, ops.const(input_scale, s.dtype))
        below = ops.mul(ops.math("math.expm1", scaled), ops.const(alpha * scale, s.dtype))
        above = ops.mul(s, ops.const(scale, s.dtype))
        return ops.select(ops.compare("gt", s, ops.const(0, s.dtype)), above, below)

    return ctx.pointwise(body, x)


@rule("aten.selu")
def _selu(ctx: Context, x: Tensor) -> Tensor:
    return _elu(ctx, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1)


@rule("aten.celu")
def _celu(ctx: Context, x: Tensor, alpha: Any) -> Tensor:
    return _elu(ctx, x, alpha, 1, 1 / alpha)


@rule("aten.leaky_relu")
def _leaky_relu(ctx: Context, x: Tensor, slope: Any) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        below = ops.mul(s, ops.const(slope, s.dtype))
        return ops.select(ops.compare("gt", s, ops.const(0, s.dtype)), s, below)

    return ctx.pointwise(body, x)


@rule("aten.rrelu")
def _random_leaky_relu(
    ctx: Context, x: Tensor, lower: Any, upper: Any, training: bool, _: Any
) -> Tensor:
    """Outside of training the slope is the mean of its bounds."""
    if training:
        raise UnsupportedCaseError("in training mode")
    return _leaky_relu(ctx, x, (lower + upper) / 2)


@rule("aten.prelu", "aten._prelu_kernel")
def _prelu(ctx: Context, x: Tensor, weight: Tensor) -> Tensor:
    if ctx.op == "aten.prelu" and weight.rank and weight.shape[0] != 1:
        shape = [Expr.const(1)] * x.rank
        shape[1 if x.rank > 1 else 0] = weight.shape[0]
        weight = ctx.builder.reshape(weight, shape)

    def body(s: Scalar, w: Scalar) -> Scalar:
        ops = ctx.ops
        return ops.select(ops.compare("gt", s, ops.const(0, s.dtype)), s, ops.mul(s, w))

    return ctx.pointwise(body, x, weight)


@rule("aten.softplus")
def _softplus(ctx: Context, x: Tensor, beta: Any, threshold: Any) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        scaled = ops.mul(s, ops.const(beta, s.dtype))
        soft = ops.div(
            ops.math("math.log1p", ops.math("math.exp", scaled)), ops.const(beta, s.dtype)
        )
        return ops.select(ops.compare("gt", scaled, ops.const(threshold, s.dtype)), s, soft)

    return ctx.pointwise(body, x)


@rule("aten.mish")
def _mish(ctx: Context, x: Tensor) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        return ops.mul(s, ops.math("math.tanh", _stable_softplus(ops, s)))

    return ctx.pointwise(body, x)


@rule("aten.log_sigmoid", "aten.log_sigmoid_forward")
def _log_sigmoid(ctx: Context, x: Tensor) -> Any:
    result = ctx.pointwise(lambda s: ctx.ops.neg(_stable_softplus(ctx.ops, ctx.ops.neg(s))), x)
    if ctx.op == "aten.log_sigmoid":
        return result
    empty = ctx.builder.splat([Expr.const(0)], x.dtype, 0)
    return [result, empty]


def _stable_softplus(ops: ScalarOps, s: Scalar) -> Scalar:
    """log(1 + exp(s)) without overflow: max(s, 0) + log1p(exp(-|s|))."""
    tail = ops.math("math.log1p", ops.math("math.exp", ops.neg(ops.abs(s))))
    return ops.add(ops.maximum(s, ops.const(0, s.dtype)), tail)


@rule("aten.softshrink", "aten.hardshrink")
def _shrink(ctx: Context, x: Tensor, lambd: Any) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        zero, limit = ops.const(0, s.dtype), ops.const(lambd, s.dtype)
        if ctx.op == "aten.hardshrink":
            inside = ops.compare("le", ops.abs(s), limit)
            return ops.select(inside, zero, s)
        above = ops.select(ops.compare("gt", s, limit), ops.sub(s, limit), ops.mul(s, zero))
        return ops.select(ops.compare("lt", s, ops.neg(limit)), ops.add(s, limit), above)

    return ctx.pointwise(body, x)


@rule("aten.logit")
def _logit(ctx: Context, x: Tensor, eps: Any) -> Tensor:
    def body(s: Scalar) -> Scalar:
        ops = ctx.ops
        if eps is not None:
            s = _clamped(ops, s, eps, 1 - eps)
        return ops.math("math.log", ops.div(s, ops.sub(ops.const(1, s.dtype), s)))

    return ctx.pointwise(body, x)


@rule("aten.glu")
def _glu(ctx: Context, x: Tensor, dim: int) -> Tensor:
    axis = dim % x.rank
    half = x.shape[axis].exact_div(2)
    if half is None:
        raise UnsupportedCaseError("halves a size that is not known to be even")
    shape = (*x.shape[:axis], half, *x.shape[axis + 1 :])
    identity = [Expr.dim(i) for i in range(x.rank)]
    upper = list(identity)
    upper[axis] = Expr.dim(axis) + half
    parts = [ctx.builder.view(x, shape, indices) for indices in (identity, upper)]
    return ctx.pointwise(lambda a, b: ctx.ops.mul(a, ctx.ops.sigmoid(b)), *parts)
