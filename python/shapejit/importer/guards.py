# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What torch assumed about sizes while it traced the model, held against the user's ranges.

Each guard is one of five things:

* true within the ranges: nothing to do;
* a restriction of one dim (``seq >= 10``, ``seq % 8 == 0``): an error that names it, since the user
  asked for more than the model can do;
* a relation between dims (``batch * seq > 8``): a constraint that each call is checked for;
* torch's own question about strides (is this contiguous?), which changes no value: ignored;
* an inequation ``a != b`` that torch's own code asked about. It picks between equivalent ways to
  do the same thing (is this contiguous? does this broadcast?), so it is ignored; one that the
  model's code asked about is an error.

Guards are judged for sizes from 2 on. Sizes 0 and 1 take the same path as all others by design,
and so do sizes of intermediate tensors: torch's own "is this size 0 or 1?" is ignored too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import sympy

from shapejit.errors import ErrorId
from shapejit.importer.sizes import LEAST_TRACED, SympySizes, UnknownSizeError
from shapejit.importer.source import SourceLine, is_torch_file
from shapejit.importer.symbols import SizeConstraint
from shapejit.symbolic import Bounds, Expr

_Kind = Literal["eq", "ne", "ge"]

Coincidences = dict[str, list[Expr]]
"""By the name of a dim: expressions of it that torch's own code asked whether they are 0."""

_RELATIONS: Final[dict[str, tuple[_Kind, int, int]]] = {
    # kind, sign and offset, so that the relation reads "sign * (lhs - rhs) + offset <kind> 0"
    "Equality": ("eq", 1, 0),
    "Unequality": ("ne", 1, 0),
    "GreaterThan": ("ge", 1, 0),
    "StrictGreaterThan": ("ge", 1, -1),
    "LessThan": ("ge", -1, 0),
    "StrictLessThan": ("ge", -1, -1),
}

_MOST_TRIED: Final = 1 << 14
"""Sizes for which a rule about a single dim is tried out."""

_LAYOUT_FILE: Final = "torch/_prims_common/__init__.py"
_LAYOUT_FUNCTIONS: Final = ("contiguous", "channels_last", "non_overlapping", "swap", "perm")
"""Parts of the names of torch's functions that ask about strides."""


def check_guards(shape_env: Any, sizes: SympySizes, *, validated: bool) -> list[SizeConstraint]:
    """The constraints that torch's guards leave; restrictions of single dims are errors.

    Args:
        shape_env: torch's ShapeEnv of the exported program.
        sizes: the inputs' symbols.
        validated: torch checked single dims against the user's ranges itself.
    """
    found: dict[str, SizeConstraint] = {}
    for guard in shape_env.guards:
        asked = _asked_by_model(guard)
        relations = list(_conjuncts(shape_env.simplify(guard.expr)))
        for relation in relations:
            _assume(relation, sizes)
        if asked is None and (_is_about_layout(guard) or _is_small_size_question(guard.expr)):
            continue
        for relation in relations:
            constraint = _judge(relation, asked, sizes, validated)
            if constraint is not None:
                found.setdefault(str(constraint), constraint)
    return list(found.values())


def coincidences(shape_env: Any, sizes: SympySizes) -> Coincidences:
    """What torch's own code asked about single dims that is true of some sizes in range alone.

    Sizes of which none of it is true take the way that serves all of them: the remainder of a
    division is not 0, two sizes are not equal.
    """
    found: Coincidences = {}
    for guard in shape_env.guards:
        if _asked_by_model(guard) is not None:
            continue
        for relation in _conjuncts(shape_env.simplify(guard.expr)):
            kind = _RELATIONS.get(type(relation).__name__, ("ge", 1, 0))[0]
            try:
                expr = sizes.expr(relation.lhs) - sizes.expr(relation.rhs)
            except UnknownSizeError:
                continue
            expr = sizes.table.traced(expr)
            if kind != "ge" and len(expr.symbols()) == 1 and not _holds("ne", expr, sizes):
                (number,) = expr.symbols()
                found.setdefault(sizes.table.symbols[number].name, []).append(expr)
    return found


