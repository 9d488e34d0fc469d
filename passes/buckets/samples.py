# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values of a module's symbols all over their ranges: which combinations of sizes there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from shapejit import ir as sir
from shapejit.symbolic import Expr

Integers: TypeAlias = npt.NDArray[np.int64]

#: Combinations that are looked at.
_MOST: Final = 1 << 16
# An unbounded symbol is followed so far; what lies beyond is like that.
_FAR: Final = 1 << 14

_DERIVATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "max": np.maximum,
    "min": np.minimum,
    "floordiv": np.floor_divide,
    "ceildiv": lambda lhs, rhs: -(-lhs // rhs),
    "mod": np.mod,
}


@dataclass(frozen=True)
class Samples:
    """Legal values of a module's symbols.

    Attributes:
        values: of every symbol, by its id, in arrays of one length.
        complete: whether they are all combinations that there are.
    """

    values: Mapping[int, Integers]
    complete: bool

    def __len__(self) -> int:
        return len(next(iter(self.values.values()))) if self.values else 1

    def evaluate(self, size: Expr) -> Integers:
        """The values of a size of the module."""
        # The arithmetic of expressions is that of Python's operators, so arrays will do.
        values: Any = self.values
        return np.broadcast_to(np.asarray(size.evaluate(symbols=values), dtype=np.int64), len(self))


def spread_samples(module: Any) -> Samples:
    """Values of all symbols of a module: every legal combination if there are few, else an even
    spread over the logarithms of the sizes, the ends of ranges included.

    Each satisfies the ranges, divisors, equalities, derivations and constraints of the module.
    """
    symbols = sir.symbols(module)
    free = [s for s in symbols if s.equal_to is None and s.derived is None]
    each = int(_MOST ** (1 / max(len(free), 1)))
    columns = [_values(symbol, each) for symbol in free]
    grids = np.meshgrid(*columns, indexing="ij")
    values = {s.id: grid.ravel() for s, grid in zip(free, grids, strict=True)}
    _complete(symbols, values)
    every = Samples(values, all(map(_is_complete, free, columns)))
    legal = np.ones(len(every), dtype=bool)
    for symbol in symbols:
        legal &= values[symbol.id] >= symbol.min
        if symbol.max is not None:
            legal &= values[symbol.id] <= symbol.max
    for constraint in sir.constraints(module):
        for relation in constraint.relations:
            at = every.evaluate(relation.expr)
            legal &= (at == 0) if relation.is_equality else (at >= 0)
    return Samples({symbol: column[legal] for symbol, column in values.items()}, every.complete)


def _is_complete(symbol: sir.Symbol, values: Integers) -> bool:
    if symbol.max is None:
        return False
    divisor = symbol.divisor
    return len(values) >= symbol.max // divisor - -(-symbol.min // divisor) + 1


def _values(symbol: sir.Symbol, most: int) -> Integers:
    """Up to so many values of a symbol, its least and its greatest one among them."""
    divisor = symbol.divisor
    low = -(-symbol.min // divisor)
    high = max((_FAR if symbol.max is None else symbol.max) // divisor, low)
    if high - low < most:
        return divisor * np.arange(low, high + 1, dtype=np.int64)
    spread = np.rint(np.geomspace(low + 1, high + 1, most)).astype(np.int64) - 1
    return divisor * np.unique(spread)


def _complete(symbols: Sequence[sir.Symbol], values: dict[int, Integers]) -> None:
    """Adds the values of merged and derived symbols."""
    for symbol in symbols:
        if symbol.equal_to is not None:
            values[symbol.id] = values[symbol.equal_to]
        elif symbol.derived is not None:
            known: Any = values
            lhs, rhs = (argument.evaluate(symbols=known) for argument in symbol.arguments)
            length = len(next(iter(values.values()))) if values else 1
            divides = symbol.derived not in ("max", "min")
            result = _DERIVATIONS[symbol.derived](
                lhs, np.where(rhs == 0, 1, rhs) if divides else rhs
            )
            # Nothing is divided by 0: such a combination is out of range.
            found = np.where((rhs == 0) & divides, symbol.min - 1, result)
            values[symbol.id] = np.broadcast_to(found, length).astype(np.int64)
