# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which tile a CTA of a flash kernel computes when.

All roles of a CTA find the same tiles on their own, without a word between them. Heads are taken in
sections whose keys and values fit into the second-level cache; in a section the tiles of late
queries, which see most keys under a causal limit, come first. CTAs take turns in snake order, so
that whoever had the longest tile of a round has the shortest of the next one::

    round 0   CTA 0  CTA 1  CTA 2
    round 1   CTA 2  CTA 1  CTA 0

Where a section ends, tiles are short and those of the next one long, which no order of CTAs levels
out. So sections are of equal size, and under a causal limit they have `SECTION_HEADS` heads or
more: then about four CTAs read the same keys at a time, which the memory bears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shapejit.passes.nvgpu.attention.flash_operands import MappedRows
from shapejit.passes.nvgpu.attention.flash_schedule import FlashSchedule
from shapejit.passes.nvgpu.attention.masks import Limits
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.attention.spans import Span, Spans
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    and_,
    ceildiv,
    compare,
    mul,
    select,
    smin,
    sub,
    udiv,
    umax,
    umin,
    value,
)
from shapejit.passes.nvgpu.function import KernelFunction, Units
from shapejit.passes.nvgpu.wgmma import ELEMENT_BYTES

#: Keys and values of a section, in bytes: about half of the second-level cache of an H200.
SECTION_BYTES: Final = 32_000_000

#: Heads of a section under a causal limit, at least.
SECTION_HEADS: Final = 32


@dataclass(frozen=True)
class FlashTile:
    """A tile of queries: all i32.

    Attributes:
        batch, head: which.
        first: number of its first query.
        blocks: of keys that it sees, at least 1; they are taken from the last one down to 0.
        end: the length of its keys as memory holds it, see `Span.end`; None without lengths.
    """

    batch: Num
    head: Num
    first: Num
    blocks: Num
    end: Num | None = None

    @property
    def values(self) -> list[Value]:
        """As loops carry it."""
        end = () if self.end is None else (self.end,)
        return [value(each) for each in (self.batch, self.head, self.first, self.blocks, *end)]

    @staticmethod
    def of(values: Sequence[Value]) -> FlashTile:
        """The inverse of `values`."""
        return FlashTile(*values)

    @property
    def place(self) -> tuple[Num, Num, Num]:
        """Batch, head and first row."""
        return self.batch, self.head, self.first


class FlashWork:
    """The tiles of a CTA, round by round.

    Args:
        function: the kernel.
        problem, schedule: of it.
        keys: as TMA sees them.
        units: where the CTA is.
        limits: what queries see.

    Attributes:
        rounds: how many tiles the CTA has; 0 if there are no keys, when nothing can be loaded.
        values: how many values a tile has, as loops carry it.
    """

    def __init__(
        self,
        function: KernelFunction,
        problem: AttentionProblem,
        schedule: FlashSchedule,
        keys: MappedRows,
        units: Units,
        limits: Limits,
    ) -> None:
        batch, heads, queries, *_ = map(function.size, problem.space)
        self._schedule, self._units, self._limits = schedule, units, limits
        self._spans = Spans(function, problem) if problem.lengths is not None else None
        self._queries = queries
        self.values = 4 + (self._spans is not None)
        self._heads, self._all_heads = heads, mul(batch, heads)
        self._row_tiles = ceildiv(queries, schedule.rows)
        key_bytes = (problem.head + problem.value) * ELEMENT_BYTES
        most = mul(udiv(SECTION_BYTES // key_bytes, umax(limits.keys, 1)), keys.share)
        most = umax(most, SECTION_HEADS if limits.is_causal else 1)
        sections = umax(udiv(add(self._all_heads, sub(most, 1)), most), 1)
        self._section = umax(udiv(add(self._all_heads, sub(sections, 1)), sections), 1)
        tiles = mul(self._all_heads, self._row_tiles)
        if isinstance(limits.keys, int):
            tiles = tiles if limits.keys else 0
        else:
            tiles = select(compare("eq", limits.keys, 0), 0, tiles)
        whole = udiv(value(tiles), units.units)
        rest = sub(tiles, mul(whole, units.units))
        has_more = compare("ult", self._turn(whole), rest)
        self.rounds: Value = select(has_more, add(whole, 1), whole)

    def _turn(self, round_: Num) -> Value:
        """The number of this CTA in a round."""
        unit, units = self._units.unit, self._units.units
        is_odd = compare("ne", and_(round_, 1), 0)
        return select(is_odd, sub(sub(units, 1), unit), unit)

    def tile(self, round_: Num, *, alone: bool = False) -> FlashTile:
        """The tile of a round; of no use beyond the last one.

        Args:
            round_: its number.
            alone: whether a single thread of a warp asks.
        """
        number = add(mul(round_, self._units.units), self._turn(value(round_)))
        row_tiles = umax(self._row_tiles, 1)
        each = mul(self._section, row_tiles)
        section = udiv(number, each)
        within = sub(number, mul(section, each))
        start = mul(section, self._section)
        # Beyond the last tile there are no heads left, and nothing to divide by.
        width = umax(umin(self._section, sub(self._all_heads, start)), 1)
        turn = udiv(within, width)
        row = sub(sub(row_tiles, 1), turn)
        batch_head = add(start, sub(within, mul(turn, width)))
        batch = udiv(batch_head, umax(self._heads, 1))
        head = sub(batch_head, mul(batch, self._heads))
        first = mul(row, self._schedule.rows)
        end = self._end(batch_head, alone)
        most = self._limits_to(end).of_any(first, self._schedule.rows)
        blocks = umax(ceildiv(most, self._schedule.keys), 1)
        return FlashTile(batch, head, first, blocks, end)

    def limits(self, tile: FlashTile) -> Limits:
        """What the queries of a tile see."""
        return self._limits_to(tile.end)

    def _end(self, batch_head: Num, alone: bool) -> Num | None:
        """The length of the keys of a head, in the order of tiles."""
        if self._spans is None:
            return None
        # Beyond the last tile there is no length either.
        inside = umin(batch_head, sub(self._all_heads, 1))
        heads = umax(self._heads, 1)
        batch = udiv(inside, heads)
        span = self._spans.of(batch, sub(inside, mul(batch, heads)), alone=alone)
        return span.keys if span.end is None else span.end

    def _limits_to(self, end: Num | None) -> Limits:
        if end is None:
            return self._limits
        return self._limits.within(Span(self._queries, smin(end, self._limits.keys), end=end))