def _conjuncts(expr: Any) -> Iterable[Any]:
    if isinstance(expr, sympy.And):
        return [part for arg in expr.args for part in _conjuncts(arg)]
    return [] if expr == sympy.true else [expr]


def _is_small_size_question(relation: Any) -> bool:
    """Whether a guard, as torch wrote it, says of a size only that it is not 0 or 1."""
    match type(relation).__name__:
        case "GreaterThan" | "StrictGreaterThan":
            low = relation.rhs
        case "LessThan" | "StrictLessThan":
            low = relation.lhs
        case _:
            return False
    strict = type(relation).__name__.startswith("Strict")
    return bool(low.is_Integer) and int(low) + strict <= LEAST_TRACED


def _asked_by_model(guard: Any) -> SourceLine | None:
    """The line of the model that asked, unless torch's own code did."""
    frame = _asking_frame(guard)
    file = getattr(frame, "filename", None)
    return None if file is None or is_torch_file(file) else SourceLine(file, frame.lineno or 0)


def _is_about_layout(guard: Any) -> bool:
    """Whether torch's own code asked how a tensor lies in memory, which changes no value."""
    frame = _asking_frame(guard)
    file = str(getattr(frame, "filename", "")).replace("\\", "/")
    name = str(getattr(frame, "name", ""))
    return file.endswith(_LAYOUT_FILE) and any(word in name for word in _LAYOUT_FUNCTIONS)


def _asking_frame(guard: Any) -> Any:
    return getattr(getattr(guard, "sloc", None), "framework_loc", None)


def _assume(relation: Any, sizes: SympySizes) -> None:
    """Lets the symbols know that an inequality held while torch traced."""
    kind, sign, offset = _RELATIONS.get(type(relation).__name__, ("ne", 1, 0))
    if kind == "ge":
        try:
            expr = (sizes.expr(relation.lhs) - sizes.expr(relation.rhs)) * sign + offset
        except UnknownSizeError:
            return
        sizes.table.assume(sizes.table.traced(expr))


def _judge(
    relation: Any, asked: SourceLine | None, sizes: SympySizes, validated: bool
) -> SizeConstraint | None:
    shape = _RELATIONS.get(type(relation).__name__)
    try:
        if shape is None:
            raise UnknownSizeError(str(relation))
        kind, sign, offset = shape
        expr = (sizes.expr(relation.lhs) - sizes.expr(relation.rhs)) * sign + offset
    except UnknownSizeError as error:
        if asked is None:
            return None  # about intermediate sizes that depend on data; those ops are errors
        raise _unstated(str(relation), asked) from error
    expr = sizes.table.traced(expr)
    if _holds(kind, expr, sizes):
        return None
    if kind == "ne":
        if asked is None:
            return None
        raise _unstated(f"{sizes.table.describe(expr)} != 0", asked)
    if len(expr.symbols()) == 1:
        if validated and sizes.table.is_named(*expr.symbols()):
            return None
        held = _held_sizes(kind, expr, sizes)
        if held == sizes.table.traced_ranges.bounds(Expr.symbol(*expr.symbols())):
            return None
        raise _restriction(kind, expr, asked, held, sizes)
    return SizeConstraint(kind, expr, asked)


def _holds(kind: _Kind, expr: Expr, sizes: SympySizes) -> bool:
    ranges = sizes.table.traced_ranges
    match kind:
        case "eq":
            return expr == 0
        case "ge":
            return ranges.is_nonnegative(expr)
        case "ne":
            return ranges.is_nonnegative(expr - 1) or ranges.is_nonnegative(-1 - expr)


def _unstated(rule: str, asked: SourceLine | None) -> Exception:
    return ErrorId.SJ_EXPORT_010.error(
        rule=rule,
        suggestion="a relation or range that keeps to it",
        location=None if asked is None else str(asked),
    )


