# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""A kernel's own symbols: one for each number that its problem really depends on.

A kernel over ``[s0*s1, 384]`` depends on one number, the rows. Where all expressions of a kernel
can be written in terms of ``s0*s1``, that product is one symbol of the kernel, which the launch
computes. Kernels whose problems are equal then have equal text, whatever their sizes were made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from shapejit.symbolic import Expr, product
from shapejit.symbolic.expr import Atom, AtomKind, divide_monomial

# Above the number of any symbol: stands for a base until all symbols are numbered.
_FIRST_PLACEHOLDER: Final = 1 << 20


class LocalSymbols:
    """The symbols of one kernel, numbered in order of appearance.

    Each component of symbols that occur together gets the first of these that all its expressions
    can be written in: one of its sizes; all of its sizes, if they are no more than its symbols; its
    symbols themselves.

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
            inside = [expr for expr in exprs if expr.symbols() <= component]
            candidates = _candidates(size for size in sizes if size.symbols() & component)
            options: list[tuple[Expr, ...]] = [(b,) for b in candidates if b.symbol_index is None]
            if 1 < len(candidates) <= len(component):
                options.append(candidates)
            for option in options:
                first = _FIRST_PLACEHOLDER + len(bases)
                placeholders = {first + i: base for i, base in enumerate(option)}
                images = _images(inside, placeholders, component)
                if images is not None:
                    self._local.update(images)
                    bases.update(placeholders)
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


def _candidates(sizes: Iterable[Expr]) -> tuple[Expr, ...]:
    """What could be one symbol: a size, or a product without its constant factor; large first."""
    bases = dict.fromkeys(
        Expr.from_terms({size.terms[0][0]: 1}) if len(size.terms) == 1 else size for size in sizes
    )
    return tuple(sorted(bases, key=lambda base: max(len(m) for m, _ in base.terms), reverse=True))


def _images(
    exprs: Sequence[Expr], placeholders: Mapping[int, Expr], component: frozenset[int]
) -> dict[Expr, Expr] | None:
    """All expressions in terms of the placeholders; None if symbols of the component are left."""
    images = {}
    for expr in exprs:
        image = expr
        for placeholder, base in placeholders.items():
            image = replace_base(image, base, Expr.symbol(placeholder))
        if image.symbols() & component:
            return None
        images[expr] = image
    return images


def replace_base(expr: Expr, base: Expr, symbol: Expr) -> Expr:
    """`expr` with `symbol`, which has the value of `base`, in place of `base` where that occurs."""
    if expr.symbols().isdisjoint(base.symbols()):
        return expr
    if len(base.terms) == 1:
        return _replace_product(expr, base, symbol)
    return _replace_sum(expr, base, symbol)


def _replace_product(expr: Expr, base: Expr, symbol: Expr) -> Expr:
    """`replace_base` for a base that is one monomial."""
    ((factors, _),) = base.terms
    total = Expr.const(0)
    for monomial, coefficient in expr.terms:
        term = Expr.const(coefficient)
        while (rest := divide_monomial(monomial, factors)) is not None:
            monomial, term = rest, term * symbol
        others = (_replace_in_atom(atom, base, symbol) for atom in monomial)
        total += product(others, start=term)
    return total


def _replace_in_atom(atom: Atom, base: Expr, symbol: Expr) -> Expr:
    if atom.kind is not AtomKind.FLOORDIV:
        return Expr.from_atom(atom)
    num, den = (replace_base(operand, base, symbol) for operand in atom.operands)
    return num // den


def _replace_sum(expr: Expr, base: Expr, symbol: Expr) -> Expr:
    """`replace_base` for a base of several terms, of which constant multiples are found."""
    parts: dict[Expr, Expr] = {}  # polynomials in the base's symbols, by what they are times
    for monomial, coefficient in expr.terms:
        free = [a for a in monomial if Expr.from_atom(a).symbols().isdisjoint(base.symbols())]
        bound = [a for a in monomial if a not in free]
        key = product(map(Expr.from_atom, free))
        part = product(map(Expr.from_atom, bound), start=Expr.const(coefficient))
        parts[key] = parts.get(key, Expr.const(0)) + part
    total = Expr.const(0)
    for key, part in parts.items():
        factor = part.exact_div(base)
        if factor is not None and factor.constant is not None:
            part = factor * symbol
        total += key * part
    return total
