# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Floats that a model computes from sizes, such as ``1 / math.sqrt(x.shape[-1])``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sympy
import torch

from shapejit.importer.scalar_ops import Scalar, ScalarOps
from shapejit.importer.sizes import SympySizes, UnknownSizeError
from shapejit.symbolic import Expr


@dataclass(frozen=True)
class SizeFloat:
    """A float expression of sizes: an operation on parts, a size, or a number.

    Attributes:
        name: ``add``, ``mul``, ``div``, ``pow``, or an operation of the math dialect.
        parts: its operands.
    """

    name: str
    parts: tuple[SizeFloat | Expr | float, ...]

    def emit(self, ops: ScalarOps, dtype: torch.dtype) -> Scalar:
        """Computes it in a body."""
        operands = [_emit(part, ops, dtype) for part in self.parts]
        result = operands[0]
        combine = _BINARY.get(self.name)
        if combine is None:
            return ops.math(self.name, *operands)
        for operand in operands[1:]:
            result = combine(ops, result, operand)
        return result


def _emit(part: SizeFloat | Expr | float, ops: ScalarOps, dtype: torch.dtype) -> Scalar:
    if isinstance(part, SizeFloat):
        return part.emit(ops, dtype)
    if isinstance(part, Expr):
        return ops.from_index(ops.index_expr(part), dtype)
    return ops.const(part, dtype)


def read_size_float(expr: sympy.Expr, sizes: SympySizes) -> SizeFloat | Expr | float:
    """torch's float expression of sizes in the module's symbols."""
    if expr.is_Float or (expr.is_Rational and not expr.is_Integer):
        return float(expr)
    try:
        return sizes.expr(expr)
    except UnknownSizeError:
        name = _NAMES.get(type(expr).__name__)
        if name is None:
            raise
    if name == "":
        return read_size_float(expr.args[0], sizes)
    return SizeFloat(name, tuple(read_size_float(arg, sizes) for arg in expr.args))


_BINARY: Final[Mapping[str, Callable[[ScalarOps, Any, Any], Scalar]]] = {
    "add": ScalarOps.add,
    "mul": ScalarOps.mul,
    "div": ScalarOps.div,
    "pow": lambda ops, x, y: ops.math("math.powf", x, y),
}

_NAMES: Final[Mapping[str, str]] = {
    "Add": "add",
    "Mul": "mul",
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "FloatPow": "pow",
    "Pow": "pow",
    "ToFloat": "",
    "OpaqueUnaryFn_sqrt": "math.sqrt",
    "OpaqueUnaryFn_exp": "math.exp",
    "OpaqueUnaryFn_log": "math.log",
    "OpaqueUnaryFn_log2": "math.log2",
    "OpaqueUnaryFn_tanh": "math.tanh",
}
