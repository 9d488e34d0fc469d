# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The persistent families: one CTA a multiprocessor, tile after tile.

A producer thread keeps the ring of stages full across tiles; one to three warpgroups of consumers
multiply and have the epilogue, while the producer already loads the next tile::

    producer                              each consumer
      for each segment of this cluster      for each segment of this cluster
        for each stage along K                for each stage along K
          wait empty, load tiles                wait full, multiply, release the stage before
                                              epilogue, or its part of a shared tile

``persistent`` has rows of the result on wgmma's m side, ``swapped`` its columns: then the tile's
height along the result's rows is any multiple of 8. In a cluster neighbouring tiles along the rows
load the columns operand once, each CTA a part, by multicast. Where there are fewer tiles than
multiprocessors, CTAs share K through scratch memory, see `splitting`.

When two consumers take *turns*, each has tiles of its own, and one multiplies while the other has
its epilogue: worth it where K is short. The producer loads the tiles in order; a consumer skips the
stages of the other's tiles. It waits for its turn first, so that the barriers of its stages are not
more than one lap behind (their phase is a single bit).

An extra of the size of the result comes through the ring, behind the stages of a tile's K, where
all of a tile is one CTA's and its consumers take no turns; see `ring_extras`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlir.dialects import nvvm

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    ceildiv,
    compare,
    constant,
    integer,
    loop,
    mul,
    select,
    sub,
    umin,
    when,
)
from shapejit.passes.nvgpu.depthless import emit_depthless
from shapejit.passes.nvgpu.epilogue import Epilogue, TileEpilogue, directions_of
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.extras import TileOrigin
from shapejit.passes.nvgpu.function import (
    KernelFunction,
    Threads,
    Units,
    elected_thread,
    one_thread_of,
)
from shapejit.passes.nvgpu.mainloop import (
    ALONE,
    Multiplication,
    Operands,
    Sharing,
    check_stages,
    multiplication,
)
from shapejit.passes.nvgpu.problem import result_matrix
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.ring import Ring, Slot, slot_of
from shapejit.passes.nvgpu.ring_extras import ArrivingTile, RingExtra
from shapejit.passes.nvgpu.ring_rule import brings_extras
from shapejit.passes.nvgpu.scheduling import Place, Segment, SharedTiles, TileOrder, WholeTiles
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.splitting import SplitTiles
from shapejit.passes.nvgpu.stores import DirectStore, StagedStore, Store
from shapejit.passes.nvgpu.stream import PartialSums
from shapejit.passes.nvgpu.target import WARPGROUP
from shapejit.passes.nvgpu.turns import Turns
from shapejit.passes.nvgpu.two_parts import registers
from shapejit.passes.nvgpu.wgmma import ROWS

# Registers of a producer's and of a consumer's thread, by the number of consumer warpgroups.
_REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
# Of a consumer's registers, what sums leave free for everything else.
_OTHER_REGISTERS = 48
# The same of factors in two parts: rows are loaded late, when their addresses are all there is.
_OTHER_OF_PARTS = 36
_WARPS = WARPGROUP // 32


def emit(request: GemmRequest) -> KernelInterface:
    """Emits a kernel of the families persistent and swapped.

    Raises:
        LoweringError: the schedule does not suit the problem.
    """
    return _Kernel(request).emit()


