# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How the keys of all tiles are divided among CTAs.

A tile's keys are cut into *units*, as many for each tile; a CTA has a share of neighbouring units,
of one tile or of several. There are three ways to do that, and a kernel takes the cheapest for the
sizes that it is called with, counted in blocks of keys that a CTA reads, one after the other:

=============  ===================================  =============================================
way            a share                              blocks
=============  ===================================  =============================================
parts          one of as many parts of a tile as    blocks of a tile / parts, and what handing
               CTAs are there for it                over the sums costs
whole tiles    as many tiles as every CTA must do   blocks of a tile * tiles of a share
even           as many blocks as every CTA must do  blocks of all tiles / CTAs, and handing over
                                                    twice: a share may end in a tile and start in
                                                    another one
=============  ===================================  =============================================

The part that completes a tile reads the sums of all others. Of few rows threads share that, in the
time of one wait for memory; of more rows it takes as many waits as there are sums. So few parts of
a tile full of rows may be better than one for every CTA, and 4 and 8 are considered too.

What is chosen follows from the sizes and from how many CTAs have work, never from what runs when.
A tile that several CTAs work on is completed by the one of them that is done last, which adds the
parts in their order (`decode_partial`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    compare,
    i32,
    mul,
    or_,
    select,
    smax,
    sub,
    udiv,
    umax,
    umin,
    urem,
    value,
)

#: Blocks that a CTA could read while sums are written and counted; while some are read and added it
#: could read another one.
_HANDOVER = 1
PARTS_AT_ONCE, ROWS_AT_ONCE = 4, 4
"""Parts whose sums are on their way at once in tiles with many rows, and rows of a thread."""
_FEW_PARTS = (8, 4)


@dataclass(frozen=True)
class Handover:
    """What it costs that CTAs share a tile, in blocks of keys that one could read meanwhile.

    Attributes:
        rows: of a tile, i32.
        at_once: rows of which all threads of a CTA have a few columns each.
    """

    rows: Num
    at_once: int

    @property
    def has_many_rows(self) -> Value:
        """Whether threads have several rows each, i1."""
        return compare("ugt", self.rows, self.at_once)

    @property
    def of_few_rows(self) -> int:
        """The cost where threads share rows."""
        return _HANDOVER + 1

    def of_many_rows(self, parts: Num) -> Num:
        """The cost with so many parts of a tile otherwise, i32."""
        waits = _ceildiv(self.rows, self.at_once * ROWS_AT_ONCE)
        return add(mul(waits, _ceildiv(parts, PARTS_AT_ONCE)), _HANDOVER)


@dataclass(frozen=True)
class Part:
    """A CTA's part of a tile.

    Attributes:
        first, last: its units, those of the tile counted from 0; all i32.
        is_whole: whether that is all of the tile, i1.
        owner: the CTA that has the tile's first unit, i32.
        sharers: CTAs that have a part of the tile, i32.
    """

    first: Num
    last: Num
    is_whole: Value
    owner: Num
    sharers: Num


class SplitWork:
    """Emits the division.

    Args:
        tiles: how many there are, i32.
        blocks: of keys, of a tile that sees all of them, i32.
        cta, ctas: number of this CTA and how many there are, i32.
        handover: what sharing a tile costs.

    Attributes:
        first_tile, end_tile: the tiles that this CTA has a part of, i32.
    """

    def __init__(
        self, tiles: Num, blocks: Num, cta: Value, ctas: Value, handover: Handover
    ) -> None:
        most, some = umax(blocks, 1), umax(tiles, 1)
        need = mul(some, most)
        working = umin(ctas, value(need))
        self._units, self._share = _cheapest(some, most, need, working, handover)
        self._first = mul(cta, self._share)
        end = umin(add(self._first, self._share), mul(tiles, self._units))
        self._end = umax(end, self._first)
        self.first_tile = udiv(self._first, self._units)
        self.end_tile = udiv(add(self._end, sub(self._units, 1)), self._units)
        is_idle = compare("eq", self._end, self._first)
        self.end_tile = select(is_idle, self.first_tile, self.end_tile)

    def part(self, tile: Num) -> Part:
        """This CTA's part of one of its tiles."""
        start = mul(tile, self._units)
        first = smax(sub(self._first, start), 0)
        last = umin(sub(self._end, start), self._units)
        owner = udiv(start, self._share)
        after = udiv(add(start, sub(self._units, 1)), self._share)
        sharers = add(sub(after, owner), 1)
        return Part(first, last, compare("eq", sharers, 1), owner, sharers)

    def blocks(self, part: Part, blocks: Num) -> tuple[Num, Num]:
        """The first block of a part, and the one after its last.

        Args:
            blocks: of the tile: as many as it sees.
        """
        each, more = udiv(blocks, self._units), urem(blocks, self._units)
        first, last = (add(mul(unit, each), umin(unit, more)) for unit in (part.first, part.last))
        return first, last


def _cheapest(
    tiles: Num, most: Num, need: Num, working: Num, handover: Handover
) -> tuple[Value, Value]:
    """Units of a tile and units of a share: i32."""
    wanted = umax(udiv(working, tiles), 1)
    each = _ceildiv(need, working)
    found = Branches(handover.has_many_rows, [i32()] * 3)
    with found.then() as results:
        longest, of_parts = _of_parts(most, wanted, handover.of_many_rows)
        for few in _FEW_PARTS:
            other, cost = _of_parts(most, umin(wanted, few), handover.of_many_rows)
            is_less = compare("ult", cost, of_parts)
            longest, of_parts = select(is_less, other, longest), select(is_less, cost, of_parts)
        sharers = add(_ceildiv(most, each), 1)
        results += map(value, (longest, of_parts, handover.of_many_rows(sharers)))
    with found.otherwise() as results:
        longest, of_parts = _of_parts(most, wanted, lambda _: handover.of_few_rows)
        results += map(value, (longest, of_parts, handover.of_few_rows))
    longest, of_parts, of_sharers = found.results
    parts = _ceildiv(most, longest)
    together = _ceildiv(tiles, working)
    of_whole, of_even = mul(together, most), add(each, mul(of_sharers, 2))
    # Parts are for one round of tiles.
    too_many = compare("ugt", tiles, working)
    is_whole = or_(too_many, compare("uge", of_parts, of_whole))
    is_even = compare("ult", of_even, select(is_whole, of_whole, of_parts))
    units = select(is_even, most, select(is_whole, 1, parts))
    share = select(is_even, each, select(is_whole, together, 1))
    return value(units), value(share)


def _of_parts(most: Num, wanted: Num, handed_over: Callable[[Num], Num]) -> tuple[Num, Num]:
    """Blocks of the longest of about so many parts of a tile, and what these cost."""
    longest = _ceildiv(most, umin(wanted, most))
    parts = _ceildiv(most, longest)
    shared = select(compare("ugt", parts, 1), handed_over(parts), 0)
    return longest, add(longest, shared)


def _ceildiv(number: Num, divisor: Num) -> Num:
    return udiv(add(number, sub(divisor, 1)), divisor)
