# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""A kernel's own symbols: one for each number that its problem really depends on.

A kernel over ``[s0*s1, 384]`` depends on one number, the rows. Where all expressions of a kernel
can be written in terms of ``s0*s1``, that product is one symbol of the kernel, which the launch
computes. Kernels whose problems are equal then have equal text, whatever their sizes were made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shapejit.symbolic import Expr, product
from shapejit.symbolic.expr import Atom, AtomKind, divide_monomial

# Above the number of any symbol: stands for a base until all symbols are numbered.
_FIRST_PLACEHOLDER: Final = 1 << 20


class LocalSymbols:
    """The symbols of one kernel, numbered in order of appearance.

    Args:
        sizes: sizes of the kernel's tensors and spaces, in order of appearance.
        others: what else may depend on symbols: index maps, sizes in bodies.

    Attributes:
        values: for each symbol of the kernel, its value in terms of the module's.
    """

    def __init__(self, sizes: Sequence[Expr], others: Sequence[Expr]) -> None:
        exprs = list(dict.fromkeys(expr for expr in (*sizes, *others) if expr.symbols()))
        self._local = {expr: expr for expr in exprs}
        bases: dict[int, Expr] = {}
        for component in _components(exprs):
            placeholder = _FIRST_PLACEHOLDER + len(bases)
            inside = [expr for expr in exprs if expr.symbols() <= component]
            for base in _candidates([size for size in dict.fromkeys(sizes) if size in inside]):
                images = {e: rewrite(e, base, Expr.symbol(placeholder)) for e in inside}
                found = {e: image for e, image in images.items() if image is not None}
                if len(found) == len(inside):
                    self._local.update(found)
                    bases[placeholder] = base
                    break
        numbers = _appearance(list(self._local.values()))
        self.values = [bases.get(symbol, Expr.symbol(symbol)) for symbol in numbers]
        renamed = {symbol: Expr.symbol(number) for number, symbol in enumerate(numbers)}
        for expr, local in self._local.items():
            self._local[expr] = local.substitute(symbols=renamed)

    def localize(self, expr: Expr) -> Expr:
        """One of the given expressions in terms of the kernel's symbols."""
        return self._local.get(expr, expr)


def _appearance(exprs: Sequence[Expr]) -> list[int]:
    """The symbols of the expressions in an order that their numbers decide as little as possible.

    Plain sizes come first: those of a sum or product have no order of their own.
    """
    plain = [expr.symbol_index for expr in exprs if expr.symbol_index is not None]
    return list(dict.fromkeys([*plain, *(s for expr in exprs for s in sorted(expr.symbols()))]))


def _components(exprs: Sequence[Expr]) -> list[frozenset[int]]:
    """Sets of symbols, such that no expression has symbols of two sets."""
    components: list[frozenset[int]] = []
    for expr in exprs:
        touched = [c for c in components if c & expr.symbols()]
        components = [c for c in components if c not in touched]
        components.append(frozenset(expr.symbols()).union(*touched))
    return components


def _candidates(sizes: Sequence[Expr]) -> Iterator[Expr]:
    """What could be one symbol: a size, of a product without its constant factor."""
    for size in sizes:
        base = size
        if len(size.terms) == 1:
            base = Expr.from_terms({size.terms[0][0]: 1})
        if base.symbol_index is None:
            yield base


def rewrite(expr: Expr, base: Expr, symbol: Expr) -> Expr | None:
    """`expr` in terms of `symbol`, which stands for `base`.

    Returns:
        None if symbols of `base` would be left.
    """
    if expr.symbols().isdisjoint(base.symbols()):
        return expr
    if len(base.terms) == 1:
        return _rewrite_product(expr, base, symbol)
    return _rewrite_sum(expr, base, symbol)


def _rewrite_product(expr: Expr, base: Expr, symbol: Expr) -> Expr | None:
    """`rewrite` for a base that is one monomial."""
    ((factors, _),) = base.terms
    total = Expr.const(0)
    for monomial, coefficient in expr.terms:
        term = Expr.const(coefficient)
        while (rest := divide_monomial(monomial, factors)) is not None:
            monomial, term = rest, term * symbol
        others = [_rewrite_atom(atom, base, symbol) for atom in monomial]
        known = [other for other in others if other is not None]
        if len(known) < len(others):
            return None
        total += product(known, start=term)
    return total


def _rewrite_atom(atom: Atom, base: Expr, symbol: Expr) -> Expr | None:
    whole = Expr.from_atom(atom)
    if whole.symbols().isdisjoint(base.symbols()):
        return whole
    if atom.kind is not AtomKind.FLOORDIV:
        return None
    num, den = (rewrite(operand, base, symbol) for operand in atom.operands)
    return None if num is None or den is None else num // den


def _rewrite_sum(expr: Expr, base: Expr, symbol: Expr) -> Expr | None:
    """`rewrite` for a base of several terms, of which whole multiples must occur."""
    parts: dict[Expr, Expr] = {}  # polynomials in the base's symbols, by what they are times
    for monomial, coefficient in expr.terms:
        free = [a for a in monomial if Expr.from_atom(a).symbols().isdisjoint(base.symbols())]
        bound = [a for a in monomial if a not in free]
        key = product(map(Expr.from_atom, free))
        part = product(map(Expr.from_atom, bound), start=Expr.const(coefficient))
        parts[key] = parts.get(key, Expr.const(0)) + part
    total = Expr.const(0)
    for key, part in parts.items():
        if part.constant is not None:
            total += key * part
            continue
        factor = part.exact_div(base)
        if factor is None or factor.constant is None:
            return None
        total += key * factor * symbol
    return total
