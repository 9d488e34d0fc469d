# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Finds the remainders in a canonical polynomial, where `x % n` is stored as `x - n*(x//n)`.

Only the spelling depends on this search, never the value: a remainder that is not found again is
printed and lowered as the difference it is stored as.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shapejit.symbolic.expr import ONE, Atom, AtomKind, Expr, Monomial, make_atom


def recover_remainders(expr: Expr) -> dict[Monomial, int]:
    """Terms that sum to `expr`, over the expression's own atoms and MOD atoms."""
    found: dict[Monomial, int] = {}
    rest = expr
    # From the greatest divisor down: in `x//4 % 8 * 100 + x % 4` the term of `x//4` belongs to both
    # remainders, and only the coefficient of `x//32` says how much of it to the first.
    for quotient in sorted(_quotients(expr), key=_divisor_key, reverse=True):
        split = _split(rest, quotient)
        if split is None:
            continue
        rest, factor, remainder = split
        for monomial, coefficient in factor.terms:
            # A MOD atom's key is the greatest of all, so appending keeps the order.
            found[(*monomial, remainder)] = coefficient
    return {**dict(rest.terms), **found}


def _quotients(expr: Expr) -> list[Atom]:
    return [atom for atom in expr.atoms() if atom.kind is AtomKind.FLOORDIV]


def _divisor_key(quotient: Atom) -> tuple[Any, ...]:
    # Keys compare the leading term first, so that greater divisors have greater keys.
    return tuple(reversed(quotient.operands[1].sort_key))


def _split(expr: Expr, quotient: Atom) -> tuple[Expr, Expr, Atom] | None:
    """(e, c, m) with `expr == e + c*m` and m a MOD atom that absorbs `quotient`, or None."""
    parts = expr.coefficients(quotient)
    if len(parts) != 2:
        return None
    others, coefficient = parts
    num, den = quotient.operands
    for inner in _inner_divisors(others):
        # num // den == (num // inner) // modulus
        modulus = den.exact_div(inner)
        if modulus is None or modulus is ONE:
            continue
        factor, dividend = (-coefficient).exact_div(modulus), num // inner
        if factor is None or not factor.terms or dividend // modulus != Expr.from_atom(quotient):
            continue
        if _contains(others, factor * dividend):
            remainder = make_atom(AtomKind.MOD, operands=(dividend, modulus))
            return others - factor * dividend, factor, remainder
    return None


def _inner_divisors(expr: Expr) -> Iterator[Expr]:
    yield ONE
    for quotient in _quotients(expr):
        yield quotient.operands[1]


def _contains(expr: Expr, part: Expr) -> bool:
    """Whether taking `part` from `expr` leaves no new or greater term of symbols and dims."""
    terms = dict(expr.terms)
    for monomial, coefficient in part.terms:
        have = terms.get(monomial, 0)
        if any(atom.kind is AtomKind.FLOORDIV for atom in monomial):
            if not have:
                return False
        elif monomial and (have * coefficient <= 0 or abs(have) < abs(coefficient)):
            return False
    return True
