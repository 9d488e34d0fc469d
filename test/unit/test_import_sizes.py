# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sizes that torch works out in floats."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloatTrueDiv, FloorToInt, ToFloat, TruncToInt

from shapejit.importer.dynamic_shapes import DimKind, RootDim
from shapejit.importer.sizes import SymbolTable, SympySizes, UnknownSizeError
from shapejit.symbolic import Expr

N = sympy.Symbol("n", integer=True)


@pytest.fixture
def sizes() -> SympySizes:
    table = SymbolTable()
    symbol = table.root(RootDim("n", 2, 64, None, DimKind.NAMED))
    found = SympySizes(table)
    found.values[N] = Expr.symbol(symbol.id)
    return found


@pytest.mark.parametrize("rounded", [FloorToInt, TruncToInt])
@pytest.mark.parametrize("factor", [0.5, 0.7, 1.5, 2.25])
def test_a_size_times_a_float(sizes: SympySizes, rounded: type, factor: float) -> None:
    found = sizes.expr(rounded(ToFloat(N) * sympy.Float(factor)))
    for value in range(2, 65):
        assert found.evaluate(symbols={0: value}) == int(value * factor)


@pytest.mark.parametrize(
    "inner",
    [
        ToFloat(N) + sympy.Float(1.5),
        FloatTrueDiv(ToFloat(N), sympy.Float(1.5)),
        ToFloat(N - 5) * sympy.Float(0.5),
    ],
    ids=["sum", "quotient", "negative"],
)
def test_no_other_float_is_taken_for_a_product(sizes: SympySizes, inner: sympy.Expr) -> None:
    """Nor one that may be negative, which is rounded to zero or down."""
    with pytest.raises(UnknownSizeError):
        sizes.expr(TruncToInt(inner))
