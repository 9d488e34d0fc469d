# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""What a module says about its symbols, in the form in which passes ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import Sizes
from shapejit.symbolic import Expr, Ranges, SymbolRanges


class SymbolFacts:
    """Ranges and equalities of symbols.

    Args:
      symbol_ranges: bounds of each symbol; see `Ranges`.
      merged: what a symbol of the IR stands for: an equal symbol, or, in a kernel, what a launch
        binds it to.
    """

    def __init__(self, symbol_ranges: SymbolRanges, merged: Mapping[int, Expr]) -> None:
        self.symbol_ranges = symbol_ranges
        self.merged = merged
        self._ranges: dict[Sizes, Ranges] = {}
        self._sizes: dict[Any, Sizes] = {}

    @classmethod
    def of(cls, module: Any) -> SymbolFacts:
        """The facts for the functions of a module."""
        merged: dict[int, Expr] = {}
        for symbol in sir.symbols(module):
            if symbol.equal_to is not None:
                merged[symbol.id] = merged.get(symbol.equal_to, Expr.symbol(symbol.equal_to))
        return cls(sir.symbol_ranges(module), merged)

    def resolve(self, expr: Expr) -> Expr:
        """`expr` with every symbol replaced by what it stands for."""
        return expr.substitute(symbols=self.merged)

    def sizes(self, value: Any) -> Sizes:
        """Resolved sizes of a tensor value or type."""
        type_ = getattr(value, "type", value)
        found = self._sizes.get(type_)
        if found is None:
            found = self._sizes[type_] = tuple(map(self.resolve, sir.shape_of(type_)))
        return found

    def over(self, space: Sizes) -> Ranges:
        """Ranges in which dim i is an index below `space[i]`."""
        found = self._ranges.get(space)
        if found is None:
            found = self._ranges[space] = Ranges(self.symbol_ranges, space)
        return found
