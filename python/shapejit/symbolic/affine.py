# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Conversions to and from MLIR's AffineExpr and AffineMap.

The bindings are imported inside the functions: the algebra itself needs no MLIR.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from shapejit.symbolic.expr import Expr
from shapejit.symbolic.memo import remembered


class _AffineAlgebra:
    """Builds AffineExprs; see `expr.Algebra`."""

    def __init__(self, context: Any) -> None:
        from mlir import ir

        self._context = context
        self._constant = ir.AffineConstantExpr.get
        self._symbol = ir.AffineSymbolExpr.get
        self._dim = ir.AffineDimExpr.get
        self._base = ir.AffineExpr
        # MLIR reads these two out of divisors and factors; anything else may depend on a dim.
        self._leaves = (ir.AffineConstantExpr, ir.AffineSymbolExpr)

    def constant(self, value: int) -> Any:
        return self._constant(value, self._context)

    def symbol(self, index: int) -> Any:
        return self._symbol(index, self._context)

    def dim(self, index: int) -> Any:
        return self._dim(index, self._context)

    def add(self, lhs: Any, rhs: Any) -> Any:
        return self._base.get_add(lhs, rhs)

    def mul(self, lhs: Any, rhs: Any) -> Any:
        if not self._symbolic(lhs) and not self._symbolic(rhs):
            raise ValueError(f"({lhs}) * ({rhs}) is not affine: both factors depend on a dim")
        return self._base.get_mul(lhs, rhs)

    def floordiv(self, lhs: Any, rhs: Any) -> Any:
        self._check_divisor(lhs, rhs)
        return self._base.get_floor_div(lhs, rhs)

    def mod(self, lhs: Any, rhs: Any) -> Any:
        self._check_divisor(lhs, rhs)
        return self._base.get_mod(lhs, rhs)

    def _check_divisor(self, lhs: Any, rhs: Any) -> None:
        if not self._symbolic(rhs):
            raise ValueError(
                f"({lhs}) divided by ({rhs}) is not affine: the divisor depends on a dim"
            )

    def _symbolic(self, expr: Any) -> bool:
        return isinstance(expr.maybe_downcast(), self._leaves) or not from_affine(expr).dims()


def to_affine(expr: Expr, context: Any) -> Any:
    """`expr` as an AffineExpr of `context`.

    Raises:
      ValueError: a factor or divisor depends on dims where affine expressions allow symbols only.
    """
    return expr.build(_AffineAlgebra(context))


def from_affine(expr: Any) -> Expr:
    """The value of an AffineExpr."""
    node = expr.maybe_downcast()
    return _readers()[type(node)](node)


@functools.cache
def _readers() -> dict[type, Callable[[Any], Expr]]:
    """How to read each kind of AffineExpr."""
    from mlir import ir

    def binary(operation: Callable[[Expr, Expr], Expr]) -> Callable[[Any], Expr]:
        return lambda node: operation(from_affine(node.lhs), from_affine(node.rhs))

    return {
        ir.AffineConstantExpr: lambda node: Expr.const(node.value),
        ir.AffineSymbolExpr: lambda node: Expr.symbol(node.position),
        ir.AffineDimExpr: lambda node: Expr.dim(node.position),
        ir.AffineAddExpr: binary(Expr.__add__),
        ir.AffineMulExpr: binary(Expr.__mul__),
        ir.AffineFloorDivExpr: binary(Expr.__floordiv__),
        ir.AffineCeilDivExpr: binary(Expr.ceildiv),
        ir.AffineModExpr: binary(Expr.__mod__),
    }


def to_map(n_dims: int, exprs: Iterable[Expr], context: Any) -> Any:
    """An AffineMap whose symbol i is symbol s<i>; it declares symbols up to the greatest used."""
    results = tuple(exprs)
    return remembered((n_dims, results, context), lambda: _to_map(n_dims, results, context))


def _to_map(n_dims: int, results: tuple[Expr, ...], context: Any) -> Any:
    from mlir import ir

    algebra = _AffineAlgebra(context)
    n_symbols = 1 + max((max(e.symbols(), default=-1) for e in results), default=-1)
    return ir.AffineMap.get(n_dims, n_symbols, [e.build(algebra) for e in results], context)


def map_exprs(affine_map: Any) -> tuple[Expr, ...]:
    """The results of an AffineMap."""
    return remembered(
        affine_map, lambda: tuple(from_affine(result) for result in affine_map.results)
    )
