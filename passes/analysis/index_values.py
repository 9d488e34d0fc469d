# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Expressions as index values in the body of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith

from shapejit import ir as sir
from shapejit.dialects import shapejit as sj
from shapejit.symbolic import Expr


class IndexValues:
    """Emits at the current insertion point; see `Algebra`. Dividends must not be negative.

    Args:
      dims: the value of each dim, of index type.
    """

    def __init__(self, dims: Sequence[Any]) -> None:
        self._dims = dims

    def constant(self, value: int) -> Any:
        return arith.constant(ir.IndexType.get(), value)

    def symbol(self, index: int) -> Any:
        size = sir.make_map(0, [Expr.symbol(index)])
        return sj.SizeOp(ir.AffineMapAttr.get(size), results=[ir.IndexType.get()]).result

    def dim(self, index: int) -> Any:
        return self._dims[index]

    def add(self, lhs: Any, rhs: Any) -> Any:
        return arith.addi(lhs, rhs)

    def mul(self, lhs: Any, rhs: Any) -> Any:
        return arith.muli(lhs, rhs)

    def floordiv(self, lhs: Any, rhs: Any) -> Any:
        return arith.divui(lhs, rhs)

    def mod(self, lhs: Any, rhs: Any) -> Any:
        return arith.remui(lhs, rhs)
