# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The attention kernel for few queries and many keys: CTAs share the keys of a tile.

Why: a query of one token reads all keys once and computes little; what it takes is the time that
memory takes, if all multiprocessors read. There are batch * heads tiles, few; so each tile's keys
are divided (`decode_work`), and partial sums meet in scratch memory (`decode_partial`)::

    for each tile that this CTA has a part of     (batch, heads that share keys, 64 rows)
      start to copy rows, first keys and values
      for each block of the part                  as in `emitter`
      results = sums / totals, if the part is all of the tile
      else leave the sums; the CTA that is last adds those of all parts

The rows of a tile are queries of several heads, if these share keys (`decode_rows`). Where all
batches have the same length, such as that of a cache, it is the keys within it that are divided.
"""

from __future__ import annotations

from contextlib import nullcontext

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.decode_partial import (
    PartialTiles,
    TileRows,
    combine_bytes,
    rows_at_once,
)
from shapejit.passes.nvgpu.attention.decode_rows import (
    PackedCopy,
    PackedQueries,
    PackedRows,
    group_of,
    store_row,
)
from shapejit.passes.nvgpu.attention.decode_work import Handover, Part, SplitWork
from shapejit.passes.nvgpu.attention.emitter import AttentionKernel
from shapejit.passes.nvgpu.attention.exchange import exchange
from shapejit.passes.nvgpu.attention.masks import Queries
from shapejit.passes.nvgpu.attention.problem import HEAD
from shapejit.passes.nvgpu.attention.request import AttentionRequest
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.attention.softmax import State, row_of
from shapejit.passes.nvgpu.attention.spans import Span
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    ceildiv,
    compare,
    loop,
    mul,
    sub,
    udiv,
    umax,
    umin,
    urem,
    value,
    when,
)
from shapejit.passes.nvgpu.function import Threads, Units
from shapejit.passes.nvgpu.problem import Access
from shapejit.passes.nvgpu.wgmma import ROWS
from shapejit.symbolic.expr import product


def emit(request: AttentionRequest[AttentionSchedule]) -> KernelInterface:
    """Emits a kernel at the current point.

    Raises:
        LoweringError: the schedule needs more shared memory than there is.
    """
    return SplitKernel(request).emit()


class SplitKernel(AttentionKernel):
    """Emits a kernel whose CTAs share the keys of tiles."""

    def __init__(self, request: AttentionRequest[AttentionSchedule]) -> None:
        super().__init__(request)
        self._group_heads = group_of(request.problem)

    # The kernel -----------------------------------------------------------------------------------

    def emit(self) -> KernelInterface:
        function = self._function
        with function.body():
            function.launch_dependents()
            self._threads, units = Threads.read(), Units.read(1)
            self._find_worker()
            self._allocate()
            if self._problem.has_one_length:
                function.await_predecessors()  # what divides the keys is what they make
            self._plan()
            self._cta = units.unit
            self._work = work = SplitWork(
                self._tiles, self._blocks, units.unit, units.units, self._handover
            )
            if not self._problem.has_one_length:
                function.await_predecessors()
            with loop(work.first_tile, work.end_tile) as tiles:
                self._tile_part(tiles.index)
            grid = self._grid()
        return function.interface(grid, self._memory.bytes)

    def _grid(self) -> Grid:
        batch, heads, queries, keys, *_ = self._problem.space
        group = self._group_heads
        rows = product([queries, group])
        parts = keys + 1  # without a key there is a result too
        sizes = ((batch, 1), (heads, group), (rows, ROWS), (parts, self._schedule.block))
        tiles = tuple((self._function.value_number(size), tile) for size, tile in sizes)
        return Grid(tiles, self._schedule.ctas)

    def _allocate(self) -> None:
        super()._allocate()
        behind = self._memory.bytes - self._key_offset
        missing = combine_bytes(self._count) - behind
        if missing > 0:
            self._memory.allocate(missing)
        self._copy_rows = PackedCopy(
            self._memory, self._query_tile, self._query_offset, self._thread, self._count
        )

    def _plan(self) -> None:
        super()._plan()
        group = self._group_heads
        self._kv_heads = udiv(self._heads, group)
        queries = self._function.size(self._problem.space[2])
        self._row_tiles = ceildiv(mul(queries, group), ROWS)
        batches = udiv(self._batches, group)
        self._tiles = mul(batches, self._row_tiles)
        keys = self._spans.of(0, 0).keys if self._problem.has_one_length else self._limits.keys
        self._blocks = ceildiv(keys, self._schedule.block)
        rows = umin(mul(queries, group), ROWS)
        self._handover = Handover(rows, rows_at_once(self._value_tile.width, self._count))
        self._partial = PartialTiles(
            self._function,
            self._memory,
            self._key_offset,
            self._value_tile.width,
            self._thread,
            self._count,
            self._synchronize,
            self._softmax,
        )

    @property
    def _shares_key_mask(self) -> bool:
        if not super()._shares_key_mask:
            return False
        mask = self._problem.mask
        assert mask is not None
        return self._group_heads == 1 or HEAD not in mask.offset.dims()

    # A tile ---------------------------------------------------------------------------------------

    def _tile_part(self, tile: Num) -> None:
        """Computes this CTA's part of a tile."""
        batch, head, first = self._place_of(tile)
        span = self._enter(batch, head)
        self._rows_of_group = mul(span.queries, self._group_heads)
        # The number of a batch's tiles is that of the batch with most queries.
        exists = compare("ult", first, self._rows_of_group)
        with when(exists) if self._limits.varies else nullcontext():
            self._compute_part(span, batch, head, first, self._work.part(tile))

    def _compute_part(self, span: Span, batch: Num, head: Num, first: Num, part: Part) -> None:
        """Computes a part of the tile whose rows are those from ``first`` on."""
        problem, group = self._problem, self._group_heads
        count = umin(sub(self._rows_of_group, first), ROWS)
        self._most = self._limits.of_query(udiv(add(first, sub(count, 1)), group))
        start, end = self._work.blocks(part, ceildiv(self._most, self._schedule.block))
        self._start = start
        self._copy_rows.start(self._packed(problem.q, batch, head, span), first)
        self._keys, self._values = (
            self._key_rows(access, batch, head, span) for access in (problem.k, problem.v)
        )
        queries = PackedQueries(batch, head, udiv(first, group), self._fragment, first, group)
        state = self._attend(queries, sub(end, start))
        ptx.await_copies(0)  # the rows, if there was no block
        if self._schedule.groups > 1:
            place = (self._thread, value(0), value(self._group))
            state = exchange(
                self._memory,
                self._key_offset,
                self._synchronize,
                self._schedule,
                self._softmax,
                place,
                state,
            )
        result = self._packed(problem.result, batch, head, span)
        self._finish(part, TileRows(result, first, count, problem.value, problem.element), state)

    def _finish(self, part: Part, rows: TileRows, state: State) -> None:
        """Stores a whole tile's results, or what the CTA has of them."""
        has_state = compare("eq", self._group, 0)
        branches = Branches(part.is_whole)
        with branches.then(), when(has_state):
            self._store_rows(rows, state)
        with branches.otherwise():
            with when(has_state):
                self._partial.leave(self._cta, part, state, self._fragment, rows)
            self._partial.finish(part, rows)
        self._synchronize()  # before the next tile overwrites what others still read

    def _place_of(self, tile: Num) -> tuple[Num, Num, Num]:
        """Batch, first head and first row of a tile; tiles with the same keys are neighbours."""
        pair = udiv(tile, umax(self._row_tiles, 1))
        row = sub(tile, mul(pair, self._row_tiles))
        kv_heads = umax(self._kv_heads, 1)
        batch, kv_head = udiv(pair, kv_heads), urem(pair, kv_heads)
        return batch, mul(kv_head, self._group_heads), mul(row, ROWS)

    def _packed(self, access: Access, batch: Num, head: Num, span: Span) -> PackedRows:
        return PackedRows(
            self._function,
            access,
            batch,
            head,
            self._group_heads,
            self._rows_of_group,
            span.first_query,
        )

    def _store_rows(self, rows: TileRows, state: State) -> None:
        """Stores the results of a whole tile, by the threads of one warpgroup."""
        results = self._softmax.results(state)
        for row in range(2):
            number = add(self._fragment.row, 8 * row)
            own = [each for i, each in enumerate(results) if row_of(i) == row]
            parts = {4 * pair: own[pair : pair + 2] for pair in range(0, len(own), 2)}
            with when(compare("ult", number, rows.count)):
                store_row(
                    rows.result,
                    add(rows.first, number),
                    self._fragment.column,
                    parts,
                    rows.size,
                    rows.element,
                )

    # Blocks of keys: those of the part ------------------------------------------------------------

    def _copy_block(self, block: Num, stage: Num) -> None:
        super()._copy_block(add(block, self._start), stage)

    def _first_key(self, block: Num) -> Num:
        return super()._first_key(add(block, self._start))

    def _limit(self, queries: Queries) -> Value:
        return value(self._most)
