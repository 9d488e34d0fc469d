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

What is chosen follows from the sizes and from how many CTAs have work, never from what runs when.
A tile that several CTAs work on is completed by the one of them that is done last, which adds the
parts in their order (`decode_partial`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
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

#: Blocks that a CTA could read while sums are handed over: written, counted, and read and added of
#: as many rows as its threads have at once; of more rows one more block each time.
_HANDOVER = 1


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
        rounds: how often a CTA waits for memory when it adds the parts of a tile, i32.

    Attributes:
        first_tile, end_tile: the tiles that this CTA has a part of, i32.
    """

    def __init__(self, tiles: Num, blocks: Num, cta: Value, ctas: Value, rounds: Num) -> None:
        most, some = umax(blocks, 1), umax(tiles, 1)
        need = mul(some, most)
        working = umin(ctas, value(need))
        self._units, self._share = _cheapest(some, most, need, working, add(rounds, _HANDOVER))
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


def _cheapest(tiles: Num, most: Num, need: Num, working: Num, handover: Num) -> tuple[Value, Value]:
    """Units of a tile and units of a share: i32."""
    wanted = umax(udiv(working, tiles), 1)
    longest = _ceildiv(most, umin(wanted, most))
    parts = _ceildiv(most, longest)
    together = _ceildiv(tiles, working)
    each = _ceildiv(need, working)
    shared = select(compare("ugt", parts, 1), value(handover), 0)
    of_parts, of_whole = add(longest, shared), mul(together, most)
    of_even = add(each, mul(handover, 2))
    # Parts are for one round of tiles.
    too_many = compare("ugt", tiles, working)
    is_whole = or_(too_many, compare("uge", of_parts, of_whole))
    is_even = compare("ult", of_even, select(is_whole, of_whole, of_parts))
    units = select(is_even, most, select(is_whole, 1, parts))
    share = select(is_even, each, select(is_whole, together, 1))
    return value(units), value(share)


def _ceildiv(number: Num, divisor: Num) -> Num:
    return udiv(add(number, sub(divisor, 1)), divisor)
