# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where a thread's sums are in a tile, as the kernel computes it; see `tiling`."""

from __future__ import annotations

from dataclasses import dataclass

from shapejit.passes.nvgpu.builder import Num, Value, add, mul, udiv, urem
from shapejit.passes.nvgpu.function import Threads
from shapejit.passes.nvgpu.simt.tiling import QUAD, WARP, Tiling


@dataclass(frozen=True)
class Position:
    """Where a thread is.

    Attributes:
        tiling: of the tile.
        part: number of its part.
        y, x: its first row and column of sums, over `QUAD`.
    """

    tiling: Tiling
    part: Num
    y: Value
    x: Value

    @staticmethod
    def of(tiling: Tiling, threads: Threads) -> Position:
        """Emits where this thread is."""
        lane_rows, lane_columns = tiling.lanes
        warps = tiling.group // WARP
        part = udiv(threads.warp, warps) if tiling.parts > 1 else 0
        warp = urem(threads.warp, warps)
        warps_across = tiling.across // lane_columns
        y = add(mul(udiv(warp, warps_across), lane_rows), udiv(threads.lane, lane_columns))
        x = add(mul(urem(warp, warps_across), lane_columns), urem(threads.lane, lane_columns))
        return Position(tiling, part, y, x)

    def row(self, number: int) -> Num:
        """The row in the tile of a thread's ``number``-th row."""
        quad, row = divmod(number, QUAD)
        return add(mul(self.y, QUAD), quad * QUAD * self.tiling.down + row)

    def column(self, quad: int) -> Num:
        """The first column in the tile of a thread's ``quad``-th four columns."""
        return add(mul(self.x, QUAD), quad * QUAD * self.tiling.across)
