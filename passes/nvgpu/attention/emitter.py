# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The attention kernel: a tile of queries a CTA, block of keys after block of keys.

::

    for each tile of this worker              (batch, head, 64 to 256 queries)
      start to copy queries, first keys and values
      for each block of keys
        wait for it; start to copy a later one into a stage that is free
        scores = queries * keys               wgmma, both in shared memory
        hide what is masked; softmax
        sums = sums * .. + weights * values   wgmma, weights in registers
      results = sums / totals

Each warpgroup has 64 queries. It does all of a block's work alone, so that nothing but the arrival
of a block is waited for together; what keeps the tensor cores busy during a softmax is another tile
on the same multiprocessor, of another worker of the CTA or of another CTA. With groups, warpgroups
have the same queries and each a part of every block: then few queries are spread over more of the
GPU, and the parts meet at the end (`exchange`).

The grid is persistent. In block form it is fixed when the graph is made; CTAs without a tile leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from mlir.dialects import arith, gpu, nvvm

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.block import BlockStep, Placed
from shapejit.passes.nvgpu.attention.exchange import exchange, exchange_bytes
from shapejit.passes.nvgpu.attention.masks import ElementMask, KeyMask, Limits, Queries
from shapejit.passes.nvgpu.attention.output import ResultStore
from shapejit.passes.nvgpu.attention.request import AttentionRequest
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.attention.softmax import Softmax, State
from shapejit.passes.nvgpu.attention.spans import Span, Spans
from shapejit.passes.nvgpu.attention.tiles import Copy, Rows, Tile, TileCopy, start_copies
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    ceildiv,
    compare,
    constant,
    loop,
    mul,
    select,
    sub,
    udiv,
    umax,
    urem,
    value,
    when,
)
from shapejit.passes.nvgpu.function import KernelFunction, Threads, Units, uniform
from shapejit.passes.nvgpu.problem import Access
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import publish_to_tma
from shapejit.passes.nvgpu.target import WARPGROUP
from shapejit.passes.nvgpu.wgmma import ROWS, Fragment


def emit(request: AttentionRequest[AttentionSchedule]) -> KernelInterface:
    """Emits a kernel at the current point.

    Raises:
        LoweringError: the schedule needs more shared memory than there is.
    """
    return AttentionKernel(request).emit()


