# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The algebra: interned canonical integer polynomials over symbols, dims and floor divisions.

Two expressions that the rules below can show equal are one object, so `is` (and `==`) decides
equality, in constant time, whatever way either was built. The rules:

* sums and products are expanded, like terms merged, monomials kept in one fixed order;
* `num // den` becomes `q + r // den`, with `num = q*den + r` the polynomial division and every
  coefficient of `r` that could still be divided reduced to the range of a remainder;
* a factor common to dividend and divisor is cancelled; `(x // a + c) // b` is `(x + a*c) // (a*b)`;
* `x % n` is `x - n * (x // n)`, so `n * (x // n) + x % n` is `x`. The remainders are found again
  when an expression is printed or lowered (`Expr.display_terms`).

Division is Python's: it rounds down. A symbolic divisor must be positive, as in MLIR; a constant
one must not be zero.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from shapejit.symbolic.bounds import Bounds, SymbolRanges

T = TypeVar("T")

Values: TypeAlias = Sequence[int] | Mapping[int, int]


class AtomKind(enum.IntEnum):
    """What an atom is; MOD occurs in display terms only."""

    SYMBOL = 0
    DIM = 1
    FLOORDIV = 2
    MOD = 3


class Atom:
    """An indeterminate of the polynomials: interned, compared by identity, ordered by `key`.

    Attributes:
      kind: which of the four sorts of atom this is.
      index: the number of a symbol or dim; 0 for a division.
      operands: dividend and divisor of a division; empty for a symbol or dim.
      key: nested tuples of ints that give all atoms one order, the same in every process.
    """

    __slots__ = ("index", "key", "kind", "operands")

    def __init__(self, kind: AtomKind, index: int, operands: tuple[Expr, ...]) -> None:
        self.kind: Final = kind
        self.index: Final = index
        self.operands: Final = operands
        detail: tuple[Any, ...] = tuple(e.sort_key for e in operands) if operands else (index,)
        self.key: Final = (int(kind), *detail)

    def __repr__(self) -> str:
        return f"Atom({self.kind.name}, {self.index}, {self.operands})"


Monomial: TypeAlias = "tuple[Atom, ...]"
Term: TypeAlias = "tuple[Monomial, int]"


class Algebra(Protocol[T]):
    """What `Expr.build` needs to turn an expression into values of another kind."""

    def constant(self, value: int) -> T: ...
    def symbol(self, index: int) -> T: ...
    def dim(self, index: int) -> T: ...
    def add(self, lhs: T, rhs: T) -> T: ...
    def mul(self, lhs: T, rhs: T) -> T: ...
    def floordiv(self, lhs: T, rhs: T) -> T: ...
    def mod(self, lhs: T, rhs: T) -> T: ...


# The intern tables live as long as the process: entries are small, and a model has some hundreds.
# `dict.setdefault` on keys of built-in types is atomic, which makes interning thread-safe.
_ATOMS: dict[tuple[int, ...], Atom] = {}
_EXPRS: dict[tuple[Term, ...], Expr] = {}
_QUOTIENTS: dict[tuple[int, int], Expr] = {}


def make_atom(kind: AtomKind, index: int = 0, operands: tuple[Expr, ...] = ()) -> Atom:
    """The one atom of this description. Divisions are keyed by their interned operands."""
    key = (int(kind), index, *map(id, operands))
    atom = _ATOMS.get(key)
    return atom if atom is not None else _ATOMS.setdefault(key, Atom(kind, index, operands))


@functools.cache
def _monomial_key(monomial: Monomial) -> tuple[Any, ...]:
    """Degree first, then atoms: an order that multiplication keeps, as division needs."""
    return (len(monomial), *(atom.key for atom in monomial))


def _term_key(term: Term) -> tuple[Any, ...]:
    return _monomial_key(term[0])


def _atom_key(atom: Atom) -> tuple[Any, ...]:
    return atom.key


def _multiply(lhs: Monomial, rhs: Monomial) -> Monomial:
    if not lhs or not rhs:
        return lhs or rhs
    return tuple(sorted(lhs + rhs, key=_atom_key))


