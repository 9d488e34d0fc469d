# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scalar types and arithmetic of CPU kernels: storage and compute types, reductions, products.

A tensor's element type is stored as `storage_type` and computed in as `compute_type`: bools are
bytes, f16 and bf16 are computed in f32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mlir import ir
from mlir.dialects import arith, vector

from shapejit.passes.cpu.errors import LoweringError
from shapejit.passes.cpu.indexing import Value

Type = Any  # mlir.ir.Type


def is_float(type_: Type) -> bool:
    return isinstance(type_, ir.FloatType)


def is_bool(type_: Type) -> bool:
    return isinstance(type_, ir.IntegerType) and type_.width == 1


def _is_half(type_: Type) -> bool:
    return isinstance(type_, (ir.F16Type, ir.BF16Type))


def compute_type(element: Type) -> Type:
    """The type in which values of a tensor's element type are computed."""
    return ir.F32Type.get(element.context) if _is_half(element) else element


def storage_type(element: Type) -> Type:
    """The type of a tensor's element in memory. bf16 is its bits: LLVM would round with a call into
    a run-time library on most CPUs."""
    if is_bool(element):
        return ir.IntegerType.get_signless(8, element.context)
    if isinstance(element, ir.BF16Type):
        return ir.IntegerType.get_signless(16, element.context)
    return element


def byte_width(element: Type) -> int:
    """Bytes of an element in memory."""
    return max(int(storage_type(element).width), 8) // 8


def constant(type_: Type, value: float | int) -> Value:
    """A constant of a scalar type or, in all lanes, of a vector type."""
    if not isinstance(type_, ir.VectorType):
        return arith.constant(type_, value)
    element = type_.element_type
    kind = ir.FloatAttr if is_float(element) else ir.IntegerAttr
    return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, kind.get(element, value)))


def from_storage(stored: Value, element: Type) -> Value:
    """A loaded value in the compute type of a tensor's element type."""
    if is_bool(element):
        zero = constant(stored.type, 0)
        return arith.cmpi(arith.CmpIPredicate.ne, stored, zero)
    if isinstance(element, ir.F16Type):
        return arith.extf(ir.F32Type.get(), stored)
    if isinstance(element, ir.BF16Type):
        i32 = ir.IntegerType.get_signless(32)
        bits = arith.shli(arith.extui(i32, stored), constant(i32, 16))
        return arith.bitcast(ir.F32Type.get(), bits)
    return stored


def to_storage(value: Value, element: Type) -> Value:
    """The inverse of `from_storage`, rounding to nearest even."""
    if is_bool(element):
        return arith.extui(storage_type(element), value)
    if isinstance(element, ir.F16Type):
        return arith.truncf(element, value)
    if isinstance(element, ir.BF16Type):
        return _bf16_bits(value)
    return value


def _bf16_bits(value: Value) -> Value:
    """f32 to the bits of bf16; NaN stays a (quiet) NaN, which the rounding could make infinite."""
    i32 = ir.IntegerType.get_signless(32)
    bits = arith.bitcast(i32, value)
    high = arith.shrui(bits, constant(i32, 16))
    odd = arith.andi(high, constant(i32, 1))
    rounded = arith.addi(bits, arith.addi(odd, constant(i32, 0x7FFF)))
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    quiet = arith.ori(high, constant(i32, 0x40))
    result = arith.select(is_nan, quiet, arith.shrui(rounded, constant(i32, 16)))
    return arith.trunci(ir.IntegerType.get_signless(16), result)


# Reductions ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _fastmath_text(flags: str) -> str:
    return f"#arith.fastmath<{flags}>"


def fastmath(flags: str) -> Any:
    """The fast-math attribute of the given comma-separated flags."""
    return ir.Attribute.parse(_fastmath_text(flags))


def _float_combine(op: Callable[..., Value], flags: str) -> Callable[[Value, Value], Value]:
    return lambda lhs, rhs: op(lhs, rhs, fastmath=fastmath(flags))


# Sums and products may be reordered (each lane of a vector has its own), and the sign of a zero
# maximum is not kept; NaN and infinity are.
_FLOAT_COMBINES: dict[str, Callable[[Value, Value], Value]] = {
    "add": _float_combine(arith.addf, "reassoc,contract"),
    "mul": _float_combine(arith.mulf, "reassoc,contract"),
    "max": _float_combine(arith.maximumf, "reassoc,nsz"),
    "min": _float_combine(arith.minimumf, "reassoc,nsz"),
}
_INTEGER_COMBINES: dict[str, Callable[[Value, Value], Value]] = {
    "add": arith.addi,
    "mul": arith.muli,
    "max": arith.maxsi,
    "min": arith.minsi,
    "and": arith.andi,
    "or": arith.ori,
}


def combine(kind: str, lhs: Value, rhs: Value) -> Value:
    """One step of the reduction ``kind`` (add, mul, max, min, and, or)."""
    type_ = lhs.type
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    table = _FLOAT_COMBINES if is_float(element) else _INTEGER_COMBINES
    if kind not in table:
        raise LoweringError(f"reduces by {kind!r}, which {element} does not have")
    return table[kind](lhs, rhs)


def identity(kind: str, type_: Type) -> Value:
    """The value of the reduction ``kind`` over nothing."""
    if is_float(type_):
        values = {"add": 0.0, "mul": 1.0, "max": -float("inf"), "min": float("inf")}
        return constant(type_, values[kind])
    top = (1 << (type_.width - 1)) - 1
    integers = {"add": 0, "mul": 1, "max": -top - 1, "min": top, "and": -1, "or": 0}
    return constant(type_, integers[kind])


def multiply_add(lhs: Value, rhs: Value, addend: Value) -> Value:
    """``lhs * rhs + addend`` of vectors, fused where the type has it."""
    if is_float(addend.type.element_type):
        return vector.fma(lhs, rhs, addend)
    return arith.addi(arith.muli(lhs, rhs), addend)
