# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scalar arithmetic in bodies, with torch's semantics on top of `arith` and `math`.

A `Scalar` is an SSA value with its torch dtype, so that signs and bools are known. Operations take
scalars of one dtype (`ScalarOps.cast` converts) and pick the float, integer or bool operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from mlir import ir

from shapejit.importer.dtypes import bits, is_float, is_integer, is_unsigned
from shapejit.importer.values import Affine, Content, Number, Predicate, Splat
from shapejit.symbolic import Expr, to_map

_INT_PREDICATES: Final = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}
_UNSIGNED_PREDICATES: Final = {"eq": 0, "ne": 1, "lt": 6, "le": 7, "gt": 8, "ge": 9}
# Ordered comparisons are false for NaN; "ne" alone is unordered, so true.
_FLOAT_PREDICATES: Final = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13}


@dataclass(frozen=True)
class Scalar:
    """An SSA value of a body and its torch dtype."""

    value: Any
    dtype: torch.dtype


class Types:
    """MLIR element types of torch's dtypes in one context."""

    def __init__(self, context: ir.Context) -> None:
        self.context = context
        with context:
            self.index = ir.IndexType.get()
            self._types: dict[torch.dtype, Any] = {
                torch.float16: ir.F16Type.get(),
                torch.bfloat16: ir.BF16Type.get(),
                torch.float32: ir.F32Type.get(),
                torch.float64: ir.F64Type.get(),
                torch.bool: ir.IntegerType.get_signless(1),
                torch.uint8: ir.IntegerType.get_signless(8),
                torch.int8: ir.IntegerType.get_signless(8),
                torch.int16: ir.IntegerType.get_signless(16),
                torch.int32: ir.IntegerType.get_signless(32),
                torch.int64: ir.IntegerType.get_signless(64),
            }

    def __getitem__(self, dtype: torch.dtype) -> Any:
        return self._types[dtype]