def divide_monomial(num: Monomial, den: Monomial) -> Monomial | None:
    """`num / den`, or None if `den` has an atom more often than `num`."""
    if not den:
        return num
    rest = list(num)
    for atom in den:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


class Expr:
    """An integer-valued expression of symbols `s<i>` and dims `d<i>`. Immutable and interned.

    Operators take `Expr` and `int`. Never construct one directly: start from `const`, `symbol`,
    `dim` or `parse`.
    """

    __slots__ = ("_dims", "_display", "_hash", "_sort_key", "_symbols", "terms")

    terms: tuple[Term, ...]
    """Monomials with their non-zero coefficients, the leading one last."""

    _dims: frozenset[int] | None
    _display: tuple[Term, ...] | None
    _hash: int
    _sort_key: tuple[Any, ...] | None
    _symbols: frozenset[int] | None

    # Construction ---------------------------------------------------------------------------------

    @staticmethod
    def from_terms(terms: Mapping[Monomial, int]) -> Expr:
        """The sum of `coefficient * monomial`; a monomial's atoms must be in `Atom.key` order."""
        kept = [term for term in terms.items() if term[1]]
        if len(kept) > 1:
            kept.sort(key=_term_key)
        return _intern(tuple(kept))

    @staticmethod
    def from_atom(atom: Atom) -> Expr:
        return _intern((((atom,), 1),))

    @staticmethod
    def const(value: int) -> Expr:
        return _intern((((), value),) if value else ())

    @staticmethod
    @functools.cache
    def symbol(index: int) -> Expr:
        """The size symbol `s<index>`."""
        return Expr.from_atom(make_atom(AtomKind.SYMBOL, index))

    @staticmethod
    @functools.cache
    def dim(index: int) -> Expr:
        """The index variable `d<index>` of a map."""
        return Expr.from_atom(make_atom(AtomKind.DIM, index))

    @staticmethod
    def parse(text: str) -> Expr:
        """The inverse of `str`; also reads MLIR's `floordiv`, `ceildiv` and `mod`."""
        from shapejit.symbolic.text import parse

        return parse(text)

    @staticmethod
    def from_affine(expr: Any) -> Expr:
        """The value of an MLIR AffineExpr."""
        from shapejit.symbolic.affine import from_affine

        return from_affine(expr)

    # Queries --------------------------------------------------------------------------------------

    @property
    def constant(self) -> int | None:
        """The value, if it depends on nothing."""
        if not self.terms:
            return 0
        monomial, value = self.terms[0]
        return value if not monomial and len(self.terms) == 1 else None

    @property
    def dim_index(self) -> int | None:
        """i, if this is exactly `d<i>`."""
        return self._plain(AtomKind.DIM)

    @property
    def symbol_index(self) -> int | None:
        """i, if this is exactly `s<i>`."""
        return self._plain(AtomKind.SYMBOL)

    def _plain(self, kind: AtomKind) -> int | None:
        if len(self.terms) != 1:
            return None
        monomial, coefficient = self.terms[0]
        if coefficient != 1 or len(monomial) != 1 or monomial[0].kind is not kind:
            return None
        return monomial[0].index

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Orders expressions the same way in every process."""
        if self._sort_key is None:
            self._sort_key = tuple((_monomial_key(m), c) for m, c in self.terms)
        return self._sort_key

    def symbols(self) -> frozenset[int]:
        """Numbers of the symbols this depends on."""
        if self._symbols is None:
            self._symbols = self._indices(AtomKind.SYMBOL)
        return self._symbols

    def dims(self) -> frozenset[int]:
        """Numbers of the dims this depends on."""
        if self._dims is None:
            self._dims = self._indices(AtomKind.DIM)
        return self._dims

    def _indices(self, kind: AtomKind) -> frozenset[int]:
        found: set[int] = set()
        for atom in self.atoms():
            if atom.kind is kind:
                found.add(atom.index)
            for operand in atom.operands:
                found |= operand.symbols() if kind is AtomKind.SYMBOL else operand.dims()
        return frozenset(found)

    def atoms(self) -> list[Atom]:
        """The distinct atoms of the terms (not those within divisions), in order."""
        return sorted({atom for monomial, _ in self.terms for atom in monomial}, key=_atom_key)

    def coefficients(self, atom: Atom) -> list[Expr]:
        """`[c0, c1, ...]` with `self == c0 + c1*atom + c2*atom**2 + ...` and no `atom` in any c."""
        by_power: dict[int, dict[Monomial, int]] = {}
        for monomial, coefficient in self.terms:
            rest = tuple(a for a in monomial if a is not atom)
            by_power.setdefault(len(monomial) - len(rest), {})[rest] = coefficient
        return [Expr.from_terms(by_power.get(p, {})) for p in range(max(by_power, default=0) + 1)]

    def stride(self, dim: int) -> Expr | None:
        """How much this grows when `d<dim>` grows by one; None if that is not one expression."""
        if dim not in self.dims():
            return ZERO
        parts = self.coefficients(make_atom(AtomKind.DIM, dim))
        if len(parts) != 2 or any(dim in part.dims() for part in parts):
            return None
        return parts[1]

    # Arithmetic -----------------------------------------------------------------------------------

    def __add__(self, other: Expr | int) -> Expr:
        if not isinstance(other, (Expr, int)):
            return NotImplemented
        rhs = as_expr(other)
        if not rhs.terms:
            return self
        if not self.terms:
            return rhs
        total = dict(self.terms)
        for monomial, coefficient in rhs.terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return Expr.from_terms(total)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return _intern(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: Expr | int) -> Expr:
        if not isinstance(other, (Expr, int)):
            return NotImplemented
        return self + -as_expr(other)

    def __rsub__(self, other: int) -> Expr:
        return as_expr(other) + -self

    def __mul__(self, other: Expr | int) -> Expr:
        if not isinstance(other, (Expr, int)):
            return NotImplemented
        rhs = as_expr(other)
        total: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in rhs.terms:
                monomial = _multiply(left, right)
                total[monomial] = total.get(monomial, 0) + a * b
        return Expr.from_terms(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: Expr | int) -> Expr:
        if not isinstance(other, (Expr, int)):
            return NotImplemented
        return _floordiv(self, as_expr(other))

    def __rfloordiv__(self, other: int) -> Expr:
        return _floordiv(as_expr(other), self)

    def __mod__(self, other: Expr | int) -> Expr:
        if not isinstance(other, (Expr, int)):
            return NotImplemented
        divisor = as_expr(other)
        return self - divisor * _floordiv(self, divisor)

    def __rmod__(self, other: int) -> Expr:
        return as_expr(other) % self

    def ceildiv(self, other: Expr | int) -> Expr:
        """Division that rounds up; the divisor must be positive."""
        return (self + other - 1) // other

    def exact_div(self, other: Expr | int) -> Expr | None:
        """`q` with `q * other == self` as polynomials, or None if there is none."""
        divisor = as_expr(other)
        if not divisor.terms:
            return None
        quotient, rest = _divide(self, divisor)
        return None if rest.terms else quotient

    # Values ---------------------------------------------------------------------------------------

    def substitute(
        self,
        symbols: Mapping[int, Expr | int] | None = None,
        dims: Mapping[int, Expr | int] | None = None,
    ) -> Expr:
        """Replaces symbols and dims, all at once; those not named stay."""
        new_symbols, new_dims = symbols or {}, dims or {}
        touched = not self.symbols().isdisjoint(new_symbols) or not self.dims().isdisjoint(new_dims)
        if not touched:
            return self

        def replaced(atom: Atom) -> Expr:
            match atom.kind:
                case AtomKind.SYMBOL if atom.index in new_symbols:
                    return as_expr(new_symbols[atom.index])
                case AtomKind.DIM if atom.index in new_dims:
                    return as_expr(new_dims[atom.index])
                case AtomKind.FLOORDIV:
                    num, den = (e.substitute(new_symbols, new_dims) for e in atom.operands)
                    return num // den
                case _:
                    return Expr.from_atom(atom)

        return self.map_atoms(replaced)

    def map_atoms(self, function: Callable[[Atom], Expr]) -> Expr:
        """The polynomial with every atom of its terms replaced by an expression."""
        images = {atom: function(atom) for atom in self.atoms()}
        total = ZERO
        for monomial, coefficient in self.terms:
            total += product((images[atom] for atom in monomial), start=Expr.const(coefficient))
        return total

    def evaluate(self, symbols: Values = (), dims: Values = ()) -> int:
        """The value at the given symbols and dims (indexed by their numbers)."""

        def value(atom: Atom) -> int:
            match atom.kind:
                case AtomKind.SYMBOL:
                    return symbols[atom.index]
                case AtomKind.DIM:
                    return dims[atom.index]
                case _:
                    num, den = (e.evaluate(symbols, dims) for e in atom.operands)
                    return num // den

        return sum(
            coefficient * math.prod(value(atom) for atom in monomial)
            for monomial, coefficient in self.terms
        )

    def build(self, algebra: Algebra[T]) -> T:
        """The expression in another representation, remainders as `mod`."""

        def atom_value(atom: Atom) -> T:
            match atom.kind:
                case AtomKind.SYMBOL:
                    return algebra.symbol(atom.index)
                case AtomKind.DIM:
                    return algebra.dim(atom.index)
            num, den = (e.build(algebra) for e in atom.operands)
            divide = algebra.mod if atom.kind is AtomKind.MOD else algebra.floordiv
            return divide(num, den)

        def term_value(term: Term) -> T:
            monomial, coefficient = term
            if not monomial:
                return algebra.constant(coefficient)
            value = functools.reduce(algebra.mul, map(atom_value, monomial))
            return value if coefficient == 1 else algebra.mul(value, algebra.constant(coefficient))

        terms = self.display_terms()
        if not terms:
            return algebra.constant(0)
        return functools.reduce(algebra.add, map(term_value, terms))

    def display_terms(self) -> tuple[Term, ...]:
        """Terms for readers: highest degree first, `x - n*(x//n)` written as a MOD atom."""
        if self._display is None:
            from shapejit.symbolic.remainder import recover_remainders

            terms = recover_remainders(self)
            self._display = tuple(sorted(terms.items(), key=_display_key))
        return self._display

    # Ranges ---------------------------------------------------------------------------------------

    def bounds(
        self, symbol_ranges: SymbolRanges | None = None, dim_sizes: Sequence[Expr | int] = ()
    ) -> Bounds:
        """Constant bounds (least, greatest), None where none was found. See `bounds.Ranges`."""
        from shapejit.symbolic.bounds import Ranges

        return Ranges(symbol_ranges, dim_sizes).bounds(self)

    def simplify(
        self, symbol_ranges: SymbolRanges | None = None, dim_sizes: Sequence[Expr | int] = ()
    ) -> Expr:
        """An expression equal to this one within the ranges, with fewer divisions."""
        from shapejit.symbolic.bounds import Ranges

        return Ranges(symbol_ranges, dim_sizes).simplify(self)

    def is_nonnegative(
        self, symbol_ranges: SymbolRanges | None = None, dim_sizes: Sequence[Expr | int] = ()
    ) -> bool:
        """True if provably >= 0 within the ranges; False if unknown."""
        from shapejit.symbolic.bounds import Ranges

        return Ranges(symbol_ranges, dim_sizes).is_nonnegative(self)

    def provably_le(
        self,
        other: Expr | int,
        symbol_ranges: SymbolRanges | None = None,
        dim_sizes: Sequence[Expr | int] = (),
    ) -> bool:
        """True if provably `self <= other` within the ranges; False if unknown."""
        return (other - self).is_nonnegative(symbol_ranges, dim_sizes)

    # Conversions ----------------------------------------------------------------------------------

    def to_affine(self, context: Any) -> Any:
        """This as an MLIR AffineExpr of `context`. A product of two dims is a ValueError."""
        from shapejit.symbolic.affine import to_affine

        return to_affine(self, context)

    def __str__(self) -> str:
        from shapejit.symbolic.text import format_expr

        return format_expr(self)

    def __repr__(self) -> str:
        return f"Expr({str(self)!r})"

    # Identity -------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, int) and self.constant == other

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Callable[[str], Expr], tuple[str]]:
        return Expr.parse, (str(self),)


def _intern(terms: tuple[Term, ...]) -> Expr:
    found = _EXPRS.get(terms)
    if found is not None:
        return found
    made = object.__new__(Expr)
    made.terms = terms
    made._dims = made._display = made._sort_key = made._symbols = None
    value = made.constant
    # Equal to the int, so it hashes like it.
    made._hash = hash(terms) if value is None else hash(value)
    return _EXPRS.setdefault(terms, made)


ZERO: Final = Expr.const(0)
ONE: Final = Expr.const(1)


def as_expr(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else Expr.const(value)


def product(exprs: Iterable[Expr | int], start: Expr = ONE) -> Expr:
    """The product of all, 1 for none."""
    total = start
    for expr in exprs:
        total = total * expr
    return total


def _display_key(term: Term) -> tuple[Any, ...]:
    monomial = term[0]
    return (-len(monomial), *(atom.key for atom in monomial))


# Division -----------------------------------------------------------------------------------------


def _divide(num: Expr, den: Expr) -> tuple[Expr, Expr]:
    """Polynomial division: `num == q*den + r`, with `r` unique for the class of `num` modulo `den`.

    No term of `r` that `den`'s leading monomial divides has a coefficient the leading coefficient
    still goes into, negative coefficients included, so the division terminates with one result.
    """
    lead, lead_coefficient = den.terms[-1]
    rest, quotient = dict(num.terms), {}

    def reducible() -> list[Monomial]:
        return [
            m
            for m, c in rest.items()
            if c // lead_coefficient and divide_monomial(m, lead) is not None
        ]

    while candidates := reducible():
        top = max(candidates, key=_monomial_key)
        factor, count = divide_monomial(top, lead), rest[top] // lead_coefficient
        assert factor is not None
        quotient[factor] = count
        for monomial, coefficient in den.terms:
            target = _multiply(monomial, factor)
            rest[target] = rest.get(target, 0) - coefficient * count
    return Expr.from_terms(quotient), Expr.from_terms(rest)


def _floordiv(num: Expr, den: Expr) -> Expr:
    key = (id(num), id(den))  # interned, so these are theirs for good
    found = _QUOTIENTS.get(key)
    if found is None:
        found = _QUOTIENTS[key] = _new_quotient(num, den)
    return found


def _new_quotient(num: Expr, den: Expr) -> Expr:
    if not den.terms:
        raise ZeroDivisionError(f"symbolic division of {num} by zero")
    if (value := den.constant) is not None and value < 0:
        num, den = -num, -den
    whole = ZERO
    while True:
        quotient, num = _divide(num, den)
        whole += quotient
        if not num.terms or (num.constant is not None and den.constant is not None):
            return whole  # a constant remainder lies in [0, den)
        reduced = _cancel(num, den) or _flatten(num, den)
        if reduced is None:
            return whole + Expr.from_atom(make_atom(AtomKind.FLOORDIV, operands=(num, den)))
        num, den = reduced


def _cancel(num: Expr, den: Expr) -> tuple[Expr, Expr] | None:
    """`(g*a + c) // (g*b) = (a + c//g) // b` for the greatest g found; c is constant."""
    varying = [term for term in num.terms if term[0]]
    factor = math.gcd(*(c for _, c in varying), *(c for _, c in den.terms))
    common = functools.reduce(common_monomial, (m for m, _ in (*num.terms, *den.terms)))
    if not varying or (factor == 1 and not common):
        return None

    def divided(terms: Iterable[Term]) -> Expr:
        return Expr.from_terms({divide_monomial(m, common) or (): c // factor for m, c in terms})

    return divided(num.terms), divided(den.terms)


def common_monomial(lhs: Monomial, rhs: Monomial) -> Monomial:
    """The greatest monomial that divides both."""
    rest, common = list(rhs), []
    for atom in lhs:
        if atom in rest:
            rest.remove(atom)
            common.append(atom)
    return tuple(common)


def _flatten(num: Expr, den: Expr) -> tuple[Expr, Expr] | None:
    """`(x // a + c) // b = (x + a*c) // (a*b)`."""
    for monomial, coefficient in num.terms:
        if coefficient == 1 and len(monomial) == 1 and monomial[0].kind is AtomKind.FLOORDIV:
            x, a = monomial[0].operands
            return x + a * (num - Expr.from_atom(monomial[0])), a * den
    return None
