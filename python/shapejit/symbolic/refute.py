# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Counterexamples: values within the ranges at which an expression is negative.

A proof that an expression is never negative is searched for long before it is given up. Sizes of
strided images are divisions of divisions, of which two products often do not compare; a few values
tried out say so at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from shapejit.symbolic.expr import AtomKind, Expr

# How far into its range each variable is, in sixteenths, by variable and sample.
_PLACES: Final = (
    (0,),
    (16,),
    (0, 16),
    (16, 0),
    (1, 2, 1),
    (0, 0, 16),
    (16, 16, 0),
    (3, 11, 7),
)
# Width of a range without an end.
_OPEN: Final = 1024


class Counterexamples:
    """Tries values out.

    Args:
        symbols: bounds of symbols; one that is missing is at least 0.
        dims: sizes of dims; one that is missing has no end.
    """

    def __init__(
        self, symbols: Mapping[int, tuple[int | None, int | None]], dims: Mapping[int, Expr]
    ) -> None:
        self._symbols, self._dims = symbols, dims

    def has(self, expr: Expr) -> bool:
        """Whether values were found for which the expression is negative. Only expressions with
        divisions are tried: of others a proof is found, or not, at once."""
        if not any(atom.kind is AtomKind.FLOORDIV for atom in expr.atoms()):
            return False
        dims = sorted(expr.dims())
        if any(self._dims[dim].dims() for dim in dims if dim in self._dims):
            return False  # which indices there are depends on other indices
        symbols = expr.symbols().union(
            *(self._dims[dim].symbols() for dim in dims if dim in self._dims)
        )
        return any(
            _is_negative(expr, values, indices)
            for values, indices in self._samples(sorted(symbols), dims)
        )

    def _samples(
        self, symbols: list[int], dims: list[int]
    ) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
        """Values of symbols and dims, without those at which a dim is empty."""
        for places in _PLACES:
            values = {}
            for number, symbol in enumerate(symbols):
                low, high = self._symbols.get(symbol, (0, None))
                least = 0 if low is None else low
                width = _OPEN if high is None else high - least
                values[symbol] = least + width * places[number % len(places)] // 16
            indices, is_empty = {}, False
            for number, dim in enumerate(dims):
                size = _value(self._dims[dim], values) if dim in self._dims else _OPEN
                is_empty |= size < 1
                place = places[(number + len(symbols)) % len(places)]
                indices[dim] = (size - 1) * place // 16
            if not is_empty:
                yield values, indices


def _is_negative(expr: Expr, symbols: dict[int, int], dims: dict[int, int]) -> bool:
    try:
        return expr.evaluate(symbols, dims) < 0
    except ZeroDivisionError:  # a size of 0 divides only where there is no index
        return False


def _value(size: Expr, symbols: dict[int, int]) -> int:
    """A size; 0, which is none, where it divides by 0."""
    try:
        return size.evaluate(symbols)
    except ZeroDivisionError:
        return 0
