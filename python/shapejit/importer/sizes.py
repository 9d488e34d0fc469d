# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The module's symbols, and torch's symbolic sizes written in them.

Symbols get dense ids in order of first use. What an affine expression cannot say (`max`, `min`,
division by a size that may be zero) becomes a derived symbol. Symbols of sizes keep the user's
range, although torch traced with sizes from 2 on: `SymbolTable.traced` is the view torch had, in
which a derived symbol such as ``max(s0 - 2, 0)`` is simply ``s0 - 2``.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import sympy

from shapejit.artefacts import Derivation
from shapejit.errors import ErrorId
from shapejit.importer.dynamic_shapes import DimKind, RootDim
from shapejit.symbolic import Bounds, Expr, Ranges, product

LEAST_TRACED: Final = 2
"""torch.export reasons as if every dynamic size were at least this."""


@dataclass
class Symbol:
    """A size symbol of the module.

    Attributes:
        name: the user's name, or ``d<id>`` of a derived symbol.
        id: ``s<id>`` in every expression.
        min, max: inclusive range; no `max` means unbounded.
        opt: the size expected most often, if known.
        divisor: divides every legal value.
        equal_to: id of the earlier symbol it was found equal to; it occurs in no expression then.
        derived: its definition, for one that no input determines.
    """

    name: str
    id: int
    min: int
    max: int | None
    opt: int | None = None
    divisor: int = 1
    equal_to: int | None = None
    derived: Derivation | None = None

    @property
    def expr(self) -> Expr:
        """``s<id>``, or that of the symbol it equals."""
        return Expr.symbol(self.id if self.equal_to is None else self.equal_to)


