# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""exp of numbers that are not positive: what a softmax needs, at half the cost of any exp."""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, math

from shapejit.passes.cpu.indexing import Value
from shapejit.passes.cpu.scalars import constant, fastmath

_LOG2_E = 1.4426950408889634
# Added to a float of magnitude below 2^22 it rounds it to an integer, which the low bits then hold.
_ROUND = 1.5 * 2.0**23
# Below this exp is under the least normal f32; it becomes 0.
_LEAST = -87.0
# 2^f for f in [-1/2, 1/2], relative error below 1e-8: 1 + f * (a minimax fit of (2^f - 1) / f).
_COEFFICIENTS = (
    0.00015453163359779865,
    0.0013390863314270973,
    0.009618083015084267,
    0.055503569543361664,
    0.24022650718688965,
    0.6931471824645996,
    1.0,
)


def _multiply_add(lhs: Value, rhs: Value, addend: Value) -> Value:
    """``lhs * rhs + addend``, fused where the CPU can."""
    flags = fastmath("contract")
    return arith.addf(arith.mulf(lhs, rhs, fastmath=flags), addend, fastmath=flags)


def exp_nonpositive(x: Value) -> Value:
    """exp(x) for x <= 0, a scalar or vector. exp(-inf) is 0, exp(NaN) is NaN.

    The error is below 1e-7 of exp(0), which is what counts in a sum that holds exp(0): the relative
    error of a small result grows with -x, to 1e-5 at most.
    """
    type_ = x.type
    is_vector = isinstance(type_, ir.VectorType)
    if not isinstance(type_.element_type if is_vector else type_, ir.F32Type):
        return math.exp(x)
    i32 = ir.IntegerType.get_signless(32)
    bits_type = ir.VectorType.get(type_.shape, i32) if is_vector else i32
    magic = constant(type_, _ROUND)
    log2_e = constant(type_, _LOG2_E)
    # x * log2(e) = n + f
    shifted = _multiply_add(x, log2_e, magic)
    n = arith.subf(shifted, magic)
    f = _multiply_add(x, log2_e, arith.negf(n))
    power = constant(type_, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        power = _multiply_add(power, f, constant(type_, coefficient))
    # 2^n has n plus the exponent's bias in its exponent; the bits of _ROUND fall off the end.
    biased = arith.addi(arith.bitcast(bits_type, shifted), constant(bits_type, 127))
    scale = arith.bitcast(type_, arith.shli(biased, constant(bits_type, 23)))
    tiny = arith.cmpf(arith.CmpFPredicate.OLT, x, constant(type_, _LEAST))
    return arith.select(tiny, constant(type_, 0.0), arith.mulf(power, scale))
