# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a kernel's own symbols stand for: the sizes that its launches bind them to.

A kernel says nothing about the values of its symbols; the launches of it do, by expressions of the
module's symbols, of which range, divisor and expected values are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.symbolic import Expr, Ranges, map_exprs
from shapejit.symbolic.bounds import Bounds
from shapejit.symbolic.expr import AtomKind


@dataclass(frozen=True)
class Bindings:
    """The launches of one kernel.

    Attributes:
        launches: for each launch, what every symbol of the kernel stands for.
        facts: about the module's symbols.
        divisors: of the module's symbols, by id; 1 if missing.
    """

    launches: tuple[Mapping[int, Expr], ...]
    facts: SymbolFacts
    divisors: Mapping[int, int]

    def bound(self, size: Expr) -> tuple[Expr, ...]:
        """The distinct expressions of the module's symbols that a kernel's expression stands for.

        Nothing is known of a kernel that is not launched: there are none.
        """
        return tuple(dict.fromkeys(size.substitute(symbols=launch) for launch in self.launches))

    def range(self, size: Expr) -> Bounds:
        """Least and greatest value over all launches; None is unbounded."""
        ranges = Ranges(self.facts.symbol_ranges)
        bounds = [ranges.bounds(expr) for expr in self.bound(size)] or [Ranges().bounds(size)]
        highs = [high for _, high in bounds if high is not None]
        low = min(max(low or 0, 0) for low, _ in bounds)
        return low, max(highs) if len(highs) == len(bounds) else None

    def divisor(self, size: Expr) -> int:
        """A number that divides every value; 0 if the only value is 0."""
        found = [divisor_of(expr, self.divisors) for expr in self.bound(size)]
        return math.gcd(*found) if found else divisor_of(size, {})

    def unit(self, size: Expr) -> int:
        """The greatest number by which the expressions that a size stands for can be divided: 64 of
        ``64 * n * h`` and ``192 * n``. 1 if nothing is known, or all are constants."""
        found = [coefficient for expr in self.bound(size) for _, coefficient in expr.terms]
        return math.gcd(*found) if any(e.constant is None for e in self.bound(size)) else 1


def divisor_of(expr: Expr, divisors: Mapping[int, int]) -> int:
    """The greatest divisor that follows from those of the symbols, term by term."""
    return math.gcd(
        *(
            coefficient
            * math.prod(
                divisors.get(atom.index, 1) for atom in monomial if atom.kind is AtomKind.SYMBOL
            )
            for monomial, coefficient in expr.terms
        )
    )


def bindings_of(module: Any) -> dict[str, Bindings]:
    """The bindings of all kernels of a module, by name."""
    facts = SymbolFacts.of(module)
    divisors = {symbol.id: symbol.divisor for symbol in sir.symbols(module)}
    launches: dict[str, list[Mapping[int, Expr]]] = {name: [] for name in sir.kernels(module)}
    for function in sir.functions(module):
        for op in sir.walk(function):
            if op.name != "shapejit.launch":
                continue
            name = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
            sizes: Sequence[Expr] = map_exprs(op.attributes["sizes"].value)
            if name in launches:
                launches[name].append(dict(enumerate(map(facts.resolve, sizes))))
    return {name: Bindings(tuple(found), facts, divisors) for name, found in launches.items()}
