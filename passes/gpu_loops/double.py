# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Elementary functions in f64, on the multiprocessors' units for it.

They serve f64, and those functions of f32 that are too rare for a form of their own: on the GPUs
that there is code for, an f64 operation takes twice as long as an f32 one. The polynomials are
minimax fits (Remez' exchange in 50 digits). Relative errors in f64, rounding included:

    exp, exp2, expm1        4e-16       log, log1p, log2, log10     6e-16
    sinh, cosh, tanh        1e-15       sqrt                        1e-16

The functions under "of f32 only" have errors below 1e-10, which rounding to f32 hides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Type,
    Value,
    constant,
    i64,
    repeat_while,
)

_LN_2 = math.log(2)
# ln(2) as a sum of two f64, the first with 21 zeros at its end: its multiples are exact.
_LN_2_HIGH = 0.6931471803691238
_LN_2_LOW = 1.9082149292705877e-10
_LOG2_E = 1 / _LN_2
# Beyond these exp is 0 or infinite.
_EXP_LOW, _EXP_HIGH = -746.0, 710.0

# exp(r) = 1 + r + r^2 * p(r) up to ln(2) / 2.
_EXP = (
    0.5,
    0.16666666666666685,
    0.04166666666666673,
    0.008333333333315377,
    0.0013888888888856153,
    0.00019841269900456638,
    2.4801587377832847e-05,
    2.7557230819433642e-06,
    2.755723011479991e-07,
    2.5113437373211754e-08,
    2.0927888091756922e-09,
)
# expm1(x) = x + x^2 * p(x) below 1/2.
_EXPM1 = (
    0.5,
    0.16666666666666666,
    0.04166666666666706,
    0.00833333333333344,
    0.0013888888888704525,
    0.00019841269840966685,
    2.4801587616171584e-05,
    2.755731959846695e-06,
    2.75570766249342e-07,
    2.5051880767963344e-08,
    2.0962957614893424e-09,
    1.6126088325214566e-10,
)
_EXPM1_SPLIT = 0.5
# log(1 + f) = 2 s + s^3 * p(s^2), s = f / (2 + f), for 1 + f from sqrt(1/2) to sqrt(2).
_LOG = (
    0.6666666666666666,
    0.4000000000000089,
    0.2857142857079561,
    0.22222222393410282,
    0.18181795469122614,
    0.1538624854103321,
    0.13268546918452326,
    0.13088898195049814,
)
# sinh(x) = x + x^3 * p(x^2) below 1.
_SINH = (
    0.16666666666666666,
    0.008333333333333299,
    0.00019841269841324244,
    2.7557319191363147e-06,
    2.5052117699457036e-08,
    1.6057679311873416e-10,
    7.746188894387561e-13,
)

_FRACTION_BITS = 52
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_LEAST_NORMAL = 2.0**-1022
# What lifts subnormal numbers to normal ones.
_LIFT = 64

_Predicates = arith.CmpFPredicate


def f64() -> Type:
    return ir.F64Type.get()


def number(value: float) -> Value:
    """A constant."""
    return constant(value, f64())


def _asm(text: str, *operands: Value) -> Value:
    constraints = ",".join(["=d", *["d"] * len(operands)])
    return ptx.assembly(f64(), text, constraints, operands, pure=True)


def fused(lhs: Value, rhs: Value, addend: Value) -> Value:
    """``lhs * rhs + addend``, rounded once."""
    return _asm("fma.rn.f64 $0, $1, $2, $3;", lhs, rhs, addend)


def magnitude(argument: Value) -> Value:
    """The absolute value."""
    return _asm("abs.f64 $0, $1;", argument)


def with_sign(argument: Value, sign: Value) -> Value:
    """A number with the sign of another."""
    return _asm("copysign.f64 $0, $1, $2;", sign, argument)


def rounded(argument: Value, mode: str) -> Value:
    """Rounded to an integer: ``rn`` nearest even, ``rz`` to zero, ``rm`` down, ``rp`` up."""
    return _asm(f"cvt.{mode}i.f64.f64 $0, $1;", argument)


def square_root(argument: Value) -> Value:
    """The square root, rounded to nearest."""
    return _asm("sqrt.rn.f64 $0, $1;", argument)


def reciprocal_root(argument: Value) -> Value:
    """1 / sqrt."""
    return arith.divf(number(1.0), square_root(argument))


def is_below(argument: Value, bound: float) -> Value:
    """``argument < bound``; false for NaN."""
    return arith.cmpf(_Predicates.OLT, argument, number(bound))


def _is(lhs: Value, rhs: Value) -> Value:
    return arith.cmpf(_Predicates.OEQ, lhs, rhs)


