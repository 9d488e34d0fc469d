# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which tile a CTA computes when, and how the last wave's tiles are shared along K.

Tiles are numbered so that neighbouring numbers share operands: batch by batch, in groups of rows of
tiles, column by column within a group; or the same with rows and columns exchanged. Clusters take
every ``units``-th tile.

With *stream* the tiles of the last, partly filled wave are cut along K into one contiguous share a
cluster. A cluster that ends up with the later part of a tile leaves its sums in scratch memory and
raises a flag; the one that has the tile's first elements of K adds them, always in the same order,
and has the epilogue. Flags are lowered by their reader, so the scratch memory is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shapejit.passes.nvgpu.builder import (
    Branches,
    Loop,
    Num,
    Value,
    add,
    ceildiv,
    compare,
    constant,
    i32,
    loop,
    mul,
    or_,
    repeat_while,
    select,
    sub,
    udiv,
    umax,
    umin,
    urem,
    value,
)
from shapejit.passes.nvgpu.function import KernelFunction, Units
from shapejit.passes.nvgpu.problem import GemmProblem

# Rows of the result (or columns, if swapped) that a group of tiles spans.
_GROUP_ROWS = 2048
# A share of a tile is at least so many stages deep, if the work suffices.
_MIN_SHARE = 4
# Clusters that share a tile, on average: its first one adds the sums of the others one by one.
_MAX_SHARERS = 3
# What sharing costs: of a share's time, in per cent; and the time of handing sums over, in stages.
_SHARED_TILE, _HANDOVER_STAGES = 108, 6


@dataclass(frozen=True)
class Place:
    """Where a tile is: index along each batch dim, first row, first column; all i32."""

    batch: tuple[Num, ...]
    row: Num
    column: Num


