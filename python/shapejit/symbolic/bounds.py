# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""What ranges of symbols and dims say about an expression: bounds, order, fewer divisions.

Everything here is sound and incomplete: a bound holds, a `True` is a proof, a `False` or `None`
means that no proof was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from shapejit.symbolic.expr import (
    ONE,
    ZERO,
    Atom,
    AtomKind,
    Expr,
    Monomial,
    as_expr,
    common_monomial,
    divide_monomial,
    make_atom,
)
from shapejit.symbolic.refute import Counterexamples

Bounds: TypeAlias = tuple[int | None, int | None]
"""Least and greatest value, both attainable or not; None is unbounded."""

SymbolRanges: TypeAlias = Mapping[int, Bounds]
"""Bounds of each symbol; one that is missing is a size of which nothing is known: (0, None)."""

_INFINITY: Final = math.inf
_Number: TypeAlias = int | float
_Interval: TypeAlias = tuple[_Number, _Number]

# A proof that eliminates more variables than this one after the other is given up.
_MAX_DEPTH: Final = 12
# Expressions that a proof looks at, before it is given up: a few have thousands of ways to go.
_MOST_WORK: Final = 4000
# Numbers of the dims that stand for remainders within a proof; above any dim of a map.
_FIRST_PROXY: Final = 1 << 32


