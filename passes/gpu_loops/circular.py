# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Circular functions, their inverses and erfc, computed in f64 for f32.

Their errors are below 1e-10, which rounding to f32 hides.
"""

from __future__ import annotations

import math

from mlir.dialects import arith

from shapejit.passes.gpu_loops.double import (
    exp,
    f64,
    fused,
    is_below,
    log1p,
    magnitude,
    number,
    polynomial,
    rounded,
    square_root,
    with_sign,
)
from shapejit.passes.nvgpu.builder import Branches, Value, compare, constant, i32, i64, select

# sin(r) = r + r^3 * p(r^2) and cos(r) = 1 - r^2 / 2 + r^4 * p(r^2) up to pi / 4.
_SIN = (
    -0.166666666666636,
    0.00833333333089514,
    -0.0001984126673937185,
    2.755593764216506e-06,
    -2.4800743778598544e-08,
)
_COS = (
    0.04166666666666447,
    -0.0013888888887145494,
    2.480158508380809e-05,
    -2.7556331545433034e-07,
    2.069709828589962e-09,
)
# atan(x) = x * p(x^2) up to 1.
_ATAN = (
    0.9999999999986602,
    -0.33333333277936417,
    0.19999996195648453,
    -0.14285611018959354,
    0.11109639364533241,
    -0.09078222875135089,
    0.076204231949962,
    -0.06384032125117549,
    0.05081253823479295,
    -0.03575542890994153,
    0.020387362252217184,
    -0.008509688421441742,
    0.0022556257089721148,
    -0.00028084004744538256,
)
# asin(x) = x + x^3 * p(x^2) up to 1/2.
_ASIN = (
    0.1666666666674889,
    0.07499999948125931,
    0.04464291096852639,
    0.030379800302473902,
    0.022414710594702347,
    0.016882993694516783,
    0.016957722006971005,
    0.0008357460716187145,
    0.02857972717438688,
)
# erf(x) = x * p(x^2) up to 1/2.
_ERF = (
    1.1283791670954126,
    -0.3761263889925252,
    0.11283791418408869,
    -0.026866109754535357,
    0.0052232772769997965,
    -0.00085068184717547,
    0.00010823452661391471,
)
# erfc(x) * exp(x^2) * (1 + 2 x) = p((x - 3) / (x + 3)) from 1/2 to where it is 0 in f32.
_ERFC = (
    1.253008058286496,
    -0.13562110542746747,
    -0.047562297517940264,
    0.12964511494170455,
    -0.11927357431899553,
    0.06830881996898452,
    -0.02377133538033391,
    0.0025232665961215112,
    0.0018914168726996163,
    -0.0007574692803657335,
    -0.00010663140119107815,
    8.859040638607569e-05,
)
_ERFC_END = 10.1

# pi / 2 as a sum of two f64.
_HALF_PI = math.pi / 2
_HALF_PI_REST = 6.123233995736766e-17
# Up to here a quotient by pi / 2 fits an i32.
_NEAR = 2.0**30
# The bits of 2 / pi after the point.
_TWO_OVER_PI = (
    0xA2F9836E,
    0x4E441529,
    0xFC2757D1,
    0xF534DDC0,
    0xDB629599,
    0x3C439041,
    0xFE5163AB,
)

_Predicates = arith.CmpFPredicate


def _near(argument: Value) -> tuple[Value, Value]:
    """Quarter turns (i32) and what they leave, f64, for numbers up to `_NEAR`."""
    turns = rounded(arith.mulf(argument, number(2 / math.pi)), "rn")
    rest = fused(turns, number(-_HALF_PI), argument)
    rest = fused(turns, number(-_HALF_PI_REST), rest)
    return arith.fptosi(i32(), turns), rest


def _far(argument: Value) -> tuple[Value, Value]:
    """The same for any f32, given as f64: by as many bits of 2 / pi as it takes.

    The argument is an integer of 24 bits times 2^e. Of 2 / pi, the bits before bit e - 2 make whole
    turns, and the next 96 decide.
    """
    bits = arith.bitcast(i64(), magnitude(argument))
    exponent = arith.trunci(i32(), arith.shrui(bits, constant(52, i64())))
    # An f32 of 24 bits in an f64 of 53: 29 zeros at the end.
    fraction = arith.andi(bits, constant((1 << 52) - 1, i64()))
    mantissa = arith.shrui(arith.ori(fraction, constant(1 << 52, i64())), constant(29, i64()))
    start = arith.subi(exponent, constant(1023 + 23 + 2))
    word, shift = arith.shrui(start, constant(5)), arith.andi(start, constant(31))
    words = [_word_at(word, place) for place in range(4)]
    by = arith.extui(i64(), shift)
    window = [_joined(words[place], words[place + 1], by) for place in range(3)]
    thirty_two, low_half = constant(32, i64()), constant((1 << 32) - 1, i64())
    low = arith.muli(mantissa, window[2])
    middle = arith.addi(arith.muli(mantissa, window[1]), arith.shrui(low, thirty_two))
    high = arith.addi(arith.muli(mantissa, window[0]), arith.shrui(middle, thirty_two))
    turn = arith.ori(arith.shli(high, thirty_two), arith.andi(middle, low_half))
    quarters = arith.trunci(i32(), arith.shrui(turn, constant(62, i64())))
    last = arith.shrui(arith.andi(low, low_half), constant(30, i64()))
    rest = arith.ori(arith.shli(turn, constant(2, i64())), last)
    # Half a quarter or more belongs to the next one.
    quarters = arith.addi(quarters, arith.trunci(i32(), arith.shrui(rest, constant(63, i64()))))
    angle = arith.mulf(arith.sitofp(f64(), rest), number(_HALF_PI * 2.0**-64))
    negative = is_below(argument, 0.0)
    quarters = select(negative, arith.subi(constant(0), quarters), quarters)
    return quarters, select(negative, arith.negf(angle), angle)


def _word_at(first: Value, place: int) -> Value:
    """Word ``first + place`` of 2 / pi as i64; `first` is at most 3."""
    chosen = constant(_TWO_OVER_PI[place + 3], i64())
    for number_ in reversed(range(3)):
        candidate = constant(_TWO_OVER_PI[place + number_], i64())
        chosen = select(compare("eq", first, number_), candidate, chosen)
    return chosen


def _joined(high: Value, low: Value, shift: Value) -> Value:
    """The upper 32 bits of two words, shifted left."""
    both = arith.ori(arith.shli(high, constant(32, i64())), low)
    return arith.shrui(arith.shli(both, shift), constant(32, i64()))


def _turned(argument: Value) -> tuple[Value, Value]:
    """Quarter turns (i32) and what they leave; NaN of infinity."""
    size = magnitude(argument)
    branches = Branches(arith.cmpf(_Predicates.OGT, size, number(_NEAR)), [i32(), f64()])
    with branches.then() as results:
        results += _far(argument)
    with branches.otherwise() as results:
        results += _near(argument)
    quarters, rest = branches.results
    finite = is_below(size, math.inf)
    return quarters, select(finite, rest, number(math.nan))


def _sine_and_cosine(rest: Value) -> tuple[Value, Value]:
    square = arith.mulf(rest, rest)
    sine = fused(arith.mulf(rest, square), polynomial(square, _SIN), rest)
    cosine = fused(square, number(-0.5), number(1.0))
    return sine, fused(arith.mulf(square, square), polynomial(square, _COS), cosine)


def _quarter(quarters: Value, sine: Value, cosine: Value) -> Value:
    """The sine after so many quarter turns."""
    odd = compare("ne", arith.andi(quarters, constant(1)), 0)
    value = select(odd, cosine, sine)
    back = compare("ne", arith.andi(quarters, constant(2)), 0)
    return select(back, arith.negf(value), value)


def sin(argument: Value) -> Value:
    """The sine."""
    quarters, rest = _turned(argument)
    return _quarter(quarters, *_sine_and_cosine(rest))


def cos(argument: Value) -> Value:
    """The cosine."""
    quarters, rest = _turned(argument)
    return _quarter(arith.addi(quarters, constant(1)), *_sine_and_cosine(rest))


def tan(argument: Value) -> Value:
    """The tangent."""
    quarters, rest = _turned(argument)
    sine, cosine = _sine_and_cosine(rest)
    return arith.divf(
        _quarter(quarters, sine, cosine),
        _quarter(arith.addi(quarters, constant(1)), sine, cosine),
    )


# Inverses -----------------------------------------------------------------------------------------


def _atan_up_to_1(argument: Value) -> Value:
    return arith.mulf(argument, polynomial(arith.mulf(argument, argument), _ATAN))


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y)."""
    zero = number(0.0)
    width, height = magnitude(x), magnitude(y)
    steep = arith.cmpf(_Predicates.OGT, height, width)
    less, more = select(steep, width, height), select(steep, height, width)
    ratio = arith.divf(less, more)
    # Both may be infinite, or 0.
    equal = select(arith.cmpf(_Predicates.OEQ, more, zero), zero, number(1.0))
    ratio = select(arith.cmpf(_Predicates.OEQ, less, more), equal, ratio)
    angle = _atan_up_to_1(ratio)
    angle = select(steep, arith.subf(number(_HALF_PI), angle), angle)
    # The sign of -0 counts.
    left = compare("slt", arith.bitcast(i64(), x), 0)
    angle = select(left, arith.subf(number(math.pi), angle), angle)
    return with_sign(angle, y)


