# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family ``halo`` of convolutions: a tile of pixels is loaded once for all taps.

The grid is persistent, filters are on wgmma's m side. A producer thread keeps two rings full across
tiles, one to three warpgroups of consumers multiply and have the epilogue::

    producer                              each consumer
      for each tile of this CTA             for each tile of this CTA
        for each block of channels            for each block of channels
          load the pixels with their halo       wait for the pixels
          for each tap                          for each tap
            load the tap's filters                wait for the filters, multiply
                                              epilogue

Tiles that share pixels have neighbouring numbers, so that the second-level cache has these once.

Where all filters of a layer find room they are *resident*: loaded once by each CTA. Then nothing
ties consumers together, and each has tiles of its own, so that the epilogue of one runs beside the
products of the other.
"""

from __future__ import annotations

from mlir.dialects import nvvm

from shapejit.gpu.interface import KernelInterface
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
    when,
)
from shapejit.passes.nvgpu.conv.halo_mainloop import HaloLayout, HaloProducts, PixelTiles
from shapejit.passes.nvgpu.conv.halo_product import HaloProduct
from shapejit.passes.nvgpu.conv.halo_window import WIDTH, pixel_tiles
from shapejit.passes.nvgpu.conv.line_output import PixelEpilogue, make_store
from shapejit.passes.nvgpu.conv.lines import LineTiles
from shapejit.passes.nvgpu.depthless import emit_depthless
from shapejit.passes.nvgpu.epilogue import TileEpilogue, directions_of
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.extras import TileOrigin
from shapejit.passes.nvgpu.function import (
    KernelFunction,
    Threads,
    Units,
    elected_thread,
    one_thread_of,
)
from shapejit.passes.nvgpu.mainloop import check_stages
from shapejit.passes.nvgpu.operands import StagedOperand, tile_layout
from shapejit.passes.nvgpu.problem import weight_matrix
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.ring import Ring, Slot, slot_of
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import store_bytes
from shapejit.passes.nvgpu.target import STATIC_SHARED_BYTES, WARPGROUP
from shapejit.passes.nvgpu.wgmma import ROWS

# Registers of a producer's and of a consumer's thread, by the number of consumer warpgroups.
_REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
# Of a consumer's registers, what sums leave free for everything else.
_OTHER_REGISTERS = 56
_WARPS = WARPGROUP // 32
# Of a consumer, in which results wait for their store.
_STAGING_BYTES = store_bytes(turned=True)


def emit(request: GemmRequest) -> KernelInterface:
    """Emits a kernel of the family halo.

    Raises:
        LoweringError: the schedule does not suit the problem.
    """
    return _Kernel(request).emit()


def free_bytes(shared_bytes: int, schedule: GemmSchedule) -> int:
    """Shared memory for the operands of a CTA.

    Args:
        shared_bytes: that a CTA can have.
    """
    return shared_bytes - STATIC_SHARED_BYTES - schedule.consumers * _STAGING_BYTES


class _Kernel:
    def __init__(self, request: GemmRequest) -> None:
        assert isinstance(request.problem, HaloProduct)
        self._request, self._problem = request, request.problem
        self._schedule = schedule = request.schedule
        self._directions = directions_of(request.problem, swapped=True)
        # Consumers that have one tile together.
        self._together = 1 if schedule.resident else schedule.consumers
        self._blocks = schedule.rows // (ROWS * self._together)
        self._loads_ahead = request.programmatic and request.constant_weights
        self._check()
        self._function = KernelFunction(
            request.name,
            request.architecture,
            threads=WARPGROUP * (schedule.consumers + 1),
            block=request.block,
            programmatic=request.programmatic,
        )

    def _check(self) -> None:
        schedule, window = self._schedule, self._problem.window
        check_stages(schedule)
        if schedule.consumers not in _REGISTERS:
            raise LoweringError(f"has {schedule.consumers} consumers; there are 1 to 3")
        if self._blocks < 1 or schedule.rows % (ROWS * self._together):
            raise LoweringError(
                f"has tiles of {schedule.rows} filters for {self._together} consumers; each takes "
                f"multiples of {ROWS}"
            )
        if schedule.cluster > 1 or schedule.stream or schedule.turns or schedule.once:
            raise LoweringError(f"has the schedule {schedule}; tiles with a halo are not shared")
        limit = _REGISTERS[schedule.consumers][1] - _OTHER_REGISTERS
        if (sums := self._blocks * schedule.columns // 2) > limit:
            raise LoweringError(
                f"needs {sums} registers for the sums of a thread with this schedule; there are "
                f"{limit}. Use smaller tiles or more consumers"
            )
        if schedule.resident:
            self._check_resident()
        free = free_bytes(self._request.architecture.shared_bytes, schedule)
        self._tiles_of_pixels = pixel_tiles(schedule, window, free)
        if not self._tiles_of_pixels:
            rows, columns = window.taps
            raise LoweringError(
                f"has a window of {rows} x {columns} taps, beside whose filters there is no room "
                "for tiles of pixels; use fewer stages or smaller tiles"
            )

    def _check_resident(self) -> None:
        schedule, problem = self._schedule, self._problem
        stages = problem.window.stages(schedule.depth)
        filters = problem.space[problem.n].constant
        if (
            stages is None
            or not 0 < stages <= schedule.stages
            or filters is None
            or filters > schedule.rows
            or problem.grouped
        ):
            raise LoweringError(
                f"has {problem.space[problem.n]} filters of {problem.conv.channels} channels in "
                f"{problem.conv.groups} groups; the schedule {schedule} keeps {schedule.rows} of "
                f"{schedule.stages} taps and blocks of channels, in one group"
            )

    # The kernel -----------------------------------------------------------------------------------

    def emit(self) -> KernelInterface:
        function, schedule, problem = self._function, self._schedule, self._problem
        with function.body():
            self._memory = memory = SharedMemory(self._request.architecture)
            self._threads = Threads.read()
            self._units = Units.read(1)
            self._make_operands()
            self._store = make_store(
                function,
                memory,
                problem,
                self._directions,
                self._threads,
                consumers=schedule.consumers,
                lines=schedule.columns // WIDTH,
            )
            self._epilogue = PixelEpilogue(
                function, problem, self._directions, self._threads, self._store
            )
            with elected_thread(self._threads, 0):
                self._filter_ring.initialize()
                self._pixel_ring.initialize()
                self._filters.descriptor.prefetch()
                self._pixels.descriptor.prefetch()
                self._store.prefetch()
            function.synchronize()
            function.launch_dependents()
            emit_depthless(function, problem, self._epilogue)
            lengths = (schedule.columns // WIDTH, WIDTH, schedule.rows)
            self._tiles = LineTiles.of(function, problem, lengths)
            self._stages = ceildiv(function.size(problem.space[problem.k]), schedule.depth)
            roles = Branches(compare("eq", self._threads.warpgroup, schedule.consumers))
            with roles.then():
                self._produce()
            with roles.otherwise():
                self._consume()
            grid = self._tiles.grid(function, ctas_per_sm=1)
        return function.interface(grid, memory.bytes)

    def _make_operands(self) -> None:
        function, memory, schedule = self._function, self._memory, self._schedule
        problem, window = self._problem, self._problem.window
        stages = schedule.stages
        if schedule.resident:
            stages = window.stages(schedule.depth) or stages
        filters = weight_matrix(problem, 0)
        layout = tile_layout(filters, problem.k, schedule.rows, schedule.depth)
        self._filters = StagedOperand.make(function, memory, filters, layout, stages)
        self._pixels = PixelTiles.make(
            function,
            memory,
            problem.lhs_matrix(),
            HaloLayout.of(schedule, window),
            self._tiles_of_pixels,
        )
        warps = _WARPS * self._together
        self._filter_ring = Ring(stages, warps)
        self._pixel_ring = Ring(self._tiles_of_pixels, warps)

    # The producer ---------------------------------------------------------------------------------

    def _produce(self) -> None:
        registers, _ = _REGISTERS[self._schedule.consumers]
        nvvm.setmaxregister(registers, nvvm.SetMaxRegisterAction.decrease)
        with one_thread_of(self._threads.warp, _WARPS * self._schedule.consumers):
            self._filters.descriptor.acquire()
            self._pixels.descriptor.acquire()
            if self._schedule.resident:
                self._load_resident()
            else:
                self._load_all()

    def _load_resident(self) -> None:
        """Loads the filters once, then the pixels of tile after tile."""
        units, count = self._units, self._tiles.count
        if not self._loads_ahead:
            self._function.await_predecessors()
        with when(compare("ult", units.unit, count)):
            start = self._tiles.indices(0)
            with loop(0, self._stages, 1, self._filter_ring.first(producer=True).values) as each:
                slot = slot_of(each.carried)
                self._load_filters(slot, start, each.index)
                each.next = self._filter_ring.advance(slot).values
        if self._loads_ahead:
            self._function.await_predecessors()
        first = self._pixel_ring.first(producer=True)
        with loop(units.unit, count, units.units, first.values) as tiles:
            indices = self._tiles.indices(tiles.index)
            with loop(0, self._blocks_of_channels, 1, tiles.carried) as blocks:
                slot = slot_of(blocks.carried)
                self._load_pixels(slot, indices, blocks.index)
                blocks.next = self._pixel_ring.advance(slot).values
            tiles.next = blocks.results

    def _load_all(self) -> None:
        """Loads pixels and filters of tile after tile."""
        units = self._units
        filters, pixels = (
            ring.first(producer=True) for ring in (self._filter_ring, self._pixel_ring)
        )
        ahead = self._load_ahead(filters) if self._loads_ahead else constant(0)
        self._function.await_predecessors()
        init = [*filters.values, *pixels.values, ahead]
        with loop(units.unit, self._tiles.count, units.units, init) as tiles:
            indices = self._tiles.indices(tiles.index)
            with loop(0, self._blocks_of_channels, 1, tiles.carried) as blocks:
                pixels = slot_of(blocks.carried[2:4])
                self._load_pixels(pixels, indices, blocks.index)
                first = mul(blocks.index, self._problem.window.count)
                carried = [*blocks.carried[:2], blocks.carried[4]]
                with loop(0, self._problem.window.count, 1, carried) as taps:
                    slot, ahead = slot_of(taps.carried), taps.carried[2]
                    stage = add(first, taps.index)
                    if self._loads_ahead:
                        with when(compare("eq", ahead, 0)):
                            self._load_filters(slot, indices, stage)
                        ahead = select(compare("eq", ahead, 0), 0, sub(ahead, 1))
                    else:
                        self._load_filters(slot, indices, stage)
                    taps.next = [*self._filter_ring.advance(slot).values, ahead]
                *filters_after, ahead = taps.results
                pixels_after = self._pixel_ring.advance(pixels).values
                blocks.next = [*filters_after, *pixels_after, ahead]
            tiles.next = blocks.results

    @property
    def _blocks_of_channels(self) -> Num:
        return udiv(self._stages, self._problem.window.count)

    def _load_ahead(self, slot: Slot) -> Value:
        """Starts the loads of the first tile's filters, a block of channels of them at most.

        Returns:
            The number of taps that were loaded.
        """
        units = self._units
        most = min(self._problem.window.count, self._filter_ring.stages)
        count = select(compare("ult", units.unit, self._tiles.count), most, 0)
        indices = self._tiles.indices(units.unit)
        with loop(0, count, 1, slot.values) as each:
            here = slot_of(each.carried)
            self._load_filters(here, indices, each.index)
            each.next = self._filter_ring.advance(here).values
        return count

    def _load_filters(self, slot: Slot, indices: dict[int, Num], stage: Num) -> None:
        """Fills a tile of filters, of a tap and block of channels."""
        layout = self._filters.layout
        self._filter_ring.acquire(slot, layout.bytes)
        place = {**indices, self._problem.k: mul(stage, self._schedule.depth)}
        self._filters.load(self._function, self._memory, self._filter_ring, slot, place)

    def _load_pixels(self, slot: Slot, indices: dict[int, Num], block: Num) -> None:
        """Fills a tile of pixels, of a block of channels."""
        depth = self._problem.window.count * self._schedule.depth
        place = {**indices, self._problem.k: mul(block, depth)}
        self._pixels.load(self._function, self._memory, self._pixel_ring, slot, place)

    # The consumers --------------------------------------------------------------------------------

    def _consume(self) -> None:
        schedule = self._schedule
        _, registers = _REGISTERS[schedule.consumers]
        nvvm.setmaxregister(registers, nvvm.SetMaxRegisterAction.increase)
        self._function.await_predecessors()
        self._store.begin()
        products = HaloProducts(
            self._memory,
            schedule,
            self._problem.window,
            self._filters,
            self._pixels,
            self._filter_ring,
            self._pixel_ring,
            self._threads,
        )
        if schedule.resident:
            self._consume_own(products)
        else:
            self._consume_together(products)
        self._store.finish()

    def _consume_together(self, products: HaloProducts) -> None:
        units = self._units
        first_row = mul(self._threads.warpgroup, ROWS * self._blocks)
        filters, pixels = (
            ring.first(producer=False) for ring in (self._filter_ring, self._pixel_ring)
        )
        init = [*filters.values, *pixels.values]
        with loop(units.unit, self._tiles.count, units.units, init) as each:
            filters, pixels = slot_of(each.carried[:2]), slot_of(each.carried[2:])
            filters, pixels = self._compute(products, filters, pixels, each.index, first_row)
            each.next = [*filters.values, *pixels.values]

    def _consume_own(self, products: HaloProducts) -> None:
        """Each consumer has every so-and-so-many-th tile, with the filters that stay."""
        units, consumers = self._units, self._schedule.consumers
        me, blocks = self._threads.warpgroup, self._blocks_of_channels
        filters = self._filter_ring.first(producer=False)
        ring = self._pixel_ring
        first = ring.skip(ring.first(producer=False), mul(me, blocks))
        start, step = add(units.unit, mul(me, units.units)), mul(units.units, consumers)
        with loop(start, self._tiles.count, step, first.values) as each:
            slot = slot_of(each.carried)
            _, slot = self._compute(products, filters, slot, each.index, 0)
            each.next = ring.skip(slot, mul(blocks, consumers - 1)).values

    def _compute(
        self, products: HaloProducts, filters: Slot, pixels: Slot, number: Value, first_row: Num
    ) -> tuple[Slot, Slot]:
        """Computes a tile; returns the places in the rings after it."""
        filters, pixels, last, started = products.start(filters, pixels, self._stages)
        # Only now, beside the last products: to find the tile's place takes divisions.
        tile = self._tile(number, first_row)
        tile.prefetch()
        tile.emit(products.finish(last, started))
        return filters, pixels

    def _tile(self, number: Value, first_row: Num) -> TileEpilogue:
        """The epilogue of a consumer's filters of a tile."""
        problem, indices = self._problem, self._tiles.indices(number)
        batch = tuple(indices[dim] for dim in range(problem.m))
        origin = TileOrigin(batch, add(indices[problem.n], first_row), indices[problem.m])
        return self._epilogue.tile(origin, self._blocks, self._schedule.columns)
