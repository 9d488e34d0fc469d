# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Legal values of a module's symbols, to test statements that could not be proved."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from shapejit import ir as sir
from shapejit.symbolic import Expr

Assignment = dict[int, int]
"""A value for every symbol, by id."""

_SAMPLES: Final = 24
# Beyond its least value an unbounded symbol is drawn from this many.
_SPAN: Final = 4096

_DERIVATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "max": max,
    "min": min,
    "floordiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
}


def sample_symbols(module: Any) -> list[Assignment]:
    """The same assignments every time: all least, all greatest, and some at random.

    Each satisfies the ranges, divisors, equalities, derivations and constraints of the module; a
    draw that violates a constraint is dropped.
    """
    symbols, constraints = sir.symbols(module), sir.constraints(module)
    relations = [relation for constraint in constraints for relation in constraint.relations]
    generator = random.Random(0)
    choices: list[Callable[[int, int], int]] = [min, max]
    choices += [generator.randint] * _SAMPLES + [
        lambda lo, hi: generator.randint(lo, min(hi, lo + 8))
    ] * _SAMPLES
    found: dict[tuple[int, ...], Assignment] = {}
    for choose in choices:
        assignment = _assign(symbols, choose)
        if assignment is not None and all(_holds(r, assignment) for r in relations):
            found[tuple(assignment.values())] = assignment
    return list(found.values())


def _assign(symbols: Sequence[sir.Symbol], choose: Callable[[int, int], int]) -> Assignment | None:
    values: Assignment = {}
    for symbol in symbols:
        value = _value(symbol, values, choose)
        greatest = symbol.max
        if value is None or value < symbol.min or (greatest is not None and value > greatest):
            return None
        values[symbol.id] = value
    return values


def _value(symbol: sir.Symbol, known: Assignment, choose: Callable[[int, int], int]) -> int | None:
    if symbol.equal_to is not None:
        return known[symbol.equal_to]
    if symbol.derived is not None:
        left, right = (e.evaluate(known) for e in symbol.arguments)
        if right == 0 and symbol.derived not in ("max", "min"):
            return None
        return _DERIVATIONS[symbol.derived](left, right)
    greatest = symbol.min + _SPAN if symbol.max is None else symbol.max
    divisor = symbol.divisor
    return divisor * choose(-(-symbol.min // divisor), greatest // divisor)


def _holds(relation: sir.Relation, values: Assignment) -> bool:
    value = relation.expr.evaluate(values)
    return value == 0 if relation.is_equality else value >= 0


def describe(exprs: Sequence[Expr], values: Assignment) -> str:
    """The values of the symbols that `exprs` mention: "where s0 = 3, s1 = 17"."""
    used = sorted(set().union(*(e.symbols() for e in exprs)))
    return "where " + ", ".join(f"s{i} = {values[i]}" for i in used) if used else "always"
