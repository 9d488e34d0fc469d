# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which thread has which sums of a tile.

The threads of a CTA are one or more *parts* that share every stage along K; each has all of the
tile. In a part a thread has sums of `thread_rows` x `thread_columns`, in quads of four neighbours
either way: rows ``4 y .. 4 y + 3`` of every ``rows / (thread_rows / 4)``, and columns alike. So
what a thread reads at once from shared memory is 16 bytes in either layout, and what it stores is
four neighbouring columns.

Lanes of a warp form a rectangle, 4 x 8 if the tile has so many: then a warp reads 64 bytes of the
rows and 128 of the columns for 1024 or more multiply-adds, the rest is broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.schedule import GemmSchedule

#: Elements that one access of 16 bytes has.
QUAD = 4
#: Threads of a warp.
WARP = 32
_LANE_ROWS = 4
_WARPGROUP = 128
# Rows and columns of a thread, by the number of its sums.
_SHAPES = {16: (4, 4), 32: (8, 4), 64: (8, 8)}
_DEPTHS = (8, 16, 32)


@dataclass(frozen=True)
class Tiling:
    """How a CTA divides a tile.

    Attributes:
        rows, columns: of the tile.
        depth: elements of K of a stage.
        threads: of the CTA.
        parts: that share a stage.
    """

    rows: int
    columns: int
    depth: int
    threads: int
    parts: int

    @staticmethod
    def of(schedule: GemmSchedule) -> Tiling:
        """The tiling of a schedule of the family.

        Raises:
            LoweringError: there is none.
        """
        if schedule.rows_shared > 1 or schedule.columns_shared > 1:
            raise LoweringError(
                f"has the schedule {schedule}; simt kernels share K, no tiles (_k, _p)"
            )
        if schedule.stream or schedule.turns or schedule.once:
            raise LoweringError(f"has the schedule {schedule}; simt kernels have no such mark")
        tiling = Tiling(
            schedule.rows,
            schedule.columns,
            schedule.depth,
            _WARPGROUP * schedule.consumers,
            schedule.parts,
        )
        if (reason := tiling.fault()) is not None:
            raise LoweringError(f"has the schedule {schedule}; {reason}")
        return tiling

    def fault(self) -> str | None:
        """Why no kernel can be made so; None if one can."""
        if self.depth not in _DEPTHS:
            return f"simt kernels are {', '.join(map(str, _DEPTHS))} deep"
        if not all(map(_is_power, (self.rows, self.columns, self.parts, self.threads))):
            return "rows, columns, warpgroups and parts of a simt kernel are powers of 2"
        if self.group < WARP or self.steps < 1:
            return "a part of a simt kernel has a warp and four elements of K or more"
        if self.sums not in _SHAPES or self.rows < 8 or self.columns < 32:
            return "a thread of a simt kernel has 16, 32 or 64 sums of a tile from 8 x 32 on"
        if max(self.rows, self.columns) > self.threads:
            return "a simt tile has no more rows or columns than threads"
        return None

    @property
    def group(self) -> int:
        """Threads of a part."""
        return self.threads // self.parts

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.rows * self.columns // self.group

    @property
    def thread_rows(self) -> int:
        return _SHAPES[self.sums][0]

    @property
    def thread_columns(self) -> int:
        return _SHAPES[self.sums][1]

    @property
    def down(self) -> int:
        """Threads of a part along the rows."""
        return self.rows // self.thread_rows

    @property
    def across(self) -> int:
        """Threads of a part along the columns."""
        return self.columns // self.thread_columns

    @property
    def steps(self) -> int:
        """Quads of K that a part has of a stage."""
        return self.depth // QUAD // self.parts

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes of a warp along rows and columns."""
        rows = max(min(self.down, _LANE_ROWS), WARP // self.across)
        return rows, WARP // rows


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
