# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Elementary functions of f32 in epilogues: fast, but as good as their results need.

`tanh.approx` has 11 bits: fewer than what is added to its result afterwards needs, so these build
on `ex2.approx` alone. The polynomials are minimax fits (Lawson's iteration at Chebyshev points in
40 digits). Relative errors, rounding included:

    exp     3e-7        erf     2e-7        tanh    3e-7
    expm1   4e-7        log     3e-7        log1p   4e-7

Where the result of the epilogue has 16 bits, some are shorter, with subnormal numbers as 0. Errors,
against 4e-3 of bf16 and 5e-4 of f16:

    exp     2e-7 + 9e-8 * abs(x), relative
    1 + erf     3e-7, absolute; 0 from below -9 on
    gelu    2e-7 times the argument, absolute
    1 + tanh    5e-7, relative
    division    2e-7, relative; 0 by more than 2^126

All keep NaN, and infinite arguments have their limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir.dialects import arith

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import Value, constant, f32, i32

_LOG2_E = 1.4426950408889634
# log2(e) is a sum of two f32; so is x * log2(e), which loses nothing for large x.
_LOG2_E_HIGH = 1.4426950216293335
_LOG2_E_LOW = _LOG2_E - _LOG2_E_HIGH
_LN_2 = 0.6931471805599453
# Beyond these exp is 0 or infinite.
_EXP_RANGE = (-104.0, 89.0)

# erf(x) = x + x * p(x^2) below 1, 1 - 2^q(x) from there to 4, where it rounds to 1.
_ERF_SMALL = (
    0.12837912142276764,
    -0.37612324953079224,
    0.11280179768800735,
    -0.02671131119132042,
    0.004917550832033157,
    -0.0005631418898701668,
)
_ERF_LARGE = (
    -0.003778620157390833,
    -1.6123868227005005,
    -0.9438686370849609,
    -0.1281110793352127,
    0.02139788679778576,
    -0.0016695244703441858,
)
_ERF_SPLIT, _ERF_ONE = 1.0, 4.0

# 1 - erf(x) = 2^(x * p(x)) from 0 on, of absolute error; at 9 it is 0.
_COMPLEMENT = (
    -1.6279250383377075,
    -0.9181654453277588,
    -0.14969943463802338,
    0.030896184965968132,
    -0.0036642788909375668,
    0.0001420431799488142,
)
_COMPLEMENT_END = 9.0
# The same of -x / sqrt(2), from 0 on down.
_GELU_COMPLEMENT = (
    1.1511168479919434,
    -0.4590827226638794,
    0.052926741540431976,
    0.007724046241492033,
    0.0006477591232396662,
    1.7755397493601777e-05,
)
_GELU_END = -12.727922439575195

# tanh(x) = x + x^3 * p(x^2) below 0.6.
_TANH_SMALL = (
    -0.33332598209381104,
    0.13313116133213043,
    -0.05221179127693176,
    0.015612611547112465,
)
_TANH_SPLIT = 0.6

# expm1(x) = x + x^2 * p(x) below 1/2.
_EXPM1_SMALL = (
    0.5000000596046448,
    0.166666641831398,
    0.04166536033153534,
    0.008333578705787659,
    0.0013996177585795522,
    0.00019849807722494006,
)
_EXPM1_SPLIT = 0.5

# log(1 + f) = f + f^2 * p(f) from sqrt(1/2) - 1 to sqrt(2) - 1.
_LOG_SMALL = (
    -0.49999988079071045,
    0.33333325386047363,
    -0.25001585483551025,
    0.20001985132694244,
    -0.16609056293964386,
    0.14181634783744812,
    -0.1324298083782196,
    0.12905502319335938,
    -0.07623060792684555,
)
_LOG1P_SPLIT = 0.25
_ROOT_HALF_BITS = 0x3F3504F3
_FRACTION_BITS = 23
_LEAST_NORMAL = 2.0**-126
# What lifts subnormal numbers to normal ones.
_LIFT = 32


def _number(value: float) -> Value:
    return constant(value, f32())


def _polynomial(argument: Value, coefficients: Sequence[float]) -> Value:
    """The sum of ``coefficients[i] * argument ** i``, by Horner's rule."""
    *rest, total = map(_number, coefficients)
    for coefficient in reversed(rest):
        total = ptx.fused(total, argument, coefficient)
    return total


def _below(argument: Value, bound: float) -> Value:
    return arith.cmpf(arith.CmpFPredicate.OLT, argument, _number(bound))


def exp(argument: Value) -> Value:
    """e to the power of an f32."""
    low, high = map(_number, _EXP_RANGE)
    argument = ptx.minimum(ptx.maximum(argument, low), high)
    factor = _number(_LOG2_E_HIGH)
    power = arith.mulf(argument, factor)
    lost = ptx.fused(argument, factor, arith.negf(power))
    lost = ptx.fused(argument, _number(_LOG2_E_LOW), lost)
    correction = ptx.fused(lost, _number(_LN_2), _number(1.0))
    return arith.mulf(ptx.exp2(power), correction)