def _choose(condition: Value, then: Value, otherwise: Value) -> Value:
    return arith.select(condition, then, otherwise)


def polynomial(argument: Value, coefficients: Sequence[float]) -> Value:
    """The sum of ``coefficients[i] * argument ** i``, by Horner's rule."""
    *rest, total = map(number, coefficients)
    for coefficient in reversed(rest):
        total = fused(total, argument, coefficient)
    return total


# Exponentials and logarithms ----------------------------------------------------------------------


def _power_of_two(exponent: Value) -> Value:
    """2 to the power of an i64 from -1022 to 1023."""
    biased = arith.addi(exponent, constant(1023, i64()))
    return arith.bitcast(f64(), arith.shli(biased, constant(_FRACTION_BITS, i64())))


def _scaled(mantissa: Value, exponent: Value) -> Value:
    """``mantissa * 2 ** exponent`` of a whole f64 exponent, in two steps: it may be subnormal."""
    whole = arith.fptosi(i64(), exponent)
    half = arith.shrsi(whole, constant(1, i64()))
    scaled = arith.mulf(mantissa, _power_of_two(half))
    return arith.mulf(scaled, _power_of_two(arith.subi(whole, half)))


def _limited(argument: Value, low: float, high: float) -> Value:
    """The argument within limits; NaN stays."""
    argument = _choose(is_below(argument, low), number(low), argument)
    above = arith.cmpf(_Predicates.OGT, argument, number(high))
    return _choose(above, number(high), argument)


def _exp_of(rest: Value, exponent: Value) -> Value:
    """``exp(rest) * 2 ** exponent``."""
    tail = fused(arith.mulf(rest, rest), polynomial(rest, _EXP), rest)
    return _scaled(arith.addf(number(1.0), tail), exponent)


def exp(argument: Value) -> Value:
    """e to the power of a number."""
    limited = _limited(argument, _EXP_LOW, _EXP_HIGH)
    exponent = rounded(arith.mulf(limited, number(_LOG2_E)), "rn")
    rest = fused(exponent, number(-_LN_2_HIGH), limited)
    rest = fused(exponent, number(-_LN_2_LOW), rest)
    return _exp_of(rest, exponent)


def exp2(argument: Value) -> Value:
    """2 to the power of a number."""
    limited = _limited(argument, -1076.0, 1025.0)
    exponent = rounded(limited, "rn")
    return _exp_of(arith.mulf(arith.subf(limited, exponent), number(_LN_2)), exponent)


def expm1(argument: Value) -> Value:
    """e to the power of a number, less 1."""
    square = arith.mulf(argument, argument)
    small = fused(square, polynomial(argument, _EXPM1), argument)
    large = arith.subf(exp(argument), number(1.0))
    return _choose(is_below(magnitude(argument), _EXPM1_SPLIT), small, large)


def _exponent_and_log(argument: Value) -> tuple[Value, Value]:
    """(k, l) with ``log(argument) = k * ln(2) + l``, for positive finite numbers."""
    tiny = is_below(argument, _LEAST_NORMAL)
    lifted = _choose(tiny, arith.mulf(argument, number(2.0**_LIFT)), argument)
    bits, shift = arith.bitcast(i64(), lifted), constant(_FRACTION_BITS, i64())
    exponent = arith.shrsi(arith.subi(bits, constant(_ROOT_HALF_BITS, i64())), shift)
    factor = arith.bitcast(f64(), arith.subi(bits, arith.shli(exponent, shift)))
    whole = arith.sitofp(f64(), exponent)
    whole = _choose(tiny, arith.subf(whole, number(float(_LIFT))), whole)
    excess = arith.subf(factor, number(1.0))
    ratio = arith.divf(excess, arith.addf(number(2.0), excess))
    square = arith.mulf(ratio, ratio)
    # log(1 + f) = f - s * (f - s^2 * p(s^2)), where the rounding of f is 0.
    inner = arith.subf(excess, arith.mulf(square, polynomial(square, _LOG)))
    return whole, arith.subf(excess, arith.mulf(ratio, inner))


def _with_limits(argument: Value, result: Value) -> Value:
    """A logarithm's result, or what it is of 0, of less, of infinity and of NaN."""
    infinity, zero = number(math.inf), number(0.0)
    finite = arith.cmpf(_Predicates.OLT, argument, infinity)
    result = _choose(finite, result, argument)
    result = _choose(_is(argument, zero), number(-math.inf), result)
    return _choose(is_below(argument, 0.0), number(math.nan), result)


def log(argument: Value) -> Value:
    """The natural logarithm: -inf of 0, NaN of less."""
    whole, rest = _exponent_and_log(argument)
    total = fused(whole, number(_LN_2_HIGH), fused(whole, number(_LN_2_LOW), rest))
    return _with_limits(argument, total)