class ScalarOps:
    """Emits scalar operations at the current insertion point.

    Everything goes through `Operation.create` with cached attributes: the generated builders cost
    ten times as much.
    """

    def __init__(self, types: Types) -> None:
        self.types = types
        self._predicates: dict[int, Any] = {}

    # Plumbing -------------------------------------------------------------------------------------

    def op(
        self,
        name: str,
        result: Any,
        operands: Sequence[Any],
        attributes: dict[str, Any] | None = None,
    ) -> Any:
        """One operation with one result."""
        return ir.Operation.create(
            name, results=[result], operands=operands, attributes=attributes or {}
        ).result

    def _same(self, name: str, *operands: Scalar) -> Scalar:
        """An operation whose result has its operands' dtype."""
        first = operands[0]
        return Scalar(
            self.op(name, self.types[first.dtype], [x.value for x in operands]), first.dtype
        )

    # Constants, indices, sizes --------------------------------------------------------------------

    def const(self, value: Number, dtype: torch.dtype) -> Scalar:
        """A constant; ints wrap to the width of `dtype`, as torch's do."""
        kind = self.types[dtype]
        if is_float(dtype):
            attribute = ir.FloatAttr.get(kind, float(value))
        elif dtype is torch.bool:
            attribute = ir.IntegerAttr.get(kind, int(bool(value)))
        else:
            width = bits(dtype)
            wrapped = int(value) & ((1 << width) - 1)
            attribute = ir.IntegerAttr.get(kind, wrapped - (wrapped >> (width - 1) << width))
        return Scalar(self.op("arith.constant", kind, [], {"value": attribute}), dtype)

    def index_const(self, value: int) -> Any:
        """A constant of type index."""
        attribute = ir.IntegerAttr.get(self.types.index, value)
        return self.op("arith.constant", self.types.index, [], {"value": attribute})

    def loop_index(self, dim: int) -> Any:
        """The current index of a loop dim, of type index."""
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        return self.op("shapejit.index", self.types.index, [], {"dim": attribute})

    def index_expr(self, expr: Expr) -> Any:
        """The value of `expr`, whose dims are the loop's, of type index."""
        if not expr.dims():
            if (value := expr.constant) is not None:
                return self.index_const(value)
            size = ir.AffineMapAttr.get(to_map(0, [expr], self.types.context))
            return self.op("shapejit.size", self.types.index, [], {"expr": size})
        return expr.build(_IndexAlgebra(self))

    def content(self, content: Content, dtype: torch.dtype) -> Scalar:
        """The element at the loop's indices of a tensor with known contents."""
        match content:
            case Splat(value):
                return self.const(value, dtype)
            case Affine(expr):
                return self.from_index(self.index_expr(expr), dtype)
            case Predicate(terms):
                checks = [self._nonnegative(term) for term in terms]
                result = checks[0]
                for check in checks[1:]:
                    result = self.logical_and(result, check)
                return result

    def _nonnegative(self, term: Expr) -> Scalar:
        """`term` >= 0, written as positive part >= negative part."""
        positive = Expr.from_terms({m: c for m, c in term.terms if c > 0})
        return self.compare_indices(
            "ge", self.index_expr(positive), self.index_expr(positive - term)
        )

    def index_op(self, name: str, lhs: Any, rhs: Any) -> Any:
        """An `arith` operation on two values of type index."""
        return self.op(name, self.types.index, [lhs, rhs])

    def compare_indices(self, predicate: str, lhs: Any, rhs: Any) -> Scalar:
        """Compares two values of type index, with sign."""
        value = self._compare_values("arith.cmpi", _INT_PREDICATES[predicate], [lhs, rhs])
        return Scalar(value, torch.bool)

    def from_index(self, value: Any, dtype: torch.dtype) -> Scalar:
        """A value of type index as `dtype`."""
        wide = Scalar(self.op("arith.index_cast", self.types[torch.int64], [value]), torch.int64)
        return self.cast(wide, dtype)

    def to_index(self, x: Scalar) -> Any:
        """An integer scalar as a value of type index."""
        wide = self.cast(x, torch.int64)
        return self.op("arith.index_cast", self.types.index, [wide.value])

    # Conversion -----------------------------------------------------------------------------------

    def cast(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        """`x` converted as torch's `to` does."""
        if x.dtype is dtype:
            return x
        if dtype is torch.bool:
            return self.compare("ne", x, self.const(0, x.dtype))
        if is_float(x.dtype):
            return self._cast_float(x, dtype)
        if is_float(dtype):
            name = "arith.uitofp" if is_unsigned(x.dtype) else "arith.sitofp"
            return Scalar(self.op(name, self.types[dtype], [x.value]), dtype)
        return self._cast_int(x, dtype)

    def _cast_float(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        kind = self.types[dtype]
        if not is_float(dtype):
            # Through int64, so that what a narrow type cannot hold wraps, as in torch.
            wide = Scalar(self.op("arith.fptosi", self.types[torch.int64], [x.value]), torch.int64)
            return self._cast_int(wide, dtype)
        if bits(dtype) == bits(x.dtype):
            x = self.cast(x, torch.float32)
        name = "arith.extf" if bits(dtype) > bits(x.dtype) else "arith.truncf"
        return Scalar(self.op(name, kind, [x.value]), dtype)

    def _cast_int(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        if bits(dtype) == bits(x.dtype):
            return Scalar(x.value, dtype)
        if bits(dtype) < bits(x.dtype):
            name = "arith.trunci"
        else:
            name = "arith.extui" if is_unsigned(x.dtype) else "arith.extsi"
        return Scalar(self.op(name, self.types[dtype], [x.value]), dtype)

    # Arithmetic -----------------------------------------------------------------------------------

    def add(self, x: Scalar, y: Scalar) -> Scalar:
        """x + y; "or" of bools."""
        if x.dtype is torch.bool:
            return self._same("arith.ori", x, y)
        return self._same("arith.addf" if is_float(x.dtype) else "arith.addi", x, y)

    def sub(self, x: Scalar, y: Scalar) -> Scalar:
        """x - y."""
        return self._same("arith.subf" if is_float(x.dtype) else "arith.subi", x, y)

    def mul(self, x: Scalar, y: Scalar) -> Scalar:
        """x * y; "and" of bools."""
        if x.dtype is torch.bool:
            return self._same("arith.andi", x, y)
        return self._same("arith.mulf" if is_float(x.dtype) else "arith.muli", x, y)

    def div(self, x: Scalar, y: Scalar) -> Scalar:
        """x / y of floats."""
        return self._same("arith.divf", x, y)

    def neg(self, x: Scalar) -> Scalar:
        """-x."""
        if is_float(x.dtype):
            return self._same("arith.negf", x)
        return self.sub(self.const(0, x.dtype), x)

    def abs(self, x: Scalar) -> Scalar:
        """|x|."""
        if is_unsigned(x.dtype):
            return x
        return self._same("math.absf" if is_float(x.dtype) else "math.absi", x)

    def fmod(self, x: Scalar, y: Scalar) -> Scalar:
        """Remainder with the sign of x. An integer divisor of zero gives some value, no trap."""
        if is_float(x.dtype):
            return self._same("arith.remf", x, y)
        y = self._nonzero(y)
        return self._same("arith.remui" if is_unsigned(x.dtype) else "arith.remsi", x, y)

    def remainder(self, x: Scalar, y: Scalar) -> Scalar:
        """Remainder with the sign of y, as Python's %."""
        rest = self.fmod(x, y)
        if is_unsigned(x.dtype):
            return rest
        return self.select(self._off(rest, y), self.add(rest, y), rest)

    def _off(self, rest: Scalar, y: Scalar) -> Scalar:
        """Whether a remainder of truncated division differs in sign from the divisor."""
        zero = self.const(0, rest.dtype)
        opposed = self.logical_xor(self.compare("lt", rest, zero), self.compare("lt", y, zero))
        return self.logical_and(self.compare("ne", rest, zero), opposed)

    def trunc_div(self, x: Scalar, y: Scalar) -> Scalar:
        """x / y rounded towards zero."""
        if is_float(x.dtype):
            return self.math("math.trunc", self.div(x, y))
        y = self._nonzero(y)
        return self._same("arith.divui" if is_unsigned(x.dtype) else "arith.divsi", x, y)

    def floor_div(self, x: Scalar, y: Scalar) -> Scalar:
        """x / y rounded down, exact for floats as in torch: by the remainder, not the quotient."""
        if is_unsigned(x.dtype):
            return self.trunc_div(x, y)
        one = self.const(1, x.dtype)
        if not is_float(x.dtype):
            quotient = self.trunc_div(x, y)
            rest = self.sub(x, self.mul(quotient, self._nonzero(y)))
            return self.select(self._off(rest, y), self.sub(quotient, one), quotient)
        zero, half = self.const(0, x.dtype), self.const(0.5, x.dtype)
        rest = self.fmod(x, y)
        quotient = self.div(self.sub(x, rest), y)
        quotient = self.select(self._off(rest, y), self.sub(quotient, one), quotient)
        floor = self.math("math.floor", quotient)
        rounded = self.select(
            self.compare("gt", self.sub(quotient, floor), half), self.add(floor, one), floor
        )
        signed_zero = self._same("math.copysign", zero, self.div(x, y))
        rounded = self.select(self.compare("ne", quotient, zero), rounded, signed_zero)
        return self.select(self.compare("eq", y, zero), self.div(x, y), rounded)

    def _nonzero(self, y: Scalar) -> Scalar:
        """The divisor, 1 in place of 0: integer division by zero would end the process."""
        return self.select(self.compare("eq", y, self.const(0, y.dtype)), self.const(1, y.dtype), y)

    def maximum(self, x: Scalar, y: Scalar) -> Scalar:
        """The greater; NaN if either is."""
        return self._same(self._extremum("max", x.dtype, "maximumf"), x, y)

    def minimum(self, x: Scalar, y: Scalar) -> Scalar:
        """The lesser; NaN if either is."""
        return self._same(self._extremum("min", x.dtype, "minimumf"), x, y)

    def fmax(self, x: Scalar, y: Scalar) -> Scalar:
        """The greater; the other one if one is NaN."""
        return self._same(self._extremum("max", x.dtype, "maxnumf"), x, y)

    def fmin(self, x: Scalar, y: Scalar) -> Scalar:
        """The lesser; the other one if one is NaN."""
        return self._same(self._extremum("min", x.dtype, "minnumf"), x, y)

    def _extremum(self, which: str, dtype: torch.dtype, for_floats: str) -> str:
        if is_float(dtype):
            return f"arith.{for_floats}"
        return f"arith.{which}{'ui' if is_unsigned(dtype) else 'si'}"

    def math(self, name: str, *operands: Scalar) -> Scalar:
        """An operation of the `math` dialect on floats."""
        return self._same(name, *operands)

    def rounded(self, name: str, x: Scalar) -> Scalar:
        """A rounding of the `math` dialect; integers are whole already."""
        return self._same(name, x) if is_float(x.dtype) else x

    def power(self, x: Scalar, exponent: int) -> Scalar:
        """x to a constant power >= 0 by repeated squaring."""
        result: Scalar | None = None
        while exponent:
            if exponent & 1:
                result = x if result is None else self.mul(result, x)
            exponent >>= 1
            if exponent:
                x = self.mul(x, x)
        return self.const(1, x.dtype) if result is None else result

    def sigmoid(self, x: Scalar) -> Scalar:
        """1 / (1 + exp(-x))."""
        one = self.const(1, x.dtype)
        return self.div(one, self.add(one, self.math("math.exp", self.neg(x))))

    # Comparison, logic, choice --------------------------------------------------------------------

    def compare(self, predicate: str, x: Scalar, y: Scalar) -> Scalar:
        """x <predicate> y as a bool; NaN is unequal to everything."""
        if is_float(x.dtype):
            value = self._compare_values(
                "arith.cmpf", _FLOAT_PREDICATES[predicate], [x.value, y.value]
            )
        else:
            table = _UNSIGNED_PREDICATES if is_unsigned(x.dtype) else _INT_PREDICATES
            value = self._compare_values("arith.cmpi", table[predicate], [x.value, y.value])
        return Scalar(value, torch.bool)

    def _compare_values(self, name: str, predicate: int, operands: Sequence[Any]) -> Any:
        attribute = self._predicates.get(predicate)
        if attribute is None:
            attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), predicate)
            self._predicates[predicate] = attribute
        return self.op(name, self.types[torch.bool], operands, {"predicate": attribute})

    def is_nan(self, x: Scalar) -> Scalar:
        """Whether x is NaN; integers never are."""
        return self.compare("ne", x, x) if is_float(x.dtype) else self.const(False, torch.bool)

    def is_inf(self, x: Scalar) -> Scalar:
        """Whether x is infinite."""
        if not is_float(x.dtype):
            return self.const(False, torch.bool)
        return self.compare("eq", self.abs(x), self.const(math.inf, x.dtype))

    def select(self, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        """x where the condition holds, else y."""
        return Scalar(
            self.op("arith.select", self.types[x.dtype], [condition.value, x.value, y.value]),
            x.dtype,
        )

    def logical_and(self, x: Scalar, y: Scalar) -> Scalar:
        """Bitwise and."""
        return self._same("arith.andi", x, y)

    def logical_or(self, x: Scalar, y: Scalar) -> Scalar:
        """Bitwise or."""
        return self._same("arith.ori", x, y)

    def logical_xor(self, x: Scalar, y: Scalar) -> Scalar:
        """Bitwise exclusive or."""
        return self._same("arith.xori", x, y)

    def bitwise_not(self, x: Scalar) -> Scalar:
        """All bits flipped."""
        return self.logical_xor(x, self.const(True if x.dtype is torch.bool else -1, x.dtype))

    def shift(self, direction: str, x: Scalar, y: Scalar) -> Scalar:
        """x << y or x >> y ("left", "right"); counts past the width shift everything out."""
        width = self.const(bits(x.dtype), x.dtype)
        in_range = self.logical_and(
            self.compare("lt", y, width), self.compare("ge", y, self.const(0, y.dtype))
        )
        last = self.const(bits(x.dtype) - 1, x.dtype)
        if direction == "left":
            shifted = self._same("arith.shli", x, self.select(in_range, y, last))
            return self.select(in_range, shifted, self.const(0, x.dtype))
        name = "arith.shrui" if is_unsigned(x.dtype) else "arith.shrsi"
        shifted = self._same(name, x, self.select(in_range, y, last))
        if is_unsigned(x.dtype):
            return self.select(in_range, shifted, self.const(0, x.dtype))
        return shifted

    def int_power(self, x: Scalar, y: Scalar) -> Scalar:
        """Integer power of integers, as torch's for non-negative exponents."""
        assert is_integer(x.dtype)
        return self._same("math.ipowi", x, y)


class _IndexAlgebra:
    """Builds index values of expressions over loop dims; see `Algebra`."""

    def __init__(self, ops: ScalarOps) -> None:
        self._ops = ops

    def constant(self, value: int) -> Any:
        return self._ops.index_const(value)

    def symbol(self, index: int) -> Any:
        return self._ops.index_expr(Expr.symbol(index))

    def dim(self, index: int) -> Any:
        return self._ops.loop_index(index)

    def add(self, lhs: Any, rhs: Any) -> Any:
        return self._binary("arith.addi", lhs, rhs)

    def mul(self, lhs: Any, rhs: Any) -> Any:
        return self._binary("arith.muli", lhs, rhs)

    def floordiv(self, lhs: Any, rhs: Any) -> Any:
        return self._binary("arith.floordivsi", lhs, rhs)

    def mod(self, lhs: Any, rhs: Any) -> Any:
        quotient = self.floordiv(lhs, rhs)
        return self._binary("arith.subi", lhs, self.mul(quotient, rhs))

    def _binary(self, name: str, lhs: Any, rhs: Any) -> Any:
        return self._ops.index_op(name, lhs, rhs)