def erf(argument: Value) -> Value:
    """The error function."""
    size = ptx.magnitude(argument)
    square = arith.mulf(argument, argument)
    small = ptx.fused(argument, _polynomial(square, _ERF_SMALL), argument)
    complement = ptx.exp2(_polynomial(ptx.minimum(size, _number(_ERF_ONE)), _ERF_LARGE))
    large = ptx.with_sign(arith.subf(_number(1.0), complement), argument)
    return arith.select(_below(size, _ERF_SPLIT), small, large)


def tanh(argument: Value) -> Value:
    """The hyperbolic tangent."""
    size = ptx.magnitude(argument)
    square = arith.mulf(argument, argument)
    cubic = arith.mulf(arith.mulf(argument, square), _polynomial(square, _TANH_SMALL))
    small = arith.addf(argument, cubic)
    growth = ptx.exp2(arith.mulf(size, _number(2 * _LOG2_E)))
    loss = ptx.divide(_number(2.0), arith.addf(growth, _number(1.0)))
    large = ptx.with_sign(arith.subf(_number(1.0), loss), argument)
    return arith.select(_below(size, _TANH_SPLIT), small, large)


def expm1(argument: Value) -> Value:
    """e to the power of an f32, less 1."""
    square = arith.mulf(argument, argument)
    small = ptx.fused(square, _polynomial(argument, _EXPM1_SMALL), argument)
    large = arith.subf(exp(argument), _number(1.0))
    return arith.select(_below(ptx.magnitude(argument), _EXPM1_SPLIT), small, large)


def _log_near_one(excess: Value) -> Value:
    """The logarithm of ``1 + excess``, for an excess from -0.29 to 0.41."""
    square = arith.mulf(excess, excess)
    return ptx.fused(square, _polynomial(excess, _LOG_SMALL), excess)


def log(argument: Value) -> Value:
    """The natural logarithm: -inf of 0, NaN of less."""
    tiny = _below(argument, _LEAST_NORMAL)
    lifted = arith.select(tiny, arith.mulf(argument, _number(2.0**_LIFT)), argument)
    bits = arith.bitcast(i32(), lifted)
    shift = constant(_FRACTION_BITS)
    # The exponent that leaves a factor from sqrt(1/2) to sqrt(2).
    exponent = arith.shrsi(arith.subi(bits, constant(_ROOT_HALF_BITS)), shift)
    factor = arith.bitcast(f32(), arith.subi(bits, arith.shli(exponent, shift)))
    exponent = arith.sitofp(f32(), exponent)
    lowered = arith.subf(exponent, _number(float(_LIFT)))
    exponent = arith.select(tiny, lowered, exponent)
    result = _log_near_one(arith.subf(factor, _number(1.0)))
    result = ptx.fused(exponent, _number(_LN_2), result)
    zero, infinity = _number(0.0), _number(float("inf"))
    predicates = arith.CmpFPredicate
    # Greater than 0 and not infinite, or else what remains: infinite and NaN stay as they are.
    finite = arith.cmpf(predicates.OLT, argument, infinity)
    result = arith.select(finite, result, argument)
    is_zero = arith.cmpf(predicates.OEQ, argument, zero)
    result = arith.select(is_zero, _number(-float("inf")), result)
    negative = arith.cmpf(predicates.OLT, argument, zero)
    return arith.select(negative, _number(float("nan")), result)


def log2(argument: Value) -> Value:
    """The logarithm to base 2."""
    return arith.mulf(log(argument), _number(_LOG2_E))


def log1p(argument: Value) -> Value:
    """The logarithm of 1 more than an f32."""
    large = log(arith.addf(argument, _number(1.0)))
    near = _below(ptx.magnitude(argument), _LOG1P_SPLIT)
    return arith.select(near, _log_near_one(argument), large)


# Shorter forms ------------------------------------------------------------------------------------


def exp_short(argument: Value) -> Value:
    """e to the power of an f32."""
    return ptx.exp2_flushed(arith.mulf(argument, _number(_LOG2_E)))


def divide_short(numerator: Value, denominator: Value) -> Value:
    """A quotient."""
    return arith.mulf(numerator, ptx.reciprocal_flushed(denominator))


def one_plus_erf(argument: Value) -> Value:
    """1 more than the error function, without the cancellation for negative arguments."""
    size = ptx.minimum(ptx.magnitude(argument), _number(_COMPLEMENT_END))
    power = arith.mulf(size, _polynomial(size, _COMPLEMENT))
    complement = ptx.exp2_flushed(power)
    above = arith.subf(_number(2.0), complement)
    return arith.select(_below(argument, 0.0), complement, above)


def gelu(argument: Value) -> Value:
    """x / 2 * (1 + erf(x / sqrt(2))), which is max(x, 0) - |x| / 2 * (1 - erf(|x| / sqrt(2)))."""
    below = ptx.maximum(ptx.minus_magnitude(argument), _number(_GELU_END))
    power = ptx.fused(below, _polynomial(below, _GELU_COMPLEMENT), _number(-1.0))
    above = ptx.maximum(argument, _number(0.0))
    return ptx.fused(below, ptx.exp2_flushed(power), above)


def one_plus_tanh(argument: Value) -> Value:
    """1 more than the hyperbolic tangent, likewise."""
    decay = ptx.exp2_flushed(arith.mulf(argument, _number(-2 * _LOG2_E)))
    return divide_short(_number(2.0), arith.addf(decay, _number(1.0)))
