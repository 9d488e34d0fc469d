# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family ``small_m``: few rows of the result, where reading the weights is all the time.

The weights are on wgmma's m side, so a tile has 64 or 128 columns of the result and as many of its
rows, any multiple of 8, as there are. Tiles are small and the ring is long: what counts is how many
bytes are on their way. Hence one producer warp, which needs no registers from others, and two CTAs
on a multiprocessor where they fit. Clusters help in two ways:

- *split*: CTAs share a tile along K when there are fewer tiles than multiprocessors; partial sums
  meet in distributed shared memory, see `cluster`. A part without elements of K loads zeros, from
  beyond the operands' end;
- *rows shared*: CTAs with neighbouring tiles along the rows of the result load each weight once,
  each a share of it, by multicast.

The grid is persistent in both forms of the parameters, the ring runs on from tile to tile. In block
form the grid is fixed when the graph is made; what is more than the tiles just leaves. A CTA leaves
when nothing can reach its shared memory any more: its ring is drained (`Ring.drain`) and all owners
have read what it sent.

A kernel that starts before the one ahead of it has ended may load a ring of weights meanwhile, if
nobody writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from mlir.dialects import gpu, nvvm

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu.builder import (
    Branches,
    Loop,
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
    udiv,
    umax,
    umin,
    value,
    when,
    xor,
)
from shapejit.passes.nvgpu.cluster import (
    ClusterPlace,
    Exchange,
    PeerRing,
    announce_start,
    await_starts,
)
from shapejit.passes.nvgpu.depthless import emit_depthless
from shapejit.passes.nvgpu.epilogue import Epilogue, directions_of
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.extras import TileOrigin
from shapejit.passes.nvgpu.function import KernelFunction, Threads, Units, elected_thread
from shapejit.passes.nvgpu.mainloop import (
    Multiplication,
    Operands,
    Sharing,
    check_stages,
    multiplication,
    stage_bytes,
)
from shapejit.passes.nvgpu.occupancy import bytes_for_each, ctas_that_fit
from shapejit.passes.nvgpu.problem import result_matrix
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.ring import Slot, slot_of
from shapejit.passes.nvgpu.schedule import STREAMING_TILES, GemmSchedule
from shapejit.passes.nvgpu.scheduling import Place, TileOrder
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import DirectStore, StagedStore, Store, store_bytes
from shapejit.passes.nvgpu.target import WARPGROUP
from shapejit.passes.nvgpu.two_parts import part_bytes
from shapejit.passes.nvgpu.wgmma import ROWS

_WARP = 32
_WARPS = WARPGROUP // _WARP

# Staging area of the results of a warpgroup, at most.
_STORE_BYTES = store_bytes(turned=True)
# So many stages hide the latency of loads.
_ENOUGH_STAGES = 8
# More CTAs than that on a multiprocessor would not have more bytes on their way.
_MOST_CTAS = 2


def emit(request: GemmRequest) -> KernelInterface:
    """Emits a kernel of the family small_m.

    Raises:
        LoweringError: the schedule does not suit the problem.
    """
    return _Kernel(request).emit()


def _check(schedule: GemmSchedule) -> None:
    check_stages(schedule)
    if schedule.rows != ROWS * schedule.consumers:
        raise LoweringError(
            f"has the schedule {schedule}; a small_m tile has {ROWS} rows a warpgroup"
        )
    if schedule.columns_shared > 1 or schedule.stream:
        raise LoweringError(
            f"has the schedule {schedule}; small_m shares rows or K, neither columns nor a wave"
        )


def _shared(request: GemmRequest) -> int:
    """Bytes of dynamic shared memory of a CTA, with all stages of the schedule."""
    schedule, products = request.schedule, len(request.problem.weights)
    shared = schedule.stages * stage_bytes(request.problem, schedule)
    shared += _STORE_BYTES * schedule.consumers
    if schedule.tf32x3:
        shared += part_bytes(schedule.columns, schedule.depth, 1)
    if schedule.split > 1:
        threads = WARPGROUP * schedule.consumers
        shared += Exchange.bytes_of(schedule.columns, schedule.split, products, threads)
    return shared