def atan(argument: Value) -> Value:
    """The arc tangent."""
    size = magnitude(argument)
    large = arith.cmpf(_Predicates.OGT, size, number(1.0))
    angle = _atan_up_to_1(select(large, arith.divf(number(1.0), size), size))
    angle = select(large, arith.subf(number(_HALF_PI), angle), angle)
    return with_sign(angle, argument)


def _asin_up_to_half(argument: Value) -> Value:
    square = arith.mulf(argument, argument)
    return fused(arith.mulf(argument, square), polynomial(square, _ASIN), argument)


def _acos_from_half(argument: Value) -> Value:
    """The arc cosine of a number from 1/2 on; NaN above 1."""
    half = arith.mulf(arith.subf(number(1.0), argument), number(0.5))
    return arith.mulf(number(2.0), _asin_up_to_half(square_root(half)))


def asin(argument: Value) -> Value:
    """The arc sine."""
    size = magnitude(argument)
    large = arith.subf(number(_HALF_PI), _acos_from_half(size))
    return with_sign(select(is_below(size, 0.5), _asin_up_to_half(size), large), argument)


def acos(argument: Value) -> Value:
    """The arc cosine."""
    size = magnitude(argument)
    large = _acos_from_half(size)
    negative = is_below(argument, 0.0)
    large = select(negative, arith.subf(number(math.pi), large), large)
    small = arith.subf(number(_HALF_PI), _asin_up_to_half(argument))
    return select(is_below(size, 0.5), small, large)