def _held_sizes(kind: Literal["eq", "ge"], expr: Expr, sizes: SympySizes) -> Bounds | None:
    """The longest run of sizes for which a rule about a single dim holds, found by trying them.

    None if its range has no end, or too many sizes, or none for which the rule holds.
    """
    (number,) = expr.symbols()
    low, high = sizes.table.traced_ranges.bounds(Expr.symbol(number))
    if low is None or high is None or high - low > _MOST_TRIED:
        return None
    best, first = (0, -1), low
    for value in range(low, high + 1):
        if not _is_kept(kind, expr, {number: value}):
            first = value + 1
        elif value - first > best[1] - best[0]:
            best = (first, value)
    return None if best[1] < best[0] else best


def _is_kept(kind: Literal["eq", "ge"], expr: Expr, values: Mapping[int, int]) -> bool:
    try:
        result = expr.evaluate(symbols=values)
    except ZeroDivisionError:
        return False
    return result == 0 if kind == "eq" else result >= 0


def _restriction(
    kind: Literal["eq", "ge"],
    expr: Expr,
    asked: SourceLine | None,
    held: Bounds | None,
    sizes: SympySizes,
) -> Exception:
    """The error for a rule about a single dim, which holds for sizes in `held` if that is known."""
    table = sizes.table
    (number,) = expr.symbols()
    symbol = table.symbols[number]
    location = None if asked is None else str(asked)
    limits = _limits(expr, number) if kind == "ge" else None
    divisor = _divisor(expr, number) if kind == "eq" else None
    if limits is None and held is not None and divisor is None:
        limits = _limits_of_run(held, sizes.table.traced_ranges.bounds(Expr.symbol(number)))
    if limits is None or symbol.derived:
        if divisor is not None:
            rule = f"{symbol.name} divisible by {divisor}"
            suggestion = f'{divisor} * Dim("{symbol.name}")'
        else:
            rule = f"{table.describe(expr)} {'==' if kind == 'eq' else '>='} 0"
            suggestion = "a relation or range that keeps to it"
        return ErrorId.SJ_EXPORT_010.error(rule=rule, suggestion=suggestion, location=location)
    low, high = limits
    rule = f"{symbol.name} >= {low}" if low is not None else f"{symbol.name} <= {high}"
    bounds = {
        "min": symbol.min if low is None else max(low, symbol.min),
        "max": symbol.max if high is None else high,
    }
    text = ", ".join(f"{name}={bound}" for name, bound in bounds.items() if bound is not None)
    return ErrorId.SJ_EXPORT_011.error(
        rule=rule,
        dim=symbol.name,
        range=f"{symbol.min}..{'' if symbol.max is None else symbol.max}",
        suggestion=f'Dim("{symbol.name}", {text})',
        location=location,
    )


def _limits_of_run(run: Bounds, whole: Bounds) -> Bounds | None:
    """(least, None) or (None, greatest) value if a run of sizes reaches to the other end.

    None if it is less than half of the range: the rule then is no limit, but holds by chance.
    """
    (first, last), (low, high) = run, whole
    assert first is not None and last is not None and low is not None and high is not None
    if 2 * (last - first) < high - low:
        return None
    if last == high:
        return first, None
    return (None, last) if first == low else None


def _limits(expr: Expr, symbol: int) -> tuple[int | None, int | None] | None:
    """(least, None) or (None, greatest) value of the symbol for ``scale*s + offset >= 0``."""
    offset = expr.substitute(symbols={symbol: 0}).constant
    one = expr.substitute(symbols={symbol: 1}).constant
    if offset is None or one is None:
        return None
    scale = one - offset
    if expr != Expr.symbol(symbol) * scale + offset or scale == 0:
        return None
    if scale > 0:
        return math.ceil(-offset / scale), None
    return None, offset // -scale


def _divisor(expr: Expr, symbol: int) -> int | None:
    """n, if ``expr == 0`` says exactly that n divides the symbol."""
    for divisor in range(2, 4097):
        rest = expr.substitute(symbols={symbol: Expr.symbol(symbol) * divisor})
        if rest == 0:
            return divisor
    return None
