# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The producer of a flash kernel: three threads, each of a warp of its own.

- One keeps the ring full, in the order in which consumers read it: the first keys of a tile; keys
  of a block and values of the block before it, block by block; the first keys of the *next* tile;
  the last values.
- One loads queries, a tile ahead: there are two places for them.
- One stores results, which consumers leave in the place of the queries, and then gives the place
  back.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir.dialects import nvgpu, nvvm

from shapejit.passes.nvgpu.attention.flash_consumer import use_of
from shapejit.passes.nvgpu.attention.flash_operands import StagedRows
from shapejit.passes.nvgpu.attention.flash_schedule import FlashSchedule
from shapejit.passes.nvgpu.attention.flash_work import FlashTile, FlashWork
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    compare,
    constant,
    index,
    integer,
    loop,
    mul,
    sub,
    value,
    when,
    xor,
)
from shapejit.passes.nvgpu.function import KernelFunction, one_thread_of
from shapejit.passes.nvgpu.ring import Ring, Slot, await_phase, slot_of
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.wgmma import ROWS


@dataclass(frozen=True)
class FlashProducer:
    """Emits the work of the producer.

    Attributes:
        function: the kernel.
        schedule: of it.
        memory: shared memory.
        queries, keys, values, results: operands.
        query_offset, block_offset: where the two tiles of queries and the ring's blocks lie.
        ring, query_ring: of blocks, and of tiles of queries.
        written: barriers on which consumers report results.
        work: tiles.
    """

    function: KernelFunction
    schedule: FlashSchedule
    memory: SharedMemory
    queries: StagedRows
    keys: StagedRows
    values: StagedRows
    results: StagedRows
    query_offset: int
    block_offset: int
    ring: Ring
    query_ring: Ring
    written: Value
    work: FlashWork

    def emit(self, warp: Value) -> None:
        """The work of a warp.

        Args:
            warp: its number in the producer's warpgroup.
        """
        roles = (self._load_blocks, self._load_queries, self._store_results)
        for number, role in enumerate(roles):
            with one_thread_of(warp, number):
                role()

    # Keys and values ------------------------------------------------------------------------------

    def _load_blocks(self) -> None:
        self.keys.descriptor.acquire()
        self.values.descriptor.acquire()
        self.function.await_predecessors()
        with when(compare("sgt", self.work.rounds, 0)):
            tile = self.work.tile(0, alone=True)
            slot = self._load(self.keys, tile, sub(tile.blocks, 1), self.ring.first(producer=True))
            with loop(0, self.work.rounds, 1, [*slot.values, *tile.values]) as each:
                slot, tile = slot_of(each.carried), FlashTile.of(each.carried[2:])
                slot = self._load_middle(tile, slot)
                following = self.work.tile(add(each.index, 1), alone=True)
                slot = self._load_ahead(following, add(each.index, 1), slot)
                slot = self._load(self.values, tile, 0, slot)
                each.next = [*slot.values, *following.values]

    def _load_middle(self, tile: FlashTile, slot: Slot) -> Slot:
        """All of a tile but its first keys and its last values."""
        last = sub(tile.blocks, 1)
        with loop(1, tile.blocks, 1, slot.values) as each:
            block = sub(last, each.index)
            here = self._load(self.keys, tile, block, slot_of(each.carried))
            each.next = self._load(self.values, tile, add(block, 1), here).values
        return slot_of(each.results)

    def _load_ahead(self, following: FlashTile, round_: Num, slot: Slot) -> Slot:
        """The first keys of the next tile, if there is one."""
        goes_on = Branches(
            compare("slt", round_, self.work.rounds), [each.type for each in slot.values]
        )
        with goes_on.then() as given:
            given += self._load(self.keys, following, sub(following.blocks, 1), slot).values
        with goes_on.otherwise() as given:
            given += slot.values
        return slot_of(goes_on.results)

    def _load(self, rows: StagedRows, tile: FlashTile, block: Num, slot: Slot) -> Slot:
        """Fills a slot with a block of keys or values; returns the next slot."""
        self.ring.acquire(slot, rows.tile.bytes)
        offset = add(mul(slot.stage, rows.tile.bytes), self.block_offset)
        first = mul(block, self.schedule.keys)
        rows.load(self.memory, offset, self.ring, slot, (tile.batch, tile.head, first))
        return self.ring.advance(slot)

    # Queries and results --------------------------------------------------------------------------

    def _load_queries(self) -> None:
        self.queries.descriptor.acquire()
        self.function.await_predecessors()
        with loop(0, self.work.rounds) as each:
            tile = self.work.tile(each.index, alone=True)
            buffer, phase = use_of(each.index)
            slot = Slot(value(buffer), xor(phase, constant(1, integer(1))))
            self.query_ring.acquire(slot, self.queries.tile.bytes)
            offset = add(mul(buffer, self.queries.tile.bytes), self.query_offset)
            self.queries.load(self.memory, offset, self.query_ring, slot, tile.place)

    def _store_results(self) -> None:
        self.results.descriptor.acquire()
        self.function.await_predecessors()
        with loop(0, self.work.rounds) as each:
            tile = self.work.tile(each.index, alone=True)
            buffer, phase = use_of(each.index)
            await_phase(self.written, phase, buffer)
            start = add(mul(buffer, self.results.tile.bytes), self.query_offset)
            for consumer in range(self.schedule.consumers):
                offset = add(start, consumer * ROWS * self.results.tile.line_bytes)
                row = add(tile.first, consumer * ROWS)
                self.results.store(self.memory, offset, (tile.batch, tile.head, row))
            nvvm.cp_async_bulk_commit_group()
            nvvm.cp_async_bulk_wait_group(0, read=True)
            self.query_ring.release(buffer, 0)
        nvvm.cp_async_bulk_wait_group(0)

    def initialize(self) -> None:
        """Sets up all barriers and starts to fetch the maps, by one thread."""
        self.ring.initialize()
        self.query_ring.initialize()
        for buffer in range(self.query_ring.stages):
            nvgpu.mbarrier_init(
                self.written, index(self.schedule.consumers * _WARPS), index(buffer)
            )
        nvvm.fence_mbarrier_init()
        for rows in (self.queries, self.keys, self.values, self.results):
            rows.descriptor.prefetch()


_WARPS = 4  # of a warpgroup