class AttentionKernel:
    """Emits a kernel; `SplitKernel` differs in what a CTA computes."""

    def __init__(self, request: AttentionRequest[AttentionSchedule]) -> None:
        self._problem, self._schedule = request.problem, request.schedule
        self._count = WARPGROUP * request.schedule.warpgroups  # threads of a worker
        self._function = KernelFunction(
            request.name,
            request.architecture,
            threads=self._count * request.schedule.workers,
            block=request.block,
            ctas_per_sm=request.schedule.ctas,
            programmatic=request.programmatic,
        )

    # The kernel -----------------------------------------------------------------------------------

    def emit(self) -> KernelInterface:
        function = self._function
        with function.body():
            function.launch_dependents()
            self._threads, units = Threads.read(), Units.read(1)
            self._find_worker()
            self._allocate()
            self._plan()
            # Tiles go to all first workers, then to all second ones.
            first = add(units.unit, mul(self._worker, units.units))
            step = mul(units.units, self._schedule.workers)
            # Known before the wait, also to LLVM, which would else compute it after that.
            place = [base_ptx.unknown(value(each)) for each in self._place(first)]
            # All CTAs wait, also those without a tile: what comes after this kernel counts on it.
            function.await_predecessors()
            with loop(first, self._tiles, step, place) as tiles:
                after = add(tiles.index, step)
                batch, head, query = tiles.carried
                tiles.next = list(map(value, self._tile(batch, head, query, after)))
            grid = self._grid()
        return function.interface(grid, self._memory.bytes)

    def _grid(self) -> Grid:
        batch, heads, queries, *_ = map(self._function.value_number, self._problem.space)
        tiles = ((batch, 1), (heads, 1), (queries, self._schedule.rows))
        return Grid(tiles, self._schedule.ctas)

    def _find_worker(self) -> None:
        """Which of the CTA's workers the thread belongs to, and its number there."""
        self._worker: Num = 0
        self._thread, self._warpgroup = self._threads.thread, self._threads.warpgroup
        if self._schedule.workers > 1:
            self._worker = udiv(self._warpgroup, self._schedule.warpgroups)
            self._warpgroup = urem(self._warpgroup, self._schedule.warpgroups)
            self._thread = urem(self._thread, self._count)

    def _synchronize(self) -> None:
        """A barrier of the worker."""
        if self._schedule.workers == 1:
            gpu.barrier()
        else:
            count = value(self._count)
            nvvm.BarrierOp(None, barrierId=add(self._worker, 1), numberOfThreads=count)

    def _allocate(self) -> None:
        """Shared memory of a worker, and who copies which part of it."""
        problem, schedule, thread = self._problem, self._schedule, self._thread
        self._memory = memory = SharedMemory(self._function.architecture)
        self._query_tile = Tile(schedule.rows, problem.head)
        self._key_tile = Tile(schedule.block, problem.head)
        self._value_tile = Tile(schedule.block, problem.value)
        self._result_tile = Tile(schedule.rows, problem.value)
        self._query_offset = memory.allocate(self._query_tile.bytes)
        self._result_offset = self._query_offset
        if self._result_tile.width != self._query_tile.width:
            # Lines of one warp's results would lie in another one's queries.
            self._result_offset = memory.allocate(self._result_tile.bytes)
        self._key_offset = memory.allocate(schedule.stages * self._key_tile.bytes)
        self._value_offset = memory.allocate(schedule.stages * self._value_tile.bytes)
        behind = memory.bytes - self._key_offset
        missing = exchange_bytes(schedule, self._sums) - behind
        if missing > 0:
            memory.allocate(missing)
        # The other workers' memory follows, each at the same distance.
        if schedule.workers > 1:
            span = memory.allocate(0)
            memory.allocate(span * (schedule.workers - 1))
            shift = mul(self._worker, span)
            self._query_offset = add(shift, self._query_offset)
            self._result_offset = add(shift, self._result_offset)
            self._key_offset = add(shift, self._key_offset)
            self._value_offset = add(shift, self._value_offset)
        self._copy_queries, self._copy_keys, self._copy_values = (
            TileCopy(memory, tile, thread, self._count)
            for tile in (self._query_tile, self._key_tile, self._value_tile)
        )

    @property
    def _sums(self) -> int:
        """Sums that a thread has."""
        return self._value_tile.width // 2

    def _plan(self) -> None:
        """What is the same for all tiles."""
        problem, schedule, function = self._problem, self._schedule, self._function
        blocks = schedule.rows // ROWS
        self._block = urem(self._warpgroup, blocks) if blocks > 1 else 0
        self._group = udiv(self._warpgroup, blocks) if schedule.groups > 1 else 0
        self._fragment = Fragment.of(self._threads.warp, self._threads.lane)
        batch, heads, queries, *_ = map(function.size, problem.space)
        self._heads, self._batches = heads, mul(batch, heads)
        self._row_tiles = ceildiv(queries, schedule.rows)
        self._tiles = mul(self._batches, self._row_tiles)
        self._plan_block()
        self._store = ResultStore(
            self._memory,
            self._result_offset,
            self._result_tile,
            self._threads,
            self._block,
            problem.element,
        )

    def _plan_block(self) -> None:
        """What is done with a block of keys."""
        problem, schedule, function = self._problem, self._schedule, self._function
        self._limits = limits = Limits(function, problem)
        self._spans = Spans(function, problem)
        self._key_mask: KeyMask | None = None
        elements: ElementMask | None = None
        if problem.mask is not None and self._shares_key_mask:
            self._key_mask = KeyMask(
                function, problem.mask, limits.keys, schedule.keys, self._threads.lane
            )
        elif problem.mask is not None:
            elements = ElementMask(function, problem)
        self._softmax = Softmax.of(problem)
        self._step = BlockStep(
            problem,
            schedule,
            self._memory,
            Placed(self._query_tile, self._query_offset),
            Placed(self._key_tile, self._key_offset),
            Placed(self._value_tile, self._value_offset),
            self._block,
            self._group,
            limits,
            self._key_mask,
            elements,
            self._softmax,
        )

    @property
    def _shares_key_mask(self) -> bool:
        """Whether the mask is the same for all rows of a tile, see `KeyMask`."""
        return self._problem.masks_keys

    # A tile ---------------------------------------------------------------------------------------

    def _place(self, tile: Num) -> tuple[Num, Num, Num]:
        """Batch, head, and number of the tile's first query; of no use if there is no tile."""
        if self._limits.is_causal:
            # Late queries see more keys: those tiles come first.
            turn = udiv(tile, umax(self._batches, 1))
            row = sub(sub(self._row_tiles, 1), turn)
            batch_head = sub(tile, mul(turn, self._batches))
        else:
            batch_head = udiv(tile, umax(self._row_tiles, 1))
            row = sub(tile, mul(batch_head, self._row_tiles))
        batch = udiv(batch_head, umax(self._heads, 1))
        return batch, sub(batch_head, mul(batch, self._heads)), mul(row, self._schedule.rows)

    def _tile(self, batch: Num, head: Num, first: Num, after: Num) -> tuple[Num, Num, Num]:
        """Computes a tile; returns the place of the one after it."""
        span = self._enter(batch, head)
        following = self._place(after)
        # The number of a batch's tiles is that of the batch with most queries.
        with when(compare("ult", first, span.queries)) if self._limits.varies else nullcontext():
            self._compute(span, batch, head, first)
        return following

    def _enter(self, batch: Num, head: Num) -> Span:
        """What a batch and head have; limits are theirs from now on."""
        span = self._spans.of(batch, head)
        self._limits = self._limits.within(span)
        self._step = replace(self._step, limits=self._limits)
        return span

    def _compute(self, span: Span, batch: Num, head: Num, first: Num) -> None:
        """Computes the tile whose queries are those from ``first`` on."""
        problem, schedule = self._problem, self._schedule
        queries = self._query_rows(problem.q, batch, head, span)
        self._keys, self._values = (
            self._key_rows(access, batch, head, span) for access in (problem.k, problem.v)
        )
        start_copies([Copy(self._copy_queries, queries, first, self._query_offset)])
        mine = Queries(batch, head, add(first, mul(self._block, ROWS)), self._fragment)
        most = self._limits.of_any(first, schedule.rows)
        # One at least, so that queries have arrived before their place is used for results.
        blocks = umax(ceildiv(most, schedule.block), 1)
        state = self._attend(mine, blocks)
        result = self._query_rows(problem.result, batch, head, span)
        if schedule.groups > 1:
            place = (self._thread, value(self._block), self._group)
            state = exchange(
                self._memory,
                self._key_offset,
                self._synchronize,
                schedule,
                self._softmax,
                place,
                state,
            )
            with when(compare("eq", self._group, 0)):
                self._store.store(result, mine, self._softmax.results(state))
        else:
            self._store.store(result, mine, self._softmax.results(state))
        self._synchronize()  # before the next tile overwrites what others still read

    def _query_rows(self, access: Access, batch: Num, head: Num, span: Span) -> Rows:
        return Rows(self._function, access, batch, head, span.queries, span.first_query)

    def _key_rows(self, access: Access, batch: Num, head: Num, span: Span) -> Rows:
        return Rows(self._function, access, batch, head, span.keys, span.first_key)

    def _copy_block(self, block: Num, stage: Num) -> None:
        """Starts to copy a block of keys and values into a stage."""
        first = mul(block, self._schedule.block)
        parts = (
            (self._copy_keys, self._keys, self._key_tile, self._key_offset),
            (self._copy_values, self._values, self._value_tile, self._value_offset),
        )
        start_copies(
            [
                Copy(copy, rows, first, add(mul(stage, tile.bytes), offset))
                for copy, rows, tile, offset in parts
            ]
        )

    # Blocks of keys -------------------------------------------------------------------------------

    def _attend(self, queries: Queries, blocks: Num) -> State:
        """What the queries see in all blocks."""
        ahead = self._schedule.stages - 1
        loaded = self._begin_copies(queries, blocks)
        state = State.initial(self._sums)
        first, last = constant(0), constant(ahead)  # stages of this block and of the last one ahead
        with loop(0, blocks, 1, [first, last, *loaded, *state.values]) as turns:
            block, (stage, free, *carried) = turns.index, turns.carried
            loaded, before = carried[: len(loaded)], carried[len(loaded) :]
            ptx.await_copies(ahead - 1)
            publish_to_tma()
            # The block is there, and all have read the one whose stage the next copies take.
            self._synchronize()
            after = add(block, ahead)
            with when(compare("slt", after, blocks)):
                self._copy_block(after, free)
            ptx.commit_copies()  # a group a turn, maybe of nothing, so that groups can be counted
            words = self._key_mask.words if self._key_mask is not None else 0
            further = self._load_mask(queries, after)
            state = self._see(queries, block, uniform(stage), loaded[:words], State.of(before))
            turns.next = [
                self._next_stage(stage),
                self._next_stage(free),
                *loaded[words:],
                *further,
                *state.values,
            ]
        return State.of(turns.results[2 + len(loaded) :])

    def _begin_copies(self, queries: Queries, blocks: Num) -> list[Value]:
        """Starts to copy the first blocks; returns what was loaded of their masks."""
        ahead = self._schedule.stages - 1
        # Not unrolled: short sequences take about as long as their code takes to fetch.
        count = base_ptx.unknown(constant(ahead)) if ahead > 1 else 1
        with loop(0, count) as each:
            ptx.keep_rolled()
            with when(compare("slt", each.index, blocks)):
                self._copy_block(each.index, each.index)
            ptx.commit_copies()
        return [word for block in range(ahead) for word in self._load_mask(queries, block)]

    def _next_stage(self, stage: Value) -> Value:
        after = add(stage, 1)
        return select(compare("eq", after, self._schedule.stages), 0, after)

    def _first_key(self, block: Num) -> Num:
        """The first key of this warpgroup's part of a block."""
        start = mul(block, self._schedule.block)
        return add(start, mul(self._group, self._schedule.keys))

    def _load_mask(self, queries: Queries, block: Num) -> list[Value]:
        if self._key_mask is None:
            return []
        return self._key_mask.load(queries.batch, queries.head, self._first_key(block))

    def _limit(self, queries: Queries) -> Num:
        """The keys that any query of the warpgroup may see."""
        return self._limits.of_any(queries.first, ROWS)

    def _see(
        self, queries: Queries, block: Num, stage: Value, loaded: Sequence[Value], state: State
    ) -> State:
        """The state after a block; what no query of the warpgroup sees is left out."""
        first, words = self._first_key(block), []
        conditions = []
        if self._key_mask is not None:
            words = self._key_mask.shared(loaded)
            conditions.append(self._key_mask.sees_any(words))
        if self._schedule.groups > 1 or self._limits.is_causal:
            conditions.append(compare("slt", first, self._limit(queries)))
        if not conditions:
            return self._step.emit(queries, first, stage, words, state)
        sees = conditions[0]
        for condition in conditions[1:]:
            sees = arith.andi(sees, condition)
        branches = Branches(sees, [each.type for each in state.values])
        with branches.then() as given:
            after = self._step.emit(queries, first, stage, words, state)
            given.extend(after.values)
        with branches.otherwise() as given:
            given.extend(state.values)
        return State.of(branches.results)