def _beside_neighbours(request: GemmRequest) -> GemmSchedule:
    """The schedule, with a ring that leaves room for the next kernel of a graph.

    In a graph of kernels that start early the next one sets up its barriers and loads its weights
    while this one still runs, if its CTAs find room. So the ring has no more stages than a CTA's
    part of a tile has, and takes half of a multiprocessor's shared memory if enough stages stay to
    hide the latency of loads. The number of CTAs stays that of the whole ring.
    """
    schedule, problem = request.schedule, request.problem
    if not (request.block and request.programmatic):
        return schedule
    stages, enough = schedule.stages, _ENOUGH_STAGES
    depth = problem.space[problem.k].constant
    if depth is not None:
        steps = max(-(-depth // (schedule.depth * schedule.split)), 2)
        stages, enough = min(stages, steps), min(enough, steps)
    stage = stage_bytes(problem, schedule)
    rest = _shared(request) - schedule.stages * stage
    room = (bytes_for_each(request.architecture, 2) - rest) // stage
    if room >= enough:
        stages = min(stages, room)
    return replace(schedule, stages=stages)


class _Kernel:
    def __init__(self, request: GemmRequest) -> None:
        _check(request.schedule)
        self._problem = request.problem
        self._schedule = schedule = _beside_neighbours(request)
        self._directions = directions_of(request.problem, swapped=True)
        self._consumer_threads = WARPGROUP * schedule.consumers
        self._loads_ahead = request.programmatic and request.constant_weights
        whole = _shared(request)
        self._ctas_per_sm = min(ctas_that_fit(request.architecture, whole), _MOST_CTAS)
        self._function = KernelFunction(
            request.name,
            request.architecture,
            threads=self._consumer_threads + _WARP,
            block=request.block,
            cluster=schedule.cluster,
            ctas_per_sm=self._ctas_per_sm,
            programmatic=request.programmatic,
        )

    @property
    def _streams_weights(self) -> bool:
        """Whether there are so many tiles of weights that all of the GPU is busy reading them."""
        columns = self._problem.space[self._problem.n].constant
        if columns is None:
            return self._schedule.once
        return columns >= STREAMING_TILES * self._schedule.rows

    # The kernel -----------------------------------------------------------------------------------

    def emit(self) -> KernelInterface:
        function = self._function
        with function.body():
            self._allocate()
            self._plan()
            self._start()
            function.launch_dependents()
            emit_depthless(function, self._problem, self._epilogue)
            producer = compare("eq", self._threads.warp, _WARPS * self._schedule.consumers)
            roles = Branches(producer)
            with roles.then():
                self._produce()
            with roles.otherwise():
                self._consume()
            grid = self._grid()
        return function.interface(grid, self._memory.bytes)

    def _allocate(self) -> None:
        """Shared memory, barriers, tensor maps."""
        function, schedule, problem = self._function, self._schedule, self._problem
        self._memory = memory = SharedMemory(function.architecture)
        self._threads, self._units = Threads.read(), Units.read(schedule.cluster)
        self._place = place = ClusterPlace.of(
            self._units.rank, schedule.split, schedule.rows_shared
        )
        sharing = Sharing(place.shared, place.member, place.multicast_mask)
        self._operands = Operands.make(
            function, memory, problem, schedule, sharing, streams_weights=self._streams_weights
        )
        warps = _WARPS * schedule.consumers
        self._ring = PeerRing(schedule.stages, warps, place.shared, place.leader)
        self._exchange = self._make_exchange()
        self._store = self._make_store()
        self._epilogue = Epilogue(function, problem, self._directions, self._threads, self._store)

    def _make_exchange(self) -> Exchange | None:
        schedule = self._schedule
        if schedule.split == 1:
            return None
        return Exchange(
            self._memory,
            self._place,
            schedule.columns,
            len(self._problem.weights),
            self._consumer_threads,
            self._threads.thread,
            barrier=schedule.consumers + 1,  # the ones before are those of the stores
        )

    def _make_store(self) -> Store:
        function, problem = self._function, self._problem
        matrix = result_matrix(problem)
        if matrix is None:
            return DirectStore(function, problem.result, self._directions, self._threads)
        return StagedStore(
            function,
            self._memory,
            matrix,
            self._threads,
            consumers=self._schedule.consumers,
            turned=True,
        )

    def _start(self) -> None:
        """Sets the barriers up. Producers that multicast wait for the cluster; others load at once,
        and consumers wait while the first stage is on its way."""
        with elected_thread(self._threads, 0):
            if self._exchange is not None:
                self._exchange.initialize()
            self._ring.initialize()
            self._operands.prefetch()
            self._store.prefetch()
        if self._schedule.cluster > 1:
            announce_start()
        if self._schedule.rows_shared > 1:
            await_starts()
        else:
            gpu.barrier()

    @property
    def _starts_apart(self) -> bool:
        """Whether the cluster's start is still to be awaited."""
        return self._schedule.cluster > 1 and self._schedule.rows_shared == 1

    def _plan(self) -> None:
        schedule, problem = self._schedule, self._problem
        self._order = TileOrder.of(
            self._function,
            problem,
            (problem.m, problem.n),
            (schedule.columns, schedule.rows),
            schedule.rows_shared,
        )
        stages = ceildiv(self._function.size(problem.space[problem.k]), schedule.depth)
        self._first, self._stages = self._part(stages)

    def _tile_place(self, tile: Num) -> Place:
        """Where a tile is. Those of the same weights follow each other; there are few of them."""
        order = self._order
        outer = udiv(tile, order.rows)
        row = sub(tile, mul(outer, order.rows))
        batch: list[Num] = []
        for size in (order.columns, *reversed(order.batches[1:])) if order.batches else ():
            rest = udiv(outer, size)
            batch.append(sub(outer, mul(rest, size)))
            outer = rest
        column, *batch = [*batch, outer]
        row = add(mul(row, order.cluster), self._place.member)
        rows, columns = order.tile
        return Place(tuple(reversed(batch)), mul(row, rows), mul(column, columns))

    def _part(self, stages: Num) -> tuple[Num, Num]:
        """The first stage of this CTA's part of K, and how many it has: at least one.

        A part of nothing is one stage beyond the operands' end, where TMA reads zeros.
        """
        split, part = self._place.split, self._place.part
        if split == 1:
            return 0, stages
        first = udiv(mul(part, stages), split)
        count = sub(udiv(mul(add(part, 1), stages), split), first)
        return select(compare("eq", count, 0), stages, first), umax(count, 1)

    def _grid(self) -> Grid:
        schedule, problem, number = self._schedule, self._problem, self._function.value_number
        *batch, m, n, _ = problem.space
        tiles = [
            (number(m), schedule.columns * schedule.rows_shared),
            (number(n), schedule.rows),
            *((number(size), 1) for size in batch),
        ]
        return Grid(tuple(tiles), self._ctas_per_sm)

    # The producer ---------------------------------------------------------------------------------

    def _produce(self) -> None:
        ring = self._ring
        with when(nvvm.elect_sync(integer(1))):
            self._operands.acquire()
            start = ring.first(producer=True)
            ahead = self._load_ahead(start) if self._loads_ahead else []
            self._function.await_predecessors()
            with self._tiles([*start.values, *ahead]) as tiles:
                place = self._tile_place(tiles.index)
                with loop(0, self._stages, 1, tiles.carried) as stages:
                    slot, ahead = slot_of(stages.carried), stages.carried[2:]
                    after = self._load(slot, self._indices(place, stages.index), ahead)
                    stages.next = [*ring.advance(slot).values, *after]
                tiles.next = stages.results
            if self._schedule.rows_shared > 1:
                ring.drain(slot_of(tiles.results))
        if self._starts_apart:
            await_starts()

    def _tiles(self, init: Sequence[Value]) -> AbstractContextManager[Loop]:
        """A loop over the tiles of this cluster."""
        return loop(self._units.unit, self._order.count, self._units.units, init)

    def _load_ahead(self, slot: Slot) -> list[Value]:
        """Starts the loads of the first tile's weights for as many stages as the ring has.

        Returns:
            The number of these stages.
        """
        has_tile = compare("ult", self._units.unit, self._order.count)
        count = select(has_tile, umin(value(self._stages), self._schedule.stages), 0)
        place = self._tile_place(self._units.unit)
        with loop(0, count, 1, slot.values) as stages:
            here = slot_of(stages.carried)
            self._operands.load_weights(
                self._function, self._memory, self._ring, here, self._indices(place, stages.index)
            )
            stages.next = self._ring.advance(here).values
        return [count]

    def _load(self, slot: Slot, indices: Mapping[int, Num], ahead: Sequence[Value]) -> list[Value]:
        """Fills a stage.

        Args:
            ahead: how many stages, from this one on, have their weights on the way already;
                nothing if none ever has.

        Returns:
            The same for the next stage.
        """
        operands = (self._function, self._memory, self._ring, slot, indices)
        if not ahead:
            self._operands.load(*operands)
            return []
        is_none = compare("eq", ahead[0], 0)
        with when(is_none):
            self._operands.load_weights(*operands)
        self._operands.load_lhs(*operands)
        return [select(is_none, 0, sub(ahead[0], 1))]

    def _indices(self, place: Place, stage: Num) -> dict[int, Num]:
        """Where a stage of this CTA's part of a tile starts, along every dim of the space."""
        problem = self._problem
        return {
            **dict(enumerate(place.batch)),
            problem.m: place.row,
            problem.n: place.column,
            problem.k: mul(add(self._first, stage), self._schedule.depth),
        }

    # The consumers --------------------------------------------------------------------------------

    def _consume(self) -> None:
        if self._starts_apart:
            await_starts()
        self._function.await_predecessors()
        if isinstance(self._store, StagedStore):
            self._store.begin()
        products = multiplication(
            self._memory, self._problem, self._schedule, self._operands, self._ring, self._threads
        )
        start = [*self._ring.first(producer=False).values, constant(0, integer(1))]
        with self._tiles(start) as tiles:
            place = self._tile_place(tiles.index)
            *slot, phase = tiles.carried
            after = self._tile(place, products, slot, phase)
            tiles.next = [*after, xor(phase, constant(1, integer(1)))]
        if self._exchange is not None:
            self._exchange.finish(tiles.results[-1])
        self._store.finish()

    def _tile(
        self, place: Place, products: Multiplication, slot: Sequence[Value], phase: Value
    ) -> list[Value]:
        """One tile; returns the place in the ring after it.

        Args:
            phase: of the exchange.
        """
        row = add(place.column, mul(self._threads.warpgroup, ROWS))
        after, last, sums = products.start(slot_of(list(slot)), self._stages)
        exchange = self._exchange
        if exchange is None:
            origin = TileOrigin(place.batch, row, place.row)
            epilogue = self._epilogue.tile(origin, 1, self._schedule.columns)
            epilogue.prefetch()
            epilogue.emit(products.finish(last, sums))
            return after.values
        totals = [registers for [registers] in products.finish(last, sums)]
        exchange.send(totals, phase)
        if exchange.is_owner is None:
            self._finish_part(exchange, place, row, totals, phase)
        else:
            with when(exchange.is_owner):
                self._finish_part(exchange, place, row, totals, phase)
        return after.values

    def _finish_part(
        self,
        exchange: Exchange,
        place: Place,
        row: Value,
        sums: Sequence[Sequence[Value]],
        phase: Value,
    ) -> None:
        """The epilogue of the part of a tile that this CTA owns."""
        origin = TileOrigin(place.batch, row, add(place.row, exchange.first_column))
        epilogue = self._epilogue.tile(origin, 1, exchange.columns)
        epilogue.prefetch()
        epilogue.emit([[registers] for registers in exchange.receive(sums, phase)])