class Ranges:
    """Reasons about expressions under fixed ranges. Keep one for many queries: it remembers.

    Dim i runs over [0, dim_sizes[i]); a dim without a size is any integer >= 0. Statements are
    about index values, so where a dim occurs its size is taken to be at least one: an empty space
    has no index to be wrong about.
    """

    def __init__(
        self, symbol_ranges: SymbolRanges | None = None, dim_sizes: Sequence[Expr | int] = ()
    ) -> None:
        self._symbols: dict[int, Bounds] = dict(symbol_ranges or {})
        self._dim_sizes: dict[int, Expr] = {i: as_expr(s) for i, s in enumerate(dim_sizes)}
        for size in self._dim_sizes.values():
            if (symbol := size.symbol_index) is not None:
                least, greatest = self._symbols.get(symbol, (0, None))
                self._symbols[symbol] = (max(least or 0, 1), greatest)
        self._counterexamples = Counterexamples(self._symbols, self._dim_sizes)
        self._refuted: dict[Expr, bool] = {}
        self._lower: dict[Expr, _Number] = {}
        self._cut_off: dict[Expr, tuple[int, _Number]] = {}
        self._simplified: dict[Expr, Expr] = {}
        self._proxies: dict[Atom, Atom] = {}
        self._depth = 0
        self._work = 0
        self._given_up = 0

    def add_dim(self, dim: int, size: Expr | int) -> bool:
        """Adds a dim of which nothing was asked yet, and keeps what is remembered.

        Args:
            dim: its number.
            size: it runs over [0, size).

        Returns:
            False, with nothing added, if its size says more about a symbol than was known.
        """
        whole = as_expr(size)
        if (symbol := whole.symbol_index) is not None and not self._symbols.get(symbol, (0, 0))[0]:
            return False
        self._dim_sizes[dim] = whole
        return True

    # Queries --------------------------------------------------------------------------------------

    def bounds(self, expr: Expr | int) -> Bounds:
        """Constant bounds of the value."""
        low, high = self._interval(self.simplify(as_expr(expr)))
        return (
            None if low == -_INFINITY else int(low),
            None if high == _INFINITY else int(high),
        )

    def is_nonnegative(self, expr: Expr | int) -> bool:
        """Whether the value is provably >= 0."""
        simple = self.simplify(as_expr(expr))
        known = self._lower.get(simple)
        if known is not None:
            return known >= 0
        refuted = self._refuted.get(simple)
        if refuted is None:
            refuted = self._refuted[simple] = self._counterexamples.has(simple)
        return not refuted and self._least(simple) >= 0

    def provably_le(self, lhs: Expr | int, rhs: Expr | int) -> bool:
        """Whether provably lhs <= rhs."""
        return self.is_nonnegative(as_expr(rhs) - lhs)

    def simplify(self, expr: Expr | int) -> Expr:
        """An expression with the same value within the ranges and as few divisions as possible."""
        whole = as_expr(expr)
        if not any(atom.kind is AtomKind.FLOORDIV for atom in whole.atoms()):
            return whole
        known = self._simplified.get(whole)
        if known is None:
            known = whole.map_atoms(self._simplify_atom)
            if known is not whole:
                known = self.simplify(known)
            self._simplified[whole] = known
        return known

    # Simplification -------------------------------------------------------------------------------

    def _simplify_atom(self, atom: Atom) -> Expr:
        if atom.kind is not AtomKind.FLOORDIV:
            return Expr.from_atom(atom)
        num, den = map(self.simplify, atom.operands)
        quotient = num // den
        if quotient != Expr.from_atom(atom):
            return self.simplify(quotient)
        whole, num = self._with_remainders(num, den)
        low, high = self._divide(self._interval(num), self._interval(den))
        if low == high:
            return self.simplify(whole + int(low))
        if self._least(num) >= 0 and self._least(den - num) >= 1:
            return self.simplify(whole)
        for smaller in self._reduced(num, den):
            return self.simplify(whole + smaller)
        return quotient

    def _with_remainders(self, num: Expr, den: Expr) -> tuple[Expr, Expr]:
        """(q, r) with `num == q*den + r`, where r shows remainders that num hides.

        `x % 2` as a dividend of 4 is stored as `x + 2*(x//2)`, for -2 is 2 modulo 4.
        """
        whole, divisor = ZERO, den.constant
        if divisor is None:
            return ZERO, num
        for monomial, _ in num.terms:
            if any(atom.kind is AtomKind.FLOORDIV for atom in monomial):
                multiple = Expr.from_terms({monomial: 1})
                other = num - divisor * multiple
                if _remainder_count(other) > _remainder_count(num):
                    whole, num = whole + multiple, other
        return whole, num

    def _reduced(self, num: Expr, den: Expr) -> Iterator[Expr]:
        """`(g*a + r) // (g*b) = a // b`, for every g with 0 <= r < g."""
        if len(den.terms) != 1:
            return
        [(den_monomial, den_factor)] = den.terms
        polynomial = self._without_remainders(num)
        candidates: dict[Expr, None] = {}
        for monomial, coefficient in polynomial.terms:
            common = common_monomial(monomial, den_monomial)
            candidates[Expr.from_terms({common: math.gcd(coefficient, den_factor)})] = None
        for divisor in candidates:
            if divisor is ONE:
                continue
            whole, rest = _split_multiples(polynomial, *divisor.terms[0])
            if rest.terms and self._least(rest) >= 0 and self._least(divisor - rest) >= 1:
                inner = den.exact_div(divisor)
                assert inner is not None
                yield self._with_proxies_resolved(whole) // inner

    # Bounds ---------------------------------------------------------------------------------------

    def _interval(self, expr: Expr) -> _Interval:
        return self._least(expr), -self._least(-expr)

    def _least(self, expr: Expr) -> _Number:
        """A lower bound of the value, -inf if none is found."""
        value = expr.constant
        if value is not None:
            return value
        known = self._lower.get(expr)
        if known is not None:
            return known
        self._work = self._work + 1 if self._depth else 0
        if self._depth >= _MAX_DEPTH or self._work > _MOST_WORK:
            self._given_up += 1
            return -_INFINITY
        # What was cut off with as much depth left would be cut off again, after as long a search.
        depth, cut_off = self._cut_off.get(expr, (_MAX_DEPTH, -_INFINITY))
        if depth <= self._depth:
            self._given_up += 1
            return cut_off
        given_up = self._given_up
        self._depth += 1
        polynomial = self._without_remainders(expr)
        least = max(
            self._term_bound(polynomial),
            self._shift_bound(polynomial),
            *self._elimination_bounds(polynomial),
        )
        self._depth -= 1
        if self._depth == 0 or given_up == self._given_up:
            self._lower[expr] = least
        elif self._work <= _MOST_WORK:  # more depth may give more
            self._cut_off[expr] = self._depth, least
        return least

    def _without_remainders(self, expr: Expr) -> Expr:
        """Remainders replaced by dims of their own: `x % n` is only known to lie in [0, n)."""

        def proxy(monomial: Monomial) -> Monomial:
            if not any(atom.kind is AtomKind.MOD for atom in monomial):
                return monomial
            return tuple(sorted(map(self._proxy, monomial), key=lambda atom: atom.key))

        terms: dict[Monomial, int] = {}
        for monomial, coefficient in expr.display_terms():
            image = proxy(monomial)
            terms[image] = terms.get(image, 0) + coefficient
        return Expr.from_terms(terms)

    def _proxy(self, atom: Atom) -> Atom:
        if atom.kind is not AtomKind.MOD:
            return atom
        if atom not in self._proxies:
            index = _FIRST_PROXY + len(self._proxies)
            self._dim_sizes[index] = atom.operands[1]
            self._proxies[atom] = make_atom(AtomKind.DIM, index)
        return self._proxies[atom]

    def _with_proxies_resolved(self, expr: Expr) -> Expr:
        """Undoes `_without_remainders`."""
        values = {
            proxy.index: remainder.operands[0] % remainder.operands[1]
            for remainder, proxy in self._proxies.items()
        }
        return expr.substitute(dims=values)

    def _term_bound(self, expr: Expr) -> _Number:
        """Every term at its own extreme."""
        total: _Number = 0
        for monomial, coefficient in expr.terms:
            interval: _Interval = (coefficient, coefficient)
            for atom in monomial:
                interval = _times(interval, self._atom_interval(atom))
            total += interval[0]
        return total

    def _shift_bound(self, expr: Expr) -> _Number:
        """The constant term once every symbol counts from its least value, if no term falls."""
        if any(atom.kind is AtomKind.FLOORDIV for atom in expr.atoms()):
            return -_INFINITY
        least = {i: self._symbols.get(i, (0, None))[0] for i in expr.symbols()}
        shifts = {i: Expr.symbol(i) + low for i, low in least.items() if low is not None}
        if len(shifts) < len(least):
            return -_INFINITY
        shifted = expr.substitute(shifts)
        if any(coefficient < 0 for monomial, coefficient in shifted.terms if monomial):
            return -_INFINITY
        return dict(shifted.terms).get((), 0)

    def _atom_interval(self, atom: Atom) -> _Interval:
        match atom.kind:
            case AtomKind.SYMBOL:
                low, high = self._symbols.get(atom.index, (0, None))
                return (-_INFINITY if low is None else low, _INFINITY if high is None else high)
            case AtomKind.DIM:
                size = self._dim_sizes.get(atom.index)
                return 0, _INFINITY if size is None else self._interval(size)[1] - 1
            case _:
                num, den = (self._interval(operand) for operand in atom.operands)
                return self._divide(num, den)

    def _divide(self, num: _Interval, den: _Interval) -> _Interval:
        """Bounds of the quotient; a divisor is positive."""
        least = max(den[0], 1)
        greatest = max(den[1], least)
        return (
            _floor(num[0], least if num[0] < 0 else greatest),
            _floor(num[1], greatest if num[1] < 0 else least),
        )

    def _elimination_bounds(self, expr: Expr) -> Iterator[_Number]:
        """Bounds from putting one variable, in which the value is monotone, at its extreme.

        This keeps what terms have in common: `s0 - d0 - 1` with d0 < s0 is at least 0 because d0
        becomes `s0 - 1`, not because of any number.
        """
        # Divisions first: their operands hold dims. Dims next: their sizes hold symbols.
        for atom in sorted(expr.atoms(), key=lambda atom: (atom.kind, atom.key), reverse=True):
            parts = expr.coefficients(atom)
            if len(parts) != 2 or _mentions(parts[1], atom) or _mentions(parts[0], atom):
                continue
            base, slope = parts
            if self._least(slope) >= 0:
                rising = True
            elif self._least(-slope) >= 0:
                rising = False
            else:
                continue
            bound = self._extreme_bound(base, slope, atom, rising)
            if bound > -_INFINITY:
                yield bound
                if atom.kind is not AtomKind.FLOORDIV:
                    return

    def _extreme_bound(self, base: Expr, slope: Expr, atom: Atom, rising: bool) -> _Number:
        """Least value of `base + slope*atom` with the atom at its least or greatest value."""
        if atom.kind is AtomKind.DIM and not rising:
            size = self._dim_sizes.get(atom.index)
            return -_INFINITY if size is None else self._least(base + slope * (size - 1))
        if atom.kind is AtomKind.FLOORDIV:
            scaled = self._division_bound(base, slope, atom, rising)
            if scaled >= 0:
                return scaled
        low, high = self._atom_interval(atom)
        extreme = low if rising else high
        numeric = -_INFINITY
        if abs(extreme) < _INFINITY:
            numeric = self._least(base + slope * int(extreme))
        return max(numeric, scaled) if atom.kind is AtomKind.FLOORDIV else numeric

    def _division_bound(self, base: Expr, slope: Expr, atom: Atom, rising: bool) -> _Number:
        """From `x - n < n * (x // n) <= x`: n times the value is bounded without the division."""
        num, den = atom.operands
        scaled = self._least(base * den + slope * (num - den + 1 if rising else num))
        if (divisor := den.constant) is not None:
            return -_floor(-scaled, divisor)
        if scaled >= 0:
            return 0
        # Above -n is above -1, and the value is an integer.
        shifted = self._least(base * den + slope * (num - den + 1 if rising else num) + den)
        return 0 if shifted >= 1 else -_INFINITY