class _Kernel:
    def __init__(self, request: GemmRequest) -> None:
        self._request, self._problem = request, request.problem
        self._schedule = schedule = request.schedule
        self._directions = directions_of(request.problem, swapped=schedule.swapped)
        # Consumers that have one tile together; the others take turns.
        self._together = 1 if schedule.turns else schedule.consumers
        self._blocks = schedule.rows // (ROWS * self._together)
        self._sums = len(self._problem.weights) * self._blocks * schedule.columns // 2
        self._loads_ahead = request.programmatic and request.constant_weights
        self._check()
        self._function = KernelFunction(
            request.name,
            request.architecture,
            threads=WARPGROUP * (schedule.consumers + 1),
            block=request.block,
            cluster=schedule.cluster,
            programmatic=request.programmatic,
        )

    def _check(self) -> None:
        schedule = self._schedule
        check_stages(schedule)
        if schedule.consumers not in _REGISTERS:
            raise LoweringError(f"has {schedule.consumers} consumers; there are 1 to 3")
        if self._blocks < 1 or schedule.rows % (ROWS * self._together):
            raise LoweringError(
                f"has tiles of {schedule.rows} rows for {self._together} consumers; each takes "
                f"multiples of {ROWS}"
            )
        if schedule.turns and (schedule.consumers != 2 or schedule.stream or schedule.cluster > 1):
            raise LoweringError(
                "takes turns: that is for two consumers, neither stream nor cluster"
            )
        if schedule.turns and schedule.tf32x3:
            raise LoweringError("takes turns, which consumers of factors in two parts do not")
        if schedule.rows_shared > 1:
            raise LoweringError("shares rows in a cluster, which only small_m does")
        if schedule.split > 1 and (schedule.stream or schedule.turns):
            raise LoweringError("shares K, with which neither stream nor turns go together")
        if schedule.once:
            raise LoweringError("says that weights are read once, which only small_m is told")
        limit = _REGISTERS[schedule.consumers][1] - _OTHER_REGISTERS
        sums = self._sums
        if schedule.tf32x3:
            rows = len(self._problem.weights) if schedule.swapped else 1
            sums = registers(sums, self._blocks, rows)
            limit += _OTHER_REGISTERS - _OTHER_OF_PARTS
        if sums > limit:
            raise LoweringError(
                f"needs {sums} registers for the sums of a thread with this schedule; there "
                f"are {limit}. Use smaller tiles or more consumers"
            )

    @property
    def _is_ragged(self) -> bool:
        """Whether tiles are as wide as it takes to give each multiprocessor one of a weight.

        All of the GPU is then busy reading the weight, beside which the result is small: it is
        stored from registers.
        """
        return not self._schedule.swapped and self._schedule.columns % StagedStore.COLUMNS != 0

    @property
    def _hands_over(self) -> bool:
        """Whether partial sums go from CTA to CTA."""
        return self._schedule.stream or self._schedule.split > 1

    # The kernel -----------------------------------------------------------------------------------

    def emit(self) -> KernelInterface:
        function, schedule, problem = self._function, self._schedule, self._problem
        with function.body():
            self._memory = memory = SharedMemory(self._request.architecture)
            self._threads = Threads.read()
            # Who shares tiles waits for the later parts of its own.
            self._units = Units.read(schedule.cluster, backwards=self._hands_over)
            share = schedule.columns_shared
            sharing = Sharing(share, self._units.rank, self._cluster_mask()) if share > 1 else ALONE
            self._operands = Operands.make(
                function,
                memory,
                problem,
                schedule,
                columns_sharing=sharing,
                streams_weights=self._is_ragged,
            )
            self._ring = Ring(schedule.stages, _WARPS * self._together, peers=share)
            self._store = self._make_store()
            self._epilogue = Epilogue(
                function, problem, self._directions, self._threads, self._store
            )
            self._extra = self._find_extra()
            with elected_thread(self._threads, 0):
                self._ring.initialize()
                self._operands.prefetch()
                self._store.prefetch()
                if self._extra is not None:
                    self._extra.prefetch()
            function.synchronize()
            function.launch_dependents()
            emit_depthless(function, problem, self._epilogue)
            self._plan()
            roles = Branches(compare("eq", self._threads.warpgroup, schedule.consumers))
            with roles.then():
                self._produce()
            with roles.otherwise():
                self._consume()
            if schedule.cluster > 1:
                # A CTA must not leave while peers write into its stages or arrive on its barriers.
                function.synchronize()
            grid = self._grid()
        return function.interface(grid, memory.bytes)

    def _cluster_mask(self) -> Value:
        return constant((1 << self._schedule.columns_shared) - 1, integer(16))

    def _make_store(self) -> Store:
        matrix = result_matrix(self._problem)
        if matrix is None or self._is_ragged:
            return DirectStore(
                self._function, self._problem.result, self._directions, self._threads
            )
        return StagedStore(
            self._function,
            self._memory,
            matrix,
            self._threads,
            consumers=self._schedule.consumers,
            turned=self._schedule.swapped,
        )

    def _find_extra(self) -> RingExtra | None:
        """An extra that comes through the ring."""
        schedule = self._schedule
        if not brings_extras(schedule) or not isinstance(self._store, StagedStore):
            return None
        return RingExtra.find(
            self._function,
            self._memory,
            self._problem,
            self._directions,
            self._ring,
            self._operands.all,
            (schedule.rows, schedule.columns, schedule.consumers),
            self._store,
        )

    def _plan(self) -> None:
        schedule, problem = self._schedule, self._problem
        tile = (schedule.rows, schedule.columns)
        directions = (self._directions.rows, self._directions.columns)
        # Tiles of the same weights follow each other where there are few of them: CTAs that lie
        # side by side then read the same weights at the same time.
        self._order = TileOrder.of(
            self._function,
            problem,
            directions,
            tile,
            schedule.columns_shared,
            by_columns=schedule.swapped and schedule.split > 1,
        )
        self._stages = ceildiv(self._function.size(problem.space[problem.k]), schedule.depth)
        self._work: WholeTiles | SharedTiles | SplitTiles
        if schedule.stream:
            self._work = SharedTiles(self._order, self._units, self._stages)
        elif schedule.split > 1:
            self._work = SplitTiles(self._order, self._units, self._stages, schedule)
        else:
            self._work = WholeTiles(self._order, self._units, self._stages)

    def _grid(self) -> Grid:
        """As many units as there are tiles, or parts of them; with stream as there are stages."""
        schedule, problem, number = self._schedule, self._problem, self._function.value_number
        tiles = [
            (number(self._directions.row_size), schedule.rows * schedule.columns_shared),
            (number(self._directions.column_size), schedule.columns),
            *((number(size), 1) for size in problem.space[: problem.m]),
        ]
        if schedule.stream:
            # One more element, lest K = 0 give no CTAs: there are elements to compute then too.
            depth = problem.space[problem.k]
            tiles.append((number(depth if depth.constant else depth + 1), schedule.depth))
        if schedule.split > 1:
            tiles.append((number(schedule.split), 1))
        return Grid(tuple(tiles), ctas_per_sm=1)

    # The producer ---------------------------------------------------------------------------------

    def _produce(self) -> None:
        registers, _ = _REGISTERS[self._schedule.consumers]
        nvvm.setmaxregister(registers, nvvm.SetMaxRegisterAction.decrease)
        with one_thread_of(self._threads.warp, _WARPS * self._schedule.consumers):
            self._operands.acquire()
            if self._extra is not None:
                self._extra.acquire()
            slot = self._ring.first(producer=True)
            ahead = self._load_ahead(slot) if self._loads_ahead else constant(0)
            self._function.await_predecessors()
            with self._work.segments([*slot.values, ahead]) as (segment, outer):
                place = self._order.place(segment.tile, self._units.rank)
                with loop(segment.first, segment.last, 1, outer.carried) as inner:
                    slot, ahead = slot_of(inner.carried), inner.carried[2]
                    self._load(slot, self._indices(place, inner.index), ahead)
                    if self._extra is not None:
                        self._fetch_extra(self._extra, place, segment, inner.index)
                    if self._loads_ahead:
                        ahead = select(compare("eq", ahead, 0), 0, sub(ahead, 1))
                    inner.next = [*self._ring.advance(slot).values, ahead]
                slot, ahead = slot_of(inner.results), inner.results[2]
                if self._extra is not None:
                    slot = self._extra.load(slot, self._indices(place, 0))
                outer.next = [*slot.values, ahead]

    def _fetch_extra(self, extra: RingExtra, place: Place, segment: Segment, stage: Num) -> None:
        """Brings the tile of an extra to the second-level cache, once the ring was full, lest the
        first stages wait for it."""
        with when(compare("eq", stage, umin(sub(segment.last, 1), self._schedule.stages))):
            extra.fetch(self._indices(place, 0))

    def _indices(self, place: Place, stage: Num) -> dict[int, Num]:
        """Where a stage of a tile starts, along every dim of the space."""
        return {
            **dict(enumerate(place.batch)),
            self._directions.rows: place.row,
            self._directions.columns: place.column,
            self._problem.k: mul(stage, self._schedule.depth),
        }

    def _load_ahead(self, slot: Slot) -> Value:
        """Starts the loads of the first segment's weights, for as many stages as the ring has.

        Returns:
            The number of these stages.
        """
        segment, stages = self._work.first()
        count = umin(stages, self._schedule.stages)
        place = self._order.place(segment.tile, self._units.rank)
        with loop(0, count, 1, slot.values) as each:
            here = slot_of(each.carried)
            indices = self._indices(place, add(segment.first, each.index))
            self._operands.load_weights(self._function, self._memory, self._ring, here, indices)
            each.next = self._ring.advance(here).values
        return count

    def _load(self, slot: Slot, indices: Mapping[int, Num], ahead: Value) -> None:
        """Fills a stage.

        Args:
            ahead: stages, from this one on, whose weights are on their way already.
        """
        operands = (self._function, self._memory, self._ring, slot, indices)
        if not self._loads_ahead:
            self._operands.load(*operands)
            return
        with when(compare("eq", ahead, 0)):
            self._operands.load_weights(*operands)
        self._operands.load_lhs(*operands)

    # The consumers --------------------------------------------------------------------------------

    def _consume(self) -> None:
        schedule = self._schedule
        _, registers = _REGISTERS[schedule.consumers]
        nvvm.setmaxregister(registers, nvvm.SetMaxRegisterAction.increase)
        self._function.await_predecessors()
        self._store.begin()
        if schedule.turns:
            self._consume_in_turns()
        else:
            self._consume_together()
        self._store.finish()

    def _consume_together(self) -> None:
        first_row = mul(self._threads.warpgroup, ROWS * self._blocks)
        products = self._products(self._threads)
        partial = self._make_partial()
        with self._work.segments(self._ring.first(producer=False).values) as (segment, outer):
            slot, last, started = products.start(slot_of(outer.carried), segment.stages)
            # Only now, beside the last products: to find the tile's place takes divisions.
            arriving = None if self._extra is None else self._extra.tile(slot, self._threads)
            tile = self._tile(segment, first_row, arriving)
            if partial is None:
                tile.prefetch()
            sums = products.finish(last, started)
            if partial is None:
                tile.emit(sums)
            else:
                self._finish_segment(partial, segment, tile, sums)
            outer.next = slot.values if arriving is None else arriving.slot.values

    def _consume_in_turns(self) -> None:
        """The same where each consumer has the whole of every second tile."""
        me, order = self._threads.warpgroup, self._order
        products = self._products(replace(self._threads, warpgroup=0))
        work = WholeTiles(order, self._units, self._stages, turn=me, turns=2)
        turns = Turns(me, first=self._schedule.consumers + 1)
        with when(compare("ult", self._units.unit, order.count)):
            turns.begin()
        first = self._ring.skip(self._ring.first(producer=False), mul(me, self._stages))
        with work.segments(first.values) as (segment, outer):
            turns.take()
            slot, last, started = products.start(slot_of(outer.carried), segment.stages)
            with when(compare("ult", add(segment.tile, self._units.units), order.count)):
                turns.give()
            tile = self._tile(segment, 0)
            tile.prefetch()
            tile.emit(products.finish(last, started))
            outer.next = self._ring.skip(slot, self._stages).values

    def _products(self, threads: Threads) -> Multiplication:
        """The products of a consumer, as one of those that have a tile together."""
        schedule = replace(self._schedule, consumers=self._together)
        operands, ring = self._operands, self._ring
        return multiplication(self._memory, self._problem, schedule, operands, ring, threads)

    def _tile(
        self, segment: Segment, first_row: Num, arriving: ArrivingTile | None = None
    ) -> TileEpilogue:
        """The epilogue of a consumer's rows of a segment's tile."""
        place = self._order.place(segment.tile, self._units.rank)
        origin = TileOrigin(place.batch, add(place.row, first_row), place.column)
        return self._epilogue.tile(origin, self._blocks, self._schedule.columns, arriving)

    def _make_partial(self) -> PartialSums | None:
        if not self._hands_over:
            return None
        consumers = self._schedule.consumers
        spare = _REGISTERS[consumers][1] - _OTHER_REGISTERS - self._sums
        return PartialSums(self._function, self._threads, self._units, consumers, self._sums, spare)

    def _finish_segment(
        self,
        partial: PartialSums,
        segment: Segment,
        tile: TileEpilogue,
        sums: Sequence[Sequence[Sequence[Value]]],
    ) -> None:
        """Gives the sums of a later part away, or gathers all parts and has the epilogue."""
        flat = [register for blocks in sums for block in blocks for register in block]
        later = Branches(compare("ne", segment.first, 0))
        with later.then():
            partial.give(flat)
        with later.otherwise():
            tile.prefetch()
            totals = iter(self._gather(partial, segment, flat))
            tile.emit([[[next(totals) for _ in block] for block in blocks] for blocks in sums])

    def _gather(
        self, partial: PartialSums, segment: Segment, sums: Sequence[Value]
    ) -> Sequence[Value]:
        """The sums of a tile over all of K, of which this CTA has the first part."""
        if isinstance(self._work, SharedTiles):
            first = add(self._units.unit, 1)
            return partial.gather_all(first, self._work.end_of(segment), sums)
        assert isinstance(self._work, SplitTiles) and segment.shared is not None
        shared = Branches(segment.shared, [each.type for each in sums])
        with shared.then() as results:
            results += self._gather_parts(partial, self._work, segment, self._schedule.split, sums)
        with shared.otherwise() as results:
            results += sums
        return shared.results

    def _gather_parts(
        self,
        partial: PartialSums,
        work: SplitTiles,
        segment: Segment,
        most: int,
        sums: Sequence[Value],
    ) -> Sequence[Value]:
        """The same of a tile in `most` parts or fewer, all of which are on their way at once."""
        if most == 2:
            return partial.gather([work.giver(segment, 1)], sums)
        found = Branches(compare("eq", work.parts, most), [each.type for each in sums])
        with found.then() as results:
            results += partial.gather([work.giver(segment, part) for part in range(1, most)], sums)
        with found.otherwise() as results:
            results += self._gather_parts(partial, work, segment, most - 1, sums)
        return found.results
