# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tiles whose K is shared by CTAs that are no cluster; see `split_rule` for when and how.

Clusters of more than two CTAs leave a tenth of the GPU idle, and the CTAs of a cluster lie side by
side although they read nothing in common. Here any CTAs share a tile, through scratch memory, and
those with the same part of K follow each other, so that neighbours read the same operands at the
same time.

Parts are numbered from the owner's on, and CTAs by when they start, the last one first: an owner
only waits for CTAs that started before it. So no kernel waits for a CTA that finds no place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mlir.dialects import arith

from shapejit.passes.nvgpu.builder import (
    Branches,
    Loop,
    Num,
    Value,
    add,
    and_,
    compare,
    i32,
    mul,
    or_,
    repeat_while,
    select,
    sub,
    udiv,
    urem,
    value,
)
from shapejit.passes.nvgpu.function import Units
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.scheduling import Segment, TileOrder
from shapejit.passes.nvgpu.split_rule import lead, least_depth


class SplitTiles:
    """Every unit has at most one part of a shared tile, first, and then whole tiles.

    Nothing here divides by a number that is not constant but where there are whole tiles, since
    loads wait for it.

    Args:
        order: the tiles.
        units: where the CTA is; numbers go backwards.
        stages: of K; at least 1 if there are tiles.
        schedule: which says among how many at most a tile is shared.

    Attributes:
        tiles: how many tiles are shared: the first ones. Units u, u + tiles, u + 2 * tiles, ..
            have the parts of tile u.
        parts: of a shared tile.
    """

    def __init__(self, order: TileOrder, units: Units, stages: Num, schedule: GemmSchedule) -> None:
        self._order, self._units, self._stages = order, units, stages
        self._most = schedule.split
        rest = self._rest()
        behind = sub(value(stages), lead(schedule))
        parts, given = value(1), value(0)
        for count in range(2, self._most + 1):
            pays = and_(
                compare("ule", mul(rest, count), units.units),
                compare("uge", stages, least_depth(schedule, count)),
            )
            parts = select(pays, count, parts)
            given = select(pays, udiv(behind, count), given)
        self.parts, self._given = parts, given
        self.tiles = select(compare("ugt", parts, 1), rest, 0)
        self._kept = sub(stages, mul(given, sub(parts, 1)))
        self._shares = compare("ult", units.unit, mul(self.tiles, parts))

    def _rest(self) -> Value:
        """Tiles of the last wave, 0 if it is full."""
        count, units = value(self._order.count), self._units.units
        found = Branches(compare("ult", count, units), [i32()])
        with found.then() as results:
            results.append(count)
        with found.otherwise() as results:
            results.append(urem(count, units))
        return found.results[0]

    def giver(self, segment: Segment, part: int) -> Value:
        """The unit that has a later part of a shared tile, in the order of K from 1 on."""
        return add(segment.tile, mul(self.tiles, part))

    def _part(self) -> tuple[Value, Value, Value]:
        """The tile that this unit has a part of, the part's first stage and the one after it."""
        unit, tiles = self._units.unit, self.tiles
        tile, first, last = unit, value(0), value(self._kept)
        for part in range(1, self._most):
            beyond = compare("uge", unit, mul(tiles, part))
            tile = select(beyond, sub(unit, mul(tiles, part)), tile)
            first = select(beyond, last, first)
            last = select(beyond, add(last, self._given), last)
        return tile, first, last

    def _segment(self, shared: Value, whole: Value) -> Segment:
        tile, first, last = self._part()
        return Segment(
            select(shared, tile, whole),
            select(shared, first, 0),
            select(shared, last, self._stages),
            shared,
        )

    @property
    def _first_whole(self) -> Value:
        return add(self.tiles, self._units.unit)

    def first(self) -> tuple[Segment, Num]:
        """The first segment of this unit, and its stages, 0 if there is none."""
        segment = self._segment(self._shares, self._first_whole)
        exists = or_(self._shares, compare("ult", self._first_whole, self._order.count))
        return segment, select(exists, segment.stages, 0)

    @contextmanager
    def segments(self, init: Sequence[Value]) -> Iterator[tuple[Segment, Loop]]:
        """A loop over the segments of this unit."""
        start = [arith.extui(i32(), self._shares), self._first_whole, *init]

        def goes_on(carried: list[Value]) -> Value:
            part, whole = carried[:2]
            return or_(compare("ne", part, 0), compare("ult", whole, self._order.count))

        with repeat_while(start, goes_on) as made:
            part, whole, *carried = made.carried
            segment = self._segment(compare("ne", part, 0), whole)
            made.carried = made.next = carried
            yield segment, made
            assert segment.shared is not None
            after = add(whole, self._units.units)
            made.next = [value(0), select(segment.shared, whole, after), *made.next]
