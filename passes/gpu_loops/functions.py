# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which code computes an op of ``arith`` or ``math`` for a type, where upstream has none.

Upstream's lowering for GPUs calls CUDA's device library for functions of ``math``, which is not
there. f32 is computed with `nvgpu.elementary`, rare functions of it in f64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from mlir import ir
from mlir.dialects import arith

from shapejit.passes.gpu_loops import circular, double
from shapejit.passes.gpu_loops.reduce import extremum
from shapejit.passes.nvgpu import elementary, ptx
from shapejit.passes.nvgpu.builder import Type, Value, compare, constant, f32, select

Function: TypeAlias = Callable[..., Value]


def _in_double(function: Function) -> Function:
    """A function of f64 for f32."""

    def computed(*operands: Value) -> Value:
        return arith.truncf(f32(), function(*(arith.extf(double.f64(), each) for each in operands)))

    return computed


def _one_number(kind: str) -> Function:
    """maxnumf or minnumf: the other one if one is NaN."""

    def computed(lhs: Value, rhs: Value) -> Value:
        predicates = arith.CmpFPredicate
        better = arith.cmpf(predicates.OGT if kind == "max" else predicates.OLT, lhs, rhs)
        is_nan = arith.cmpf(predicates.UNO, rhs, rhs)
        return arith.select(arith.ori(better, is_nan), lhs, rhs)

    return computed


_F32: dict[str, Function] = {
    "arith.maximumf": ptx.maximum,
    "arith.maxnumf": _one_number("max"),
    "arith.minimumf": ptx.minimum,
    "arith.minnumf": _one_number("min"),
    "arith.remf": _in_double(double.remainder),
    "math.absf": ptx.magnitude,
    "math.acos": _in_double(circular.acos),
    "math.acosh": _in_double(circular.acosh),
    "math.asin": _in_double(circular.asin),
    "math.asinh": _in_double(circular.asinh),
    "math.atan": _in_double(circular.atan),
    "math.atan2": _in_double(circular.atan2),
    "math.atanh": _in_double(circular.atanh),
    "math.ceil": lambda number: ptx.rounded(number, "rp"),
    "math.copysign": ptx.with_sign,
    "math.cos": _in_double(circular.cos),
    "math.cosh": _in_double(double.cosh),
    "math.erf": elementary.erf,
    "math.erfc": _in_double(circular.erfc),
    "math.exp": elementary.exp,
    "math.exp2": ptx.exp2,
    "math.expm1": elementary.expm1,
    "math.floor": lambda number: ptx.rounded(number, "rm"),
    "math.fma": ptx.fused,
    "math.log": elementary.log,
    "math.log10": _in_double(double.log10),
    "math.log1p": elementary.log1p,
    "math.log2": elementary.log2,
    "math.powf": _in_double(double.power),
    "math.roundeven": lambda number: ptx.rounded(number, "rn"),
    "math.rsqrt": ptx.reciprocal_root,
    "math.sin": _in_double(circular.sin),
    "math.sinh": _in_double(double.sinh),
    "math.sqrt": ptx.square_root,
    "math.tan": _in_double(circular.tan),
    "math.tanh": elementary.tanh,
    "math.trunc": lambda number: ptx.rounded(number, "rz"),
}

_F64: dict[str, Function] = {
    "arith.maximumf": lambda lhs, rhs: extremum("max", lhs, rhs),
    "arith.maxnumf": _one_number("max"),
    "arith.minimumf": lambda lhs, rhs: extremum("min", lhs, rhs),
    "arith.minnumf": _one_number("min"),
    "math.absf": double.magnitude,
    "math.ceil": lambda number: double.rounded(number, "rp"),
    "math.copysign": double.with_sign,
    "math.cosh": double.cosh,
    "math.exp": double.exp,
    "math.exp2": double.exp2,
    "math.expm1": double.expm1,
    "math.floor": lambda number: double.rounded(number, "rm"),
    "math.fma": double.fused,
    "math.log": double.log,
    "math.log10": double.log10,
    "math.log1p": double.log1p,
    "math.log2": double.log2,
    "math.roundeven": lambda number: double.rounded(number, "rn"),
    "math.rsqrt": double.reciprocal_root,
    "math.sinh": double.sinh,
    "math.sqrt": double.square_root,
    "math.tanh": double.tanh,
    "math.trunc": lambda number: double.rounded(number, "rz"),
}


# Integers -----------------------------------------------------------------------------------------


def _absolute(number: Value) -> Value:
    zero = constant(0, number.type)
    return select(compare("slt", number, 0), arith.subi(zero, number), number)


def _floor_division(dividend: Value, divisor: Value) -> Value:
    quotient = arith.divsi(dividend, divisor)
    rest = arith.subi(dividend, arith.muli(quotient, divisor))
    opposed = compare("slt", arith.xori(rest, divisor), 0)
    inexact = arith.andi(compare("ne", rest, 0), opposed)
    return select(inexact, arith.subi(quotient, constant(1, quotient.type)), quotient)


def _ceiling_division(dividend: Value, divisor: Value) -> Value:
    zero = constant(0, dividend.type)
    return arith.subi(zero, _floor_division(arith.subi(zero, dividend), divisor))


def _integer_power(base: Value, exponent: Value) -> Value:
    """By repeated squaring, for as many steps as the type has bits; 0 for negative exponents, but
    of 1 and -1."""
    bits = int(base.type.width)
    one = constant(1, base.type)
    result, square, left = one, base, exponent
    for bit in range(bits - 1):
        is_odd = compare("ne", arith.andi(left, one), 0)
        result = select(is_odd, arith.muli(result, square), result)
        if bit < bits - 2:
            square = arith.muli(square, square)
            left = arith.shrui(left, one)
    is_odd = compare("ne", arith.andi(exponent, one), 0)
    is_minus_one = compare("eq", base, -1)
    unit = select(arith.andi(is_minus_one, is_odd), base, one)
    is_unit = arith.ori(is_minus_one, compare("eq", base, 1))
    inverse = select(is_unit, unit, constant(0, base.type))
    return select(compare("slt", exponent, 0), inverse, result)


_INTEGERS: dict[str, Function] = {
    "arith.ceildivsi": _ceiling_division,
    "arith.floordivsi": _floor_division,
    "math.absi": _absolute,
    "math.ipowi": _integer_power,
}


def _table(type_: Type) -> dict[str, Function]:
    if isinstance(type_, ir.F32Type):
        return _F32
    return _F64 if isinstance(type_, ir.F64Type) else _INTEGERS


def find(name: str, type_: Type) -> Function | None:
    """What computes an op of operands of a compute type; None if there is nothing special."""
    return _table(type_).get(name)


def known(type_: Type) -> str:
    """The names of the functions that a type has, for messages."""
    names: Any = (name.removeprefix("math.") for name in _table(type_) if name.startswith("math."))
    return ", ".join(sorted(names))
