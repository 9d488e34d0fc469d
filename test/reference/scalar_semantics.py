# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What scalar operations of `arith` and `math` do, on whole numpy arrays.

Floats are float64, whatever type the IR says; integers have the IR's width and wrap; index is
int64. Each entry takes the operation and its operands' arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlir.ir as ir
import numpy as np
import torch

Semantics = Callable[..., np.ndarray]


def numpy_type(element: Any) -> np.dtype[Any]:
    """The numpy dtype in which values of an MLIR scalar type are held."""
    if isinstance(element, ir.IndexType):
        return np.dtype(np.int64)
    if isinstance(element, ir.IntegerType):
        return np.dtype(np.bool_) if element.width == 1 else np.dtype(f"int{element.width}")
    return np.dtype(np.float64)


def _unsigned(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    return array.view(np.dtype(f"uint{8 * array.dtype.itemsize}"))


def _to_result(op: Any, array: Any) -> np.ndarray:
    """Wraps integers to the result's width; truncation to i1 keeps the lowest bit."""
    kind = numpy_type(op.results[0].type)
    array = np.asarray(array)
    if kind == np.bool_ and array.dtype != np.bool_:
        return (array & 1).astype(np.bool_)
    return array.astype(kind)


def _constant(op: Any) -> np.ndarray:
    attribute = op.attributes["value"]
    value = attribute.value
    kind = numpy_type(op.results[0].type)
    if kind == np.bool_:
        return np.asarray(bool(value))
    return np.asarray(value).astype(kind)


_INT_COMPARE: list[tuple[Semantics, bool]] = [
    (np.equal, False),
    (np.not_equal, False),
    (np.less, False),
    (np.less_equal, False),
    (np.greater, False),
    (np.greater_equal, False),
    (np.less, True),
    (np.less_equal, True),
    (np.greater, True),
    (np.greater_equal, True),
]


def _cmpi(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    compare, unsigned = _INT_COMPARE[ir.IntegerAttr(op.attributes["predicate"]).value]
    if unsigned:
        x, y = _unsigned(x), _unsigned(y)
    return compare(x, y)


def _cmpf(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    predicate = ir.IntegerAttr(op.attributes["predicate"]).value
    unordered = np.isnan(x) | np.isnan(y)
    ordered: dict[int, Semantics] = {
        1: np.equal,
        2: np.greater,
        3: np.greater_equal,
        4: np.less,
        5: np.less_equal,
        6: np.not_equal,
    }
    if predicate in (0, 15):
        return np.full(unordered.shape, predicate == 15)
    if predicate == 7:
        return ~unordered
    if predicate == 14:
        return unordered
    if predicate < 7:
        return ordered[predicate](x, y) & ~unordered
    return ordered[predicate - 7](x, y) | unordered


def _truncated_division(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    quotient = np.abs(x.astype(object)) // np.abs(y.astype(object))
    return np.where((x < 0) != (y < 0), -quotient, quotient)


def _divsi(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _to_result(op, _truncated_division(x, y).astype(np.int64))


def _remsi(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _to_result(op, np.fmod(x, y))


def _unary_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Semantics:
    def apply(_: Any, x: np.ndarray) -> np.ndarray:
        result: np.ndarray = function(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return result

    return apply


def _unary(function: Callable[[np.ndarray], np.ndarray]) -> Semantics:
    return lambda _, x: function(x)


def _binary(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Semantics:
    return lambda op, x, y: _to_result(op, function(x, y))


def _round_even(x: np.ndarray) -> np.ndarray:
    return np.rint(x)


def _round_away(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _float_to_int(op: Any, x: np.ndarray) -> np.ndarray:
    wide = np.where(np.isfinite(x) & (np.abs(x) < 2.0**63), np.trunc(x), 0).astype(np.int64)
    return _to_result(op, wide)


def _power(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    positive = np.power(x, np.maximum(y, 0))
    # x ** -n of integers: 0, unless x is 1 or -1.
    negative = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0))
    return _to_result(op, np.where(y < 0, negative, positive))


def _index_cast(op: Any, x: np.ndarray) -> np.ndarray:
    return _to_result(op, x)


SCALAR_OPS: dict[str, Semantics] = {
    "arith.constant": _constant,
    "arith.addf": _binary(np.add),
    "arith.addi": _binary(np.add),
    "arith.andi": _binary(np.bitwise_and),
    "arith.bitcast": lambda op, x: _to_result(op, x),
    "arith.ceildivsi": _binary(lambda x, y: -(-x // y)),
    "arith.cmpf": _cmpf,
    "arith.cmpi": _cmpi,
    "arith.divf": _binary(np.divide),
    "arith.divsi": _divsi,
    "arith.divui": lambda op, x, y: _to_result(op, _unsigned(x) // _unsigned(y)),
    "arith.extf": _unary(lambda x: x),
    "arith.extsi": lambda op, x: _to_result(op, -x.astype(np.int8) if x.dtype == np.bool_ else x),
    "arith.extui": lambda op, x: _to_result(op, _unsigned(x)),
    "arith.floordivsi": _binary(np.floor_divide),
    "arith.fptosi": _float_to_int,
    "arith.fptoui": _float_to_int,
    "arith.index_cast": _index_cast,
    "arith.index_castui": lambda op, x: _to_result(op, _unsigned(x)),
    "arith.maximumf": _binary(np.maximum),
    "arith.maxnumf": _binary(np.fmax),
    "arith.maxsi": _binary(np.maximum),
    "arith.maxui": lambda op, x, y: _to_result(op, np.maximum(_unsigned(x), _unsigned(y))),
    "arith.minimumf": _binary(np.minimum),
    "arith.minnumf": _binary(np.fmin),
    "arith.minsi": _binary(np.minimum),
    "arith.minui": lambda op, x, y: _to_result(op, np.minimum(_unsigned(x), _unsigned(y))),
    "arith.mulf": _binary(np.multiply),
    "arith.muli": _binary(np.multiply),
    "arith.negf": _unary(np.negative),
    "arith.ori": _binary(np.bitwise_or),
    "arith.remf": _binary(np.fmod),
    "arith.remsi": _remsi,
    "arith.remui": lambda op, x, y: _to_result(op, _unsigned(x) % _unsigned(y)),
    "arith.select": lambda _, c, x, y: np.where(c, x, y),
    "arith.shli": _binary(np.left_shift),
    "arith.shrsi": _binary(np.right_shift),
    "arith.shrui": lambda op, x, y: _to_result(op, _unsigned(x) >> _unsigned(y)),
    "arith.sitofp": lambda op, x: (
        -x.astype(np.float64) if x.dtype == np.bool_ else x.astype(np.float64)
    ),
    "arith.subf": _binary(np.subtract),
    "arith.subi": _binary(np.subtract),
    "arith.truncf": _unary(lambda x: x),
    "arith.trunci": lambda op, x: _to_result(op, x),
    "arith.uitofp": lambda _, x: _unsigned(x).astype(np.float64),
    "arith.xori": _binary(np.bitwise_xor),
    "math.absf": _unary(np.abs),
    "math.absi": _unary(np.abs),
    "math.acos": _unary(np.arccos),
    "math.acosh": _unary(np.arccosh),
    "math.asin": _unary(np.arcsin),
    "math.asinh": _unary(np.arcsinh),
    "math.atan": _unary(np.arctan),
    "math.atan2": _binary(np.arctan2),
    "math.atanh": _unary(np.arctanh),
    "math.cbrt": _unary(np.cbrt),
    "math.ceil": _unary(np.ceil),
    "math.copysign": _binary(np.copysign),
    "math.cos": _unary(np.cos),
    "math.cosh": _unary(np.cosh),
    "math.erf": _unary_torch(torch.erf),
    "math.erfc": _unary_torch(torch.erfc),
    "math.exp": _unary(np.exp),
    "math.exp2": _unary(np.exp2),
    "math.expm1": _unary(np.expm1),
    "math.floor": _unary(np.floor),
    "math.fma": lambda _, x, y, z: x * y + z,
    "math.ipowi": _power,
    "math.isfinite": _unary(np.isfinite),
    "math.isinf": _unary(np.isinf),
    "math.isnan": _unary(np.isnan),
    "math.log": _unary(np.log),
    "math.log10": _unary(np.log10),
    "math.log1p": _unary(np.log1p),
    "math.log2": _unary(np.log2),
    "math.powf": _binary(np.power),
    "math.round": _unary(_round_away),
    "math.roundeven": _unary(_round_even),
    "math.rsqrt": _unary(lambda x: 1 / np.sqrt(x)),
    "math.sin": _unary(np.sin),
    "math.sinh": _unary(np.sinh),
    "math.sqrt": _unary(np.sqrt),
    "math.tan": _unary(np.tan),
    "math.tanh": _unary(np.tanh),
    "math.trunc": _unary(np.trunc),
}