class SymbolTable:
    """The symbols in id order, and reasoning over their ranges."""

    def __init__(self) -> None:
        self.symbols: list[Symbol] = []
        self._roots: dict[str, Symbol] = {}
        self._named: set[int] = set()
        self._derived: dict[Derivation, Symbol] = {}
        self._facts: dict[Expr, None] = {}
        self.required: dict[Expr, None] = {}
        """What must not be negative in any call, in order: `require`."""

    def root(self, dim: RootDim) -> Symbol:
        """The symbol of a size the user named."""
        symbol = self._roots.get(dim.name)
        if symbol is None:
            symbol = Symbol(dim.name, len(self.symbols), dim.min, dim.max, dim.opt)
            self._roots[dim.name] = symbol
            if dim.kind is DimKind.NAMED:
                self._named.add(symbol.id)
            self._append(symbol)
        return symbol

    def has_root(self, dim: RootDim) -> bool:
        """Whether `dim` has a symbol."""
        return dim.name in self._roots

    def is_named(self, number: int) -> bool:
        """Whether the user gave symbol `number` its name."""
        return number in self._named

    def merge(self, later: Symbol, earlier: Symbol) -> None:
        """Records that `later` always equals `earlier`, whose range shrinks to the common one."""
        later.equal_to = earlier.id
        earlier.min = max(earlier.min, later.min)
        highs = [high for high in (earlier.max, later.max) if high is not None]
        earlier.max = min(highs, default=None)
        if earlier.opt is None:
            earlier.opt = later.opt
        self._forget_ranges()

    def maximum(self, lhs: Expr, rhs: Expr) -> Expr:
        """max(lhs, rhs): one of the two if the ranges decide, else a derived symbol."""
        if self.ranges.is_nonnegative(lhs - rhs):
            return lhs
        if self.ranges.is_nonnegative(rhs - lhs):
            return rhs
        return self._derive(Derivation("max", lhs, rhs))

    def minimum(self, lhs: Expr, rhs: Expr) -> Expr:
        """min(lhs, rhs): one of the two if the ranges decide, else a derived symbol."""
        if self.ranges.is_nonnegative(lhs - rhs):
            return rhs
        if self.ranges.is_nonnegative(rhs - lhs):
            return lhs
        return self._derive(Derivation("min", lhs, rhs))

    def require(self, *exprs: Expr) -> None:
        """Has every call checked that none of these is negative, where the ranges leave it open."""
        for expr in exprs:
            if not self.ranges.is_nonnegative(expr):
                self.required.setdefault(expr)

    def assume(self, expr: Expr) -> None:
        """Records that `expr` was not negative when torch traced: `traced` reckons with it."""
        if not self.traced_ranges.is_nonnegative(expr):
            self._facts.setdefault(expr)

    def _derive(self, derived: Derivation) -> Expr:
        symbol = self._derived.get(derived)
        if symbol is None:
            low, high = self._derived_bounds(derived)
            if low is not None and low < 0:
                # A symbol is never negative.
                shifted = Derivation(derived.kind, derived.lhs - low, derived.rhs - low)
                return self._derive(shifted) + low
            number = len(self.symbols)
            symbol = Symbol(self._derived_name(number), number, low or 0, high, derived=derived)
            self._derived[derived] = symbol
            self._append(symbol)
        return symbol.expr

    def _derived_name(self, number: int) -> str:
        """``d7``, unless the user has a dim of that name."""
        taken = {symbol.name for symbol in self.symbols}
        name = f"d{number}"
        while name in taken:
            name += "_"
        return name

    def _derived_bounds(self, derived: Derivation) -> Bounds:
        (low_a, high_a), (low_b, high_b) = map(self.ranges.bounds, (derived.lhs, derived.rhs))
        pick = max if derived.kind == "max" else min
        unbounded = high_a is None or high_b is None
        if derived.kind == "min":
            high: int | None = min((h for h in (high_a, high_b) if h is not None), default=None)
        else:
            high = None if unbounded else max(high_a or 0, high_b or 0)
        lows = [low for low in (low_a, low_b) if low is not None]
        known = lows and (derived.kind == "max" or len(lows) == 2)
        return (pick(lows) if known else None, high)

    def _append(self, symbol: Symbol) -> None:
        self.symbols.append(symbol)
        self._forget_ranges()

    def _forget_ranges(self) -> None:
        self.__dict__.pop("ranges", None)
        self.__dict__.pop("traced_ranges", None)

    @functools.cached_property
    def ranges(self) -> Ranges:
        """Reasoning over the ranges that the user gave."""
        return Ranges({s.id: (s.min, s.max) for s in self.symbols})

    @functools.cached_property
    def traced_ranges(self) -> Ranges:
        """Reasoning over the ranges torch traced with: at least 2, unless the user says more."""
        return Ranges(
            {
                s.id: (s.min, s.max)
                if s.derived
                else (max(s.min, LEAST_TRACED), _traced_max(s.max))
                for s in self.symbols
            }
        )

    def traced(self, expr: Expr) -> Expr:
        """`expr` as torch saw it: derived symbols resolved by the traced ranges."""
        while True:
            known = {
                s.id: resolved
                for s in self.symbols
                if s.derived and s.id in expr.symbols()
                if (resolved := self._resolve(s.derived)) is not None
            }
            if not known:
                return self.traced_ranges.simplify(expr)
            expr = expr.substitute(symbols=known)

    def constant(self, expr: Expr) -> int | None:
        """The one value of `expr` as torch saw it, if need be found by trying a dim's sizes."""
        expr = self.traced(expr)
        if expr.constant is not None or len(expr.symbols()) != 1:
            return expr.constant
        (number,) = expr.symbols()
        low, high = self.traced_ranges.bounds(Expr.symbol(number))
        if low is None or high is None or high - low > _MAX_TRIED:
            return None
        try:
            found = {expr.evaluate(symbols={number: size}) for size in range(low, high + 1)}
        except ZeroDivisionError:
            return None
        return found.pop() if len(found) == 1 else None

    def _resolve(self, derived: Derivation) -> Expr | None:
        greater, lesser = derived.lhs, derived.rhs
        difference = self.traced(greater) - self.traced(lesser)
        if not self._held_in_trace(difference):
            greater, lesser = lesser, greater
            if not self._held_in_trace(-difference):
                return None
        return greater if derived.kind == "max" else lesser

    def _held_in_trace(self, expr: Expr) -> bool:
        """Whether `expr` is known to have been no less than 0, or than something that was."""
        ranges = self.traced_ranges
        return ranges.is_nonnegative(expr) or any(
            ranges.is_nonnegative(expr - fact) for fact in self._facts
        )

    def describe(self, expr: Expr) -> str:
        """`expr` with the user's names in place of ``s<id>``, derived symbols written out."""

        def text(match: re.Match[str]) -> str:
            symbol = self.symbols[int(match[1])]
            made = symbol.derived
            if made is None:
                return symbol.name
            return f"{made.kind}({self.describe(made.lhs)}, {self.describe(made.rhs)})"

        return re.sub(r"\bs(\d+)\b", text, str(expr))