def _remainder_count(expr: Expr) -> int:
    terms = expr.display_terms()
    return sum(any(atom.kind is AtomKind.MOD for atom in monomial) for monomial, _ in terms)


def _mentions(expr: Expr, atom: Atom) -> bool:
    """Whether a division within `expr` depends on the symbol or dim."""
    if atom.kind is AtomKind.FLOORDIV:
        return False
    return atom.index in (expr.symbols() if atom.kind is AtomKind.SYMBOL else expr.dims())


def _split_multiples(expr: Expr, monomial: Monomial, factor: int) -> tuple[Expr, Expr]:
    """(q, r) with `expr == q*factor*monomial + r`, no coefficient of r a multiple of both."""
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for term, coefficient in expr.terms:
        quotient = divide_monomial(term, monomial)
        if quotient is None:
            rest[term] = coefficient
            continue
        whole[quotient], rest[term] = divmod(coefficient, factor)
    return Expr.from_terms(whole), Expr.from_terms(rest)


def _times(lhs: _Interval, rhs: _Interval) -> _Interval:
    corners = [0 if 0 in (a, b) else a * b for a in lhs for b in rhs]
    return min(corners), max(corners)


def _floor(num: _Number, den: _Number) -> _Number:
    if abs(num) == _INFINITY:
        return num
    if den == _INFINITY:
        return -1 if num < 0 else 0
    return num // den
