# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Expressions as text: `s0*s1 + 4`, `d0//32`, `(d0 + 1) % s0`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from shapejit.symbolic.expr import Atom, AtomKind, Expr, Term

_TOKEN: Final = re.compile(r"\s*(?:(\d+)|([sd])(\d+)\b|(//|[-+*%()]|floordiv\b|ceildiv\b|mod\b))")

_PRODUCT_OPS: Final[dict[str, Callable[[Expr, Expr], Expr]]] = {
    "*": Expr.__mul__,
    "//": Expr.__floordiv__,
    "floordiv": Expr.__floordiv__,
    "ceildiv": Expr.ceildiv,
    "%": Expr.__mod__,
    "mod": Expr.__mod__,
}


def format_expr(expr: Expr) -> str:
    """Python syntax, so that evaluating the text gives the expression's value."""
    text = ""
    for position, (monomial, coefficient) in enumerate(expr.display_terms()):
        sign = "-" if coefficient < 0 else ""
        joint = sign if position == 0 else f" {sign or '+'} "
        # A leading minus binds tighter than a division that follows it.
        bare = position > 0 or not sign
        text += joint + _format_term((monomial, abs(coefficient)), bare)
    return text or "0"


def _format_term(term: Term, bare: bool) -> str:
    monomial, coefficient = term
    alone = bare and len(monomial) == 1 and coefficient == 1
    factors = [_format_atom(atom, alone) for atom in monomial]
    if coefficient != 1 or not factors:
        factors.insert(0, str(coefficient))
    return "*".join(factors)


def _format_atom(atom: Atom, alone: bool) -> str:
    match atom.kind:
        case AtomKind.SYMBOL:
            return f"s{atom.index}"
        case AtomKind.DIM:
            return f"d{atom.index}"
    num, den = map(_format_operand, atom.operands)
    text = f"{num}//{den}" if atom.kind is AtomKind.FLOORDIV else f"{num} % {den}"
    return text if alone else f"({text})"


def _format_operand(expr: Expr) -> str:
    value = expr.constant
    simple = expr.symbol_index is not None or expr.dim_index is not None
    return str(expr) if simple or (value is not None and value >= 0) else f"({expr})"


def parse(text: str) -> Expr:
    """Reads what `format_expr` writes and MLIR's spelling of affine expressions.

    Raises:
      ValueError: the text is not an expression; it names the offending place.
    """
    return _Parser(text).parse()


class _Parser:
    """Recursive descent over sums of products of atoms, as in Python."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._match: re.Match[str] | None = None
        self._advance()

    def parse(self) -> Expr:
        result = self._sum()
        if self._match is not None:
            raise self._error("an operator or the end")
        return result

    def _advance(self) -> None:
        if self._match is not None:
            self._position = self._match.end()
        self._match = _TOKEN.match(self._text, self._position)
        if self._match is None and self._text[self._position :].strip():
            raise self._error("a symbol s<i>, a dim d<i>, an integer or an operator")

    def _operator(self) -> str | None:
        return self._match.group(4) if self._match is not None else None

    def _sum(self) -> Expr:
        total = self._product()
        while (operator := self._operator()) in ("+", "-"):
            self._advance()
            right = self._product()
            total = total + right if operator == "+" else total - right
        return total

    def _product(self) -> Expr:
        total = self._factor()
        while (operator := self._operator()) in _PRODUCT_OPS:
            self._advance()
            total = _PRODUCT_OPS[operator](total, self._factor())
        return total

    def _factor(self) -> Expr:
        token = self._match
        if token is None:
            raise self._error("an operand")
        number, letter, index, operator = token.groups()
        if operator not in (None, "-", "("):
            raise self._error("an operand")
        self._advance()
        if number is not None:
            return Expr.const(int(number))
        if letter is not None:
            return Expr.symbol(int(index)) if letter == "s" else Expr.dim(int(index))
        if operator == "-":
            return -self._factor()
        inner = self._sum()
        if self._operator() != ")":
            raise self._error("')'")
        self._advance()
        return inner

    def _error(self, expected: str) -> ValueError:
        return ValueError(
            f"expected {expected} at offset {self._position} of the expression {self._text!r}"
        )