@dataclass(frozen=True)
class TileOrder:
    """The tiles of a problem.

    Attributes:
        rows, columns: tiles along the rows and columns, clusters counted as one tile of rows.
        batches: size of every batch dim.
        count: of all tiles.
        group: rows of tiles in a group, or columns.
        tile: rows and columns of a CTA's tile.
        cluster: CTAs of a cluster, which have neighbouring tiles along the rows.
        by_columns: whether groups are of columns, within which rows come one after the other.
    """

    rows: Num
    columns: Num
    batches: tuple[Num, ...]
    count: Num
    group: int
    tile: tuple[int, int]
    cluster: int
    by_columns: bool = False

    @staticmethod
    def of(
        function: KernelFunction,
        problem: GemmProblem,
        directions: tuple[int, int],
        tile: tuple[int, int],
        cluster: int = 1,
        *,
        with_empty_sums: bool = False,
        by_columns: bool = False,
    ) -> TileOrder:
        """Emits the counts.

        Args:
            directions: the space's dims along the rows and columns of tiles.
            tile: rows and columns of a CTA's tile.
            with_empty_sums: whether there are tiles also where K is 0.
            by_columns: see `TileOrder`.
        """
        rows, columns = (function.size(problem.space[dim]) for dim in directions)
        batches = tuple(function.size(size) for size in problem.space[: problem.m])
        row_tiles, column_tiles = ceildiv(rows, tile[0] * cluster), ceildiv(columns, tile[1])
        count = mul(row_tiles, column_tiles)
        for batch in batches:
            count = mul(count, batch)
        depth = function.size(problem.space[problem.k])
        if with_empty_sums:
            pass
        elif isinstance(depth, int):
            count = count if depth else 0
        else:  # without products there are no tiles, see `depthless`
            count = select(compare("eq", depth, 0), 0, count)
        group = max(_GROUP_ROWS // (tile[1] if by_columns else tile[0] * cluster), 1)
        return TileOrder(row_tiles, column_tiles, batches, count, group, tile, cluster, by_columns)

    def place(self, tile: Num, rank: Num) -> Place:
        """Where a tile is, for one CTA of its cluster."""
        batch: list[Num] = []
        if self.batches:
            per_batch = mul(self.rows, self.columns)
            outer = udiv(tile, per_batch)
            tile = sub(tile, mul(outer, per_batch))
            for size in reversed(self.batches[1:]):
                batch.append(urem(outer, size))
                outer = udiv(outer, size)
            batch.append(outer)
        lines, length = self.rows, self.columns
        if self.by_columns:
            lines, length = length, lines
        per_group = mul(length, self.group)
        group = udiv(tile, per_group)
        first = mul(group, self.group)
        height = umin(sub(lines, first), self.group)
        within = sub(tile, mul(group, per_group))
        column = udiv(within, height)
        row = add(first, sub(within, mul(column, height)))
        if self.by_columns:
            row, column = column, row
        row = add(mul(row, self.cluster), rank)
        return Place(tuple(reversed(batch)), mul(row, self.tile[0]), mul(column, self.tile[1]))


@dataclass(frozen=True)
class Segment:
    """A tile, or a share of one along K, that a cluster computes.

    Attributes:
        tile: its number.
        first, last: its stages along K are [first, last).
        shared: whether the tile is one of those that clusters share (i1); None without stream.
    """

    tile: Value
    first: Num
    last: Num
    shared: Value | None

    @property
    def stages(self) -> Num:
        """How many stages it has, at least 1."""
        return sub(self.last, self.first)


class WholeTiles:
    """Every cluster computes whole tiles.

    Args:
        order: the tiles.
        units: where the CTA is.
        stages: of K.
        turn, turns: of the cluster's tiles, every ``turns``-th from the ``turn``-th on.
    """

    def __init__(
        self, order: TileOrder, units: Units, stages: Num, turn: Num = 0, turns: int = 1
    ) -> None:
        self._order, self._stages = order, stages
        self._start = add(units.unit, mul(turn, units.units))
        self._step = mul(units.units, turns)

    def first(self) -> tuple[Segment, Num]:
        """The first segment of this cluster, and its stages, 0 if there is none."""
        exists = compare("ult", self._start, self._order.count)
        segment = Segment(self._start, 0, self._stages, None)
        return segment, select(exists, self._stages, 0)

    @contextmanager
    def segments(self, init: Sequence[Value]) -> Iterator[tuple[Segment, Loop]]:
        """A loop over the segments of this cluster."""
        with loop(self._start, self._order.count, self._step, init) as made:
            yield Segment(made.index, 0, self._stages, None), made


class SharedTiles:
    """The same, with the last wave's tiles shared along K.

    Args:
        order: the tiles.
        units: where the CTA is.
        stages: of K; at least 1 if there are tiles.

    Attributes:
        work: stages of all shared tiles.
        sharers: clusters that share them; cluster u has stages
            [u * work / sharers, (u + 1) * work / sharers), tile after tile.
    """

    def __init__(self, order: TileOrder, units: Units, stages: Num) -> None:
        self._order, self._units, self._stages = order, units, stages
        count, clusters = value(order.count), units.units
        rest = urem(count, clusters)
        work = mul(rest, stages)
        most = umin(clusters, mul(rest, _MAX_SHARERS))
        sharers = umax(umin(most, udiv(work, _MIN_SHARE)), 1)
        # Whole tiles take another wave of `stages`; a share is a part of that.
        shared = add(udiv(mul(work, _SHARED_TILE), sharers), 100 * _HANDOVER_STAGES)
        worth = compare("ugt", mul(stages, 100), shared)
        self.tiles = select(worth, rest, 0)
        self.work = select(worth, work, 0)
        self.sharers = select(worth, sharers, 1)
        self._start, self._end = self.bound(units.unit), self.bound(add(units.unit, 1))

    def bound(self, unit: Num) -> Value:
        """Where a cluster's share starts."""
        return udiv(mul(umin(unit, self.sharers), self.work), self.sharers)

    def end_of(self, segment: Segment) -> Value:
        """One past the last cluster that has stages of a segment's tile; 0 for a whole tile."""
        assert segment.shared is not None
        last = mul(add(segment.tile, 1), self._stages)
        scaled = add(mul(last, self.sharers), sub(self.work, 1))
        return select(segment.shared, udiv(scaled, umax(self.work, 1)), 0)

    def _segment(self, at: Value, whole: Value) -> Segment:
        """What follows at a stage of the cluster's share, or a whole tile once that is done."""
        shared = compare("ult", at, self._end)
        # A branch, since the division would keep whole tiles waiting.
        found = Branches(shared, [i32()] * 3)
        with found.then() as results:
            tile = udiv(at, umax(self._stages, 1))
            first = sub(at, mul(tile, self._stages))
            last = umin(self._stages, add(first, sub(self._end, at)))
            results += [tile, first, last]
        with found.otherwise() as results:
            results += [whole, constant(0), value(self._stages)]
        tile, first, last = found.results
        return Segment(tile, first, last, shared)

    @property
    def _first_whole(self) -> Value:
        return add(self.tiles, self._units.unit)

    def _goes_on(self, at: Value, whole: Value) -> Value:
        return or_(compare("ult", at, self._end), compare("ult", whole, self._order.count))

    def first(self) -> tuple[Segment, Num]:
        """The first segment of this cluster, and its stages, 0 if there is none."""
        segment = self._segment(self._start, self._first_whole)
        exists = self._goes_on(self._start, self._first_whole)
        return segment, select(exists, segment.stages, 0)

    @contextmanager
    def segments(self, init: Sequence[Value]) -> Iterator[tuple[Segment, Loop]]:
        """A loop over the segments of this cluster: its share first, then whole tiles."""
        start = [self._start, self._first_whole, *init]
        with repeat_while(start, lambda carried: self._goes_on(*carried[:2])) as made:
            at, whole, *carried = made.carried
            segment = self._segment(at, whole)
            made.carried = made.next = carried
            yield segment, made
            made.next = [
                select(segment.shared, add(at, segment.stages), at),
                select(segment.shared, whole, add(whole, self._units.units)),
                *made.next,
            ]
