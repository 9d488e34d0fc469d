# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The transforms of Winograd's minimal filtering F(m, 3), after Lavin and Gray (arXiv:1509.09308).

``m`` neighbouring outputs of a filter of three taps take ``m + 2`` products instead of ``3 m``::

    y = A^T ((G g) * (B^T d))        d: m + 2 inputs, g: 3 taps, y: m outputs; * element by element

In two dims each transform is applied along both; along a dim of one tap it is F(1, 1), which leaves
everything as it is. Interpolation is at the points 0, 1, -1 and
infinity, for m = 4 also at 2 and -2, whose powers are what costs accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]

#: Taps of the filters along each dim.
TAPS = 3


def _matrix(text: str) -> Matrix:
    return tuple(tuple(map(Fraction, row.split())) for row in text.split(";"))


@dataclass(frozen=True)
class Algorithm:
    """The transforms of F(m, 3), or of F(1, 1).

    Attributes:
        tile: m, outputs along a dim.
        inputs: B^T.
        filters: G.
        outputs: A^T.
    """

    tile: int
    inputs: Matrix
    filters: Matrix
    outputs: Matrix

    @property
    def points(self) -> int:
        """Products along a dim: m + 2."""
        return len(self.inputs)

    def __str__(self) -> str:
        return f"F({self.tile},{len(self.filters[0])})"


F2 = Algorithm(
    2,
    _matrix("1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1"),
    _matrix("1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1"),
    _matrix("1 1 1 0; 0 1 -1 -1"),
)

F4 = Algorithm(
    4,
    _matrix(
        "4 0 -5 0 1 0; 0 -4 -4 1 1 0; 0 4 -4 -1 1 0; 0 -2 -1 2 1 0; 0 2 -1 -2 1 0; 0 4 0 -5 0 1"
    ),
    _matrix("1/4 0 0; -1/6 -1/6 -1/6; -1/6 1/6 -1/6; 1/24 1/12 1/6; 1/24 -1/12 1/6; 0 0 1"),
    _matrix("1 1 1 1 1 0; 0 1 -1 2 -2 0; 0 1 1 4 4 0; 0 1 -1 8 -8 1"),
)

#: What passes a dim of one tap through.
ONE_TAP = Algorithm(1, _matrix("1"), _matrix("1"), _matrix("1"))

ALGORITHMS = (F2, F4)


@dataclass(frozen=True)
class Slot:
    """One summand of every row of a transform, for rows that are known when the code runs.

    Attributes:
        places: by row, which element it takes.
        factors: by row, what that is multiplied by; 0 where the row has no such summand.
    """

    places: tuple[int, ...]
    factors: tuple[Fraction, ...]


def slots(matrix: Matrix) -> list[Slot]:
    """The summands of a transform's rows, as many as the fullest row has."""
    rows = [[(i, value) for i, value in enumerate(row) if value] for row in matrix]
    count = max(map(len, rows))
    padded = [row + [(row[-1][0], Fraction(0))] * (count - len(row)) for row in rows]
    return [
        Slot(tuple(row[i][0] for row in padded), tuple(row[i][1] for row in padded))
        for i in range(count)
    ]
