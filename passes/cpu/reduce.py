# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reductions to SSA scalars over the innermost dims of a nest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shapejit.passes.cpu.indexing import Indexer, Value
from shapejit.passes.cpu.scalars import Type, combine, identity, is_float
from shapejit.symbolic import Expr

Contribution: TypeAlias = Callable[[list[Expr]], Sequence[Value]]
"""From the indices in the reduced dims to one value a reduction."""

# A float sum over more elements than this is a sum of sums: the rounding error of a plain sum grows
# with the number of its terms.
_SUM_BLOCK = 8192


@dataclass(frozen=True)
class Reduction:
    """A combine kind (add, mul, max, min, and, or) and the type it works in."""

    kind: str
    type: Type

    @property
    def identity(self) -> Value:
        return identity(self.kind, self.type)


def emit_reductions(
    indexer: Indexer,
    sizes: Sequence[Expr],
    reductions: Sequence[Reduction],
    contribution: Contribution,
) -> list[Value]:
    """Loops over ``sizes`` and returns the combined contributions, identities for an empty space.

    With no reductions the loops run for what ``contribution`` emits.
    """

    def combined(totals: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        return [
            combine(reduction.kind, total, value)
            for reduction, total, value in zip(reductions, totals, values, strict=True)
        ]

    def identities() -> list[Value]:
        return [reduction.identity for reduction in reductions]

    def level(indices: list[Expr]) -> Sequence[Value]:
        """The reduction over the dims from ``len(indices)`` on."""
        depth = len(indices)
        if depth == len(sizes):
            return contribution(indices)
        size = sizes[depth]
        innermost = depth == len(sizes) - 1
        if not (innermost and _is_long_sum(reductions, size)):
            return indexer.loop(
                0,
                size,
                lambda index, totals: combined(totals, level([*indices, index])),
                init=identities(),
            )

        def block(start: Expr, totals: list[Value]) -> list[Value]:
            length = indexer.minimum(_SUM_BLOCK, size - start)
            partial = indexer.loop(
                0,
                length,
                lambda index, sums: combined(sums, contribution([*indices, start + index])),
                init=identities(),
            )
            return combined(totals, partial)

        return indexer.loop(0, size, block, step=_SUM_BLOCK, init=identities())

    return list(level([]))


def _is_long_sum(reductions: Sequence[Reduction], size: Expr) -> bool:
    if size.constant is not None and size.constant <= 2 * _SUM_BLOCK:
        return False
    return any(reduction.kind == "add" and is_float(reduction.type) for reduction in reductions)