def scaled_size(table: SymbolTable, size: Expr, factor: float) -> Expr:
    """``floor(size * factor)``, as it comes out in double precision.

    Raises:
        UnknownSizeError: no quotient of integers gives that for all sizes within their range.
    """
    exact = Fraction(factor)
    if exact > 0 and exact.denominator <= _MAX_DENOMINATOR:  # products are exact
        return (size * exact.numerator) // exact.denominator
    near = exact.limit_denominator(_MAX_DENOMINATOR)
    low, high = table.ranges.bounds(size)
    if near <= 0 or low is None or high is None or high - low > _MAX_TRIED:
        raise UnknownSizeError(f"{table.describe(size)} * {factor}, of no bounded size")
    for value in range(low, high + 1):
        if math.floor(value * factor) != value * near.numerator // near.denominator:
            raise UnknownSizeError(f"{table.describe(size)} * {factor}")
    return (size * near.numerator) // near.denominator


_MAX_DENOMINATOR: Final = 4096
_MAX_TRIED: Final = 1 << 17
"""Sizes for which a factor that is no small fraction is tried out."""


def _traced_max(high: int | None) -> int | None:
    return None if high is None else max(high, LEAST_TRACED)


class SympySizes:
    """Writes torch's symbolic sizes, sympy expressions, in the module's symbols."""

    def __init__(self, table: SymbolTable) -> None:
        self.table = table
        self.values: dict[sympy.Symbol, Expr] = {}
        """torch's symbols in terms of the module's."""

    def size(self, size: Any) -> Expr:
        """An int, a `torch.SymInt` or a sympy expression as an `Expr`."""
        if isinstance(size, int):
            return Expr.const(size)
        return self.expr(size.node.expr if hasattr(size, "node") else size)

    def shape(self, sizes: Any) -> tuple[Expr, ...]:
        """A `torch.Size` of a fake tensor."""
        return tuple(map(self.size, sizes))

    def expr(self, expr: sympy.Expr) -> Expr:
        """The value of a sympy expression; a symbol of unknown origin depends on data."""
        if isinstance(expr, sympy.Symbol):
            value = self.values.get(expr)
            if value is None:
                raise UnknownSizeError(str(expr))
            return value
        if isinstance(expr, sympy.Integer):
            return Expr.const(int(expr))
        if type(expr).__name__ in ("TruncToInt", "FloorToInt"):
            return self._scaled(expr.args[0])
        convert = _CONVERTERS.get(type(expr).__name__)
        if convert is None:
            raise UnknownSizeError(str(expr))
        return convert(self, [self.expr(arg) for arg in expr.args])

    def _scaled(self, expr: sympy.Expr) -> Expr:
        """A size times a float, rounded down: what ``int(size * 1.5)`` is."""
        factors = [arg for arg in expr.args if arg.is_Float or arg.is_Rational]
        rest = [arg for arg in expr.args if arg not in factors]
        if not expr.is_Mul or len(rest) != 1 or type(rest[0]).__name__ != "ToFloat":
            raise UnknownSizeError(str(expr))
        size = self.expr(rest[0].args[0])
        if not self.table.ranges.is_nonnegative(size):  # `int` rounds to zero, `floor` down
            raise UnknownSizeError(str(expr))
        return scaled_size(self.table, size, math.prod(map(float, factors)))


class UnknownSizeError(ValueError):
    """A size that is no expression of the inputs' sizes."""

    def as_user_error(self, op: str, location: str | None) -> Exception:
        """The catalogue's error, for operator `op` of the model."""
        return ErrorId.SJ_EXPORT_012.error(op=op, location=location)


def _power(_: SympySizes, args: list[Expr]) -> Expr:
    exponent = args[1].constant
    if exponent is None or exponent < 0:
        raise UnknownSizeError(f"{args[0]} ** {args[1]}")
    return product([args[0]] * exponent)


def _fold(
    combine: Callable[[SymbolTable, Expr, Expr], Expr],
) -> Callable[[SympySizes, list[Expr]], Expr]:
    return lambda sizes, args: functools.reduce(functools.partial(combine, sizes.table), args)


_CONVERTERS: Final[Mapping[str, Callable[[SympySizes, list[Expr]], Expr]]] = {
    "Add": lambda _, args: sum(args, Expr.const(0)),
    "Mul": lambda _, args: product(args),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": lambda _, args: args[0] // args[1],
    "CleanDiv": lambda _, args: args[0] // args[1],
    "CeilDiv": lambda _, args: args[0].ceildiv(args[1]),
    "Mod": lambda _, args: args[0] % args[1],
    "PythonMod": lambda _, args: args[0] % args[1],
    "Max": _fold(SymbolTable.maximum),
    "Min": _fold(SymbolTable.minimum),
}