def asinh(argument: Value) -> Value:
    """The inverse of sinh."""
    size = magnitude(argument)
    square = arith.mulf(size, size)
    root = arith.addf(number(1.0), square_root(arith.addf(square, number(1.0))))
    result = log1p(arith.addf(size, arith.divf(square, root)))
    infinite = arith.cmpf(_Predicates.OEQ, size, number(math.inf))
    return with_sign(select(infinite, size, result), argument)


def acosh(argument: Value) -> Value:
    """The inverse of cosh; NaN below 1."""
    excess = arith.subf(argument, number(1.0))
    root = square_root(arith.mulf(excess, arith.addf(excess, number(2.0))))
    return log1p(arith.addf(excess, root))


def atanh(argument: Value) -> Value:
    """The inverse of tanh; NaN beyond 1."""
    size = magnitude(argument)
    ratio = arith.divf(arith.addf(size, size), arith.subf(number(1.0), size))
    return with_sign(arith.mulf(number(0.5), log1p(ratio)), argument)


def erfc(argument: Value) -> Value:
    """1 less the error function, without its cancellation."""
    square = arith.mulf(argument, argument)
    small = arith.subf(number(1.0), arith.mulf(argument, polynomial(square, _ERF)))
    size = magnitude(argument)
    beyond = arith.cmpf(_Predicates.OGT, size, number(_ERFC_END))
    size = select(beyond, number(_ERFC_END), size)
    three = number(3.0)
    place = arith.divf(arith.subf(size, three), arith.addf(size, three))
    tail = exp(arith.negf(arith.mulf(size, size)))
    tail = arith.divf(
        arith.mulf(tail, polynomial(place, _ERFC)), fused(number(2.0), size, number(1.0))
    )
    tail = select(is_below(argument, 0.0), arith.subf(number(2.0), tail), tail)
    return select(is_below(magnitude(argument), 0.5), small, tail)