def log2(argument: Value) -> Value:
    """The logarithm to base 2."""
    whole, rest = _exponent_and_log(argument)
    return _with_limits(argument, fused(rest, number(_LOG2_E), whole))


def log10(argument: Value) -> Value:
    """The logarithm to base 10."""
    return arith.mulf(log(argument), number(1 / math.log(10)))


def log1p(argument: Value) -> Value:
    """The logarithm of 1 more than a number."""
    total = arith.addf(argument, number(1.0))
    lost = arith.subf(argument, arith.subf(total, number(1.0)))
    result = arith.addf(log(total), arith.divf(lost, total))
    # Where 1 is added without a rounding there is nothing to correct, maybe inf / inf.
    result = _choose(_is(lost, number(0.0)), log(total), result)
    unchanged = arith.cmpf(_Predicates.OEQ, total, number(1.0))
    result = _choose(unchanged, argument, result)
    infinite = _is(argument, number(math.inf))
    return _choose(infinite, argument, result)


# Hyperbolic functions -----------------------------------------------------------------------------


def _half_powers(argument: Value) -> tuple[Value, Value]:
    """Half of e to the power of the absolute value, and of the negative one."""
    root = exp(arith.mulf(magnitude(argument), number(0.5)))
    growth = arith.mulf(arith.mulf(root, number(0.5)), root)
    return growth, arith.divf(arith.divf(number(0.5), root), root)


def sinh(argument: Value) -> Value:
    """The hyperbolic sine."""
    square = arith.mulf(argument, argument)
    small = fused(arith.mulf(argument, square), polynomial(square, _SINH), argument)
    large = with_sign(arith.subf(*_half_powers(argument)), argument)
    return _choose(is_below(magnitude(argument), 1.0), small, large)


def cosh(argument: Value) -> Value:
    """The hyperbolic cosine."""
    return arith.addf(*_half_powers(argument))


def tanh(argument: Value) -> Value:
    """The hyperbolic tangent."""
    growth = expm1(arith.mulf(magnitude(argument), number(2.0)))
    small = arith.divf(growth, arith.addf(growth, number(2.0)))
    large = arith.subf(number(1.0), arith.divf(number(2.0), arith.addf(growth, number(2.0))))
    result = _choose(is_below(growth, 1.0), small, large)
    return with_sign(result, argument)


# Remainders, of f32 only --------------------------------------------------------------------------


def remainder(dividend: Value, divisor: Value) -> Value:
    """What a division towards zero leaves, exactly; NaN by 0 and of infinity."""
    over, rest = magnitude(divisor), magnitude(dividend)
    is_number = arith.cmpf(_Predicates.OGT, over, number(0.0))
    is_finite = is_below(rest, math.inf)
    rest = _choose(arith.andi(is_number, is_finite), rest, number(math.nan))

    def goes_on(carried: list[Value]) -> Value:
        return arith.cmpf(_Predicates.OGE, carried[0], over)

    # A quotient of more than 53 bits takes several rounds; rounded down, none leaves less than 0.
    with repeat_while([rest], goes_on) as rounds:
        [left] = rounds.carried
        quotient = rounded(_asm("div.rz.f64 $0, $1, $2;", left, over), "rz")
        rounds.next = [fused(arith.negf(quotient), over, left)]
    return with_sign(rounds.results[0], dividend)


def power(base: Value, exponent: Value) -> Value:
    """A number to the power of another, as C's pow."""
    growth = log(magnitude(base))
    scaled = arith.mulf(exponent, growth)
    scaled = _choose(_is(growth, number(0.0)), number(0.0), scaled)  # 1 to the power of infinity
    result = exp(scaled)
    half = arith.mulf(exponent, number(0.5))
    is_whole = _is(exponent, rounded(exponent, "rz"))
    is_even = _is(half, rounded(half, "rz"))
    is_odd = arith.andi(is_whole, arith.xori(is_even, constant(1, ir.IntegerType.get_signless(1))))
    result = _choose(is_odd, with_sign(result, base), result)
    # NaN of negative numbers, but -inf has limits.
    is_negative = arith.andi(
        is_below(base, 0.0), arith.cmpf(_Predicates.OGT, base, number(-math.inf))
    )
    is_real = arith.ori(is_whole, arith.xori(is_negative, constant(1, is_negative.type)))
    unordered = arith.cmpf(_Predicates.UNO, exponent, exponent)
    is_one = _is(base, number(1.0))
    is_real = arith.andi(
        is_real, arith.ori(is_one, arith.xori(unordered, constant(1, unordered.type)))
    )
    result = _choose(is_real, result, number(math.nan))
    return _choose(_is(exponent, number(0.0)), number(1.0), result)
