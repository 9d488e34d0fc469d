# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a row is divided among the threads of a team.

A row that starts at a multiple of the vectors' length and has as many elements is whole vectors.
Another one is cut::

    elements      ..xx xxxxxxxx xxxxxxxx xxxxx...
    addresses     ^        ^        ^        ^        multiples
                    head   vectors          tail

The elements of head and tail are fewer than two vectors have, so a warp has a lane for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.problem import Indices
from shapejit.passes.nvgpu.builder import (
    Value,
    add,
    compare,
    mul,
    select,
    sub,
    udiv,
    umin,
    urem,
)
from shapejit.symbolic import Expr


@dataclass(frozen=True)
class Chunk:
    """Neighbouring elements of a row that a thread takes at once.

    Attributes:
        columns: their indices in the column dims, over the lane.
        condition: i1, whether they are of the row; None if they are.
        length: how many.
        lane: counts them.
    """

    columns: Indices
    condition: Value | None
    length: int
    lane: Expr


@dataclass(frozen=True)
class Way:
    """How rows are passed over.

    Attributes:
        length: of vectors.
        chunks: vectors that a thread keeps in registers; 0 to load the row again in each pass.
        lane: counts the elements of vectors.
        start: of rows that are cut, the offset of a row's first element over the row dims.
        shared: whether the row lies in shared memory.
    """

    length: int
    chunks: int
    lane: Expr
    start: Expr | None = None
    shared: bool = False


@dataclass(frozen=True)
class Cut:
    """A row that is cut.

    Attributes:
        vectors: how many whole ones there are, of the index type.
        way: how it is passed over.
        kept: what the thread keeps of it.
    """

    vectors: Value
    way: Way
    kept: list[Chunk] = field(default_factory=list)
    _emission: Emission = field(kw_only=True)
    _start: Expr = field(kw_only=True)
    _columns: Expr = field(kw_only=True)
    _first: Expr = field(kw_only=True)
    _head: Value = field(kw_only=True)
    _tail: Value = field(kw_only=True)

    @staticmethod
    def at(emission: Emission, row: Indices, columns: Expr, way: Way) -> Cut:
        """The row at some indices.

        Args:
            columns: its length.
        """
        assert way.start is not None
        indexer, length = emission.indexer, way.length
        start = indexer.simplify(way.start.substitute(dims=dict(enumerate(row))))
        offset, limit = indexer.ssa(start), indexer.ssa(columns)
        behind = urem(offset, length)
        head = umin(urem(sub(length, behind), length), limit)
        rest = sub(limit, head)
        vectors = udiv(rest, length)
        first = indexer.variable(emission.ssa(udiv(add(offset, head), length)))
        tail = emission.ssa(sub(rest, mul(vectors, length)))
        return Cut(
            emission.ssa(vectors), way, _emission=emission, _start=start, _columns=columns,
            _first=first, _head=emission.ssa(head), _tail=tail,
        )  # fmt: skip

    def vector(self, number: Expr, condition: Value | None) -> Chunk:
        """A whole vector by its number."""
        length, lane = self.way.length, self.way.lane
        # Spelled so that the element's offset is `(first + number) * length + lane`.
        column = (self._first + number) * length + lane - self._start
        return Chunk((column,), condition, length, lane)

    def ends(self, member: Value) -> Chunk:
        """The element of head or tail that belongs to a thread of the team, by its number."""
        length, indexer = self.way.length, self._emission.indexer
        is_head = compare("ult", member, length)
        number = sub(member, length)
        behind = add(self._head, mul(self.vectors, length))
        column = select(is_head, member, add(number, behind))
        condition = select(
            is_head, compare("ult", member, self._head), compare("ult", number, self._tail)
        )
        lane = self._emission.lanes(1)
        place = indexer.variable(self._emission.ssa(column), self._columns) + lane
        return Chunk((place,), condition, 1, lane)
