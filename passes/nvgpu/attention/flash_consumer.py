# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A consumer of a flash kernel: 64 queries of every tile of its CTA.

While the tensor cores multiply the weights of a block by its values, the consumer has the softmax
of the block before it in memory; blocks are taken from the last one down::

    tensor cores  | scores n-1 | scores n-2 | sums n-1 | scores n-3 | sums n-2 | ..
    this consumer |            | softmax n-1 |   softmax n-2        |  softmax n-3

That goes on across tiles: beside the last sums of a tile are the first scores of the next one. So a
state between two blocks has weights that still wait for their values. They are never there for all
of a tile, and a block of keys is read before the values of the block behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlir.dialects import nvgpu

from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.block import Placed
from shapejit.passes.nvgpu.attention.flash_masks import FlashMasks
from shapejit.passes.nvgpu.attention.flash_schedule import FlashSchedule
from shapejit.passes.nvgpu.attention.flash_turns import FlashTurns
from shapejit.passes.nvgpu.attention.flash_work import FlashTile, FlashWork
from shapejit.passes.nvgpu.attention.masks import Queries
from shapejit.passes.nvgpu.attention.output import ResultStore
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.attention.softmax import Softmax, State, number, scaled
from shapejit.passes.nvgpu.builder import (
    Branches,
    Loop,
    Num,
    Value,
    add,
    and_,
    compare,
    constant,
    index,
    integer,
    loop,
    mul,
    shr,
    sub,
    value,
    when,
    xor,
)
from shapejit.passes.nvgpu.function import Threads, uniform
from shapejit.passes.nvgpu.register_wgmma import (
    await_products,
    multiply_registers,
    multiply_shared,
)
from shapejit.passes.nvgpu.ring import Ring, Slot, await_phase, slot_of
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.stores import publish_to_tma
from shapejit.passes.nvgpu.wgmma import DEPTH, ROWS, Fragment


def use_of(round_: Num) -> tuple[Num, Value]:
    """The query buffer of a round, and the parity of the laps of its barriers, i1."""
    lap = and_(shr(value(round_), 1), 1)
    return and_(value(round_), 1), compare("ne", lap, 0)


@dataclass(frozen=True)
class Weighted:
    """What a consumer knows between two blocks.

    Attributes:
        slot: of the next block in the ring.
        state: maxima and totals with the last block, sums without it.
        weights: of the last block, as a factor of the tensor cores: pairs, i32.
    """

    slot: Slot
    state: State
    weights: list[Value]

    @property
    def values(self) -> list[Value]:
        """As loops carry it."""
        return [*self.slot.values, *self.weights, *self.state.values]

    @staticmethod
    def of(values: Sequence[Value], weights: int) -> Weighted:
        """The inverse of `values`."""
        return Weighted(
            slot_of(list(values)),
            State.of(values[2 + weights :]),
            list(values[2 : 2 + weights]),
        )


@dataclass(frozen=True)
class FlashConsumer:
    """Emits the work of the consumers.

    Attributes:
        problem, schedule: of the kernel.
        memory: shared memory.
        threads: where the thread is.
        queries, blocks, values: layouts: of two tiles of queries, and of the ring's blocks, which
            are keys or values.
        ring: of the blocks.
        query_ring: of the tiles of queries.
        written: barriers on which warps report that results replaced the queries of a tile.
        work: tiles.
        masks: what is seen.
        softmax: its arithmetic.
    """

    problem: AttentionProblem
    schedule: FlashSchedule
    memory: SharedMemory
    threads: Threads
    queries: Placed
    blocks: Placed
    values: Placed
    ring: Ring
    query_ring: Ring
    written: Value
    work: FlashWork
    masks: FlashMasks
    softmax: Softmax

    @property
    def sums(self) -> int:
        """Sums that a thread has: two a column, of a multiple of 16 columns."""
        return -(-self.problem.value // DEPTH) * DEPTH // 2

    @property
    def weights(self) -> int:
        """Pairs of weights that a thread has."""
        return self.schedule.keys // 4

    def emit(self) -> None:
        """The work on all tiles of the CTA, of which there is at least one."""
        turns = FlashTurns(self.threads.warpgroup, self.schedule.consumers)
        turns.begin()
        tile = self.work.tile(0)
        carried = self._begin(tile, turns)
        init = [*tile.values, *carried.values]
        with loop(0, self.work.rounds, 1, self._between(init)) as rounds:
            self._round(rounds, turns)
        turns.end()

    def _between(self, values: Sequence[Value]) -> list[Value]:
        """What is carried from tile to tile: all but sums, which start at 0."""
        return list(values[: len(values) - self.sums])

    def _round(self, rounds: Loop, turns: FlashTurns) -> None:
        """A tile from its second block of keys on, and the first block of the next tile."""
        tile = FlashTile.of(rounds.carried[: self.work.values])
        carried = self._carried(rounds.carried[self.work.values :])
        buffer, _ = use_of(rounds.index)
        # What a branch gave is not known to be the same in all lanes, and would be moved to the
        # uniform registers that descriptors need again and again.
        buffer = uniform(buffer)
        slot = Slot(uniform(carried.slot.stage), carried.slot.phase)
        carried = self._blocks(tile, buffer, replace(carried, slot=slot), turns)
        following = add(rounds.index, 1)
        goes_on = Branches(
            compare("slt", following, self.work.rounds), [each.type for each in rounds.carried]
        )
        with goes_on.then() as given:
            given.extend(self._finish_and_begin(buffer, following, carried, turns))
        with goes_on.otherwise() as given:
            given.extend(self._finish(tile, buffer, carried))
        rounds.next = goes_on.results

    def _carried(self, values: Sequence[Value]) -> Weighted:
        return Weighted.of([*values, *[number(0)] * self.sums], self.weights)

    def _mine(self, tile: FlashTile) -> Queries:
        """The consumer's queries of a tile."""
        first = add(tile.first, mul(self.threads.warpgroup, ROWS))
        fragment = Fragment.of(self.threads.warp, self.threads.lane)
        return Queries(tile.batch, tile.head, first, fragment)

    def _masks(self, tile: FlashTile) -> FlashMasks:
        """What the queries of a tile see."""
        return self.masks.within(self.work.limits(tile))

    # Blocks of keys -------------------------------------------------------------------------------

    def _begin(self, tile: FlashTile, turns: FlashTurns) -> Weighted:
        """The first block of the first tile."""
        mine, block, masks = self._mine(tile), sub(tile.blocks, 1), self._masks(tile)
        slot = self.ring.first(producer=False)
        seen = masks.load(mine, block)
        self.ring.await_full(slot)
        await_phase(self.query_ring.full, constant(0, integer(1)), 0)
        turns.take()
        scores = self._scores(slot.stage, 0)
        turns.give()
        scores, _ = await_products(0, scores)
        self.ring.release(slot.stage, self.threads.lane)
        scores = masks.hide_first(scores, mine, block, seen)
        update = self.softmax.weights(scores, State.initial(self.sums))
        state = State(update.maxima, update.totals, [number(0)] * self.sums)
        return Weighted(self.ring.advance(slot), state, self._packed(update.weights))

    def _blocks(
        self, tile: FlashTile, buffer: Value, carried: Weighted, turns: FlashTurns
    ) -> Weighted:
        """All blocks of a tile but the first one: those that some query sees in part, then the
        rest."""
        mine, masks = self._mine(tile), self._masks(tile)
        last = sub(tile.blocks, 1)
        bounds: list[Num] = [1, tile.blocks]
        if masks.limits.is_causal:
            bounds.insert(1, masks.first_whole(mine, tile.blocks))
        for first, end in itertools.pairwise(bounds):
            with loop(first, end, 1, carried.values) as each:
                before = Weighted.of(each.carried, self.weights)
                in_part = end is not tile.blocks
                block = sub(last, each.index)
                after = self._block(masks, mine, block, buffer, before, turns, in_part)
                each.next = after.values
            carried = Weighted.of(each.results, self.weights)
        return carried

    def _block(
        self,
        masks: FlashMasks,
        mine: Queries,
        block: Num,
        buffer: Value,
        carried: Weighted,
        turns: FlashTurns,
        in_part: bool,
    ) -> Weighted:
        """The scores and weights of a block, beside the sums of the one before."""
        keys, state = carried.slot, carried.state
        values = self.ring.advance(keys)
        seen = masks.load(mine, block)
        self.ring.await_full(keys)
        turns.take()
        scores = self._scores(keys.stage, buffer)
        self.ring.await_full(values)
        sums = self._add(values.stage, carried.weights, state.sums)
        turns.give()
        scores, _ = await_products(1, scores)
        self.ring.release(keys.stage, self.threads.lane)
        scores = masks.hide(scores, mine, block, seen, in_part=in_part)
        update = self.softmax.weights(scores, state)
        sums, _ = await_products(0, sums)
        self.ring.release(values.stage, self.threads.lane)
        weights = self._packed(update.weights)
        after = State(update.maxima, update.totals, scaled(sums, update.factors))
        return Weighted(self.ring.advance(values), after, weights)

    # The end of a tile ----------------------------------------------------------------------------

    def _finish(self, tile: FlashTile, buffer: Value, carried: Weighted) -> list[Value]:
        """The last sums of the last tile, and its results."""
        self.ring.await_full(carried.slot)
        sums = self._add(carried.slot.stage, carried.weights, carried.state.sums)
        inverses = self.softmax.inverses(carried.state.totals)
        sums, _ = await_products(0, sums)
        self._give_results(buffer, scaled(sums, inverses))
        return self._between([*tile.values, *carried.values])

    def _finish_and_begin(
        self, buffer: Value, following: Num, carried: Weighted, turns: FlashTurns
    ) -> list[Value]:
        """The last sums of a tile and its results, beside the first block of the next tile."""
        tile = self.work.tile(following)
        mine, block, masks = self._mine(tile), sub(tile.blocks, 1), self._masks(tile)
        keys, values = carried.slot, self.ring.advance(carried.slot)
        other, (_, phase) = xor(buffer, 1), use_of(following)
        seen = masks.load(mine, block)
        self.ring.await_full(keys)
        await_phase(self.query_ring.full, phase, other)
        turns.take()
        scores = self._scores(keys.stage, other)
        self.ring.await_full(values)
        sums = self._add(values.stage, carried.weights, carried.state.sums)
        turns.give()
        scores, _ = await_products(1, scores)
        self.ring.release(keys.stage, self.threads.lane)
        scores = masks.hide_first(scores, mine, block, seen)
        update = self.softmax.weights(scores, State.initial(self.sums))
        inverses = self.softmax.inverses(carried.state.totals)
        sums, _ = await_products(0, sums)
        self.ring.release(values.stage, self.threads.lane)
        self._give_results(buffer, scaled(sums, inverses))
        weights = self._packed(update.weights)
        state = State(update.maxima, update.totals, [])
        return [*tile.values, *Weighted(self.ring.advance(values), state, weights).values]

    def _give_results(self, buffer: Value, results: Sequence[Value]) -> None:
        """Writes results over the consumer's queries, which nobody reads any more, for TMA.

        Each warp writes the rows whose queries it alone multiplied.
        """
        tile = replace(self.queries.tile, size=self.problem.value)
        offset = add(mul(buffer, tile.bytes), self.queries.offset)
        me, element = self.threads.warpgroup, self.problem.element
        ResultStore(self.memory, offset, tile, self.threads, me, element).stage(results)
        publish_to_tma()
        ptx.synchronize_warp()
        with when(compare("eq", self.threads.lane, 0)):
            nvgpu.MBarrierArriveOp(self.written, index(buffer))

    # Products -------------------------------------------------------------------------------------

    def _packed(self, weights: Sequence[Value]) -> list[Value]:
        """Weights as a factor of the tensor cores."""
        element = self.problem.element
        return [
            base_ptx.pack_halves(weights[i], weights[i + 1], element)
            for i in range(0, len(weights), 2)
        ]

    def _scores(self, stage: Num, buffer: Num) -> list[Value]:
        """Starts the product of queries and a block of keys."""
        rows, columns = self.queries.tile, self.blocks.tile
        start = rows.low_word(add(self.memory.base, self.queries.offset), columns=False)
        start = add(start, mul(self.threads.warpgroup, rows.row_step(ROWS)))
        start = add(start, mul(buffer, rows.bytes >> 4))
        keys = columns.low_word(add(self.memory.base, self.blocks.offset), columns=False)
        keys = add(keys, mul(stage, columns.bytes >> 4))
        return multiply_shared(
            self.problem.element,
            self.schedule.keys,
            (start, value(rows.high_word)),
            (keys, value(columns.high_word)),
            [(rows.depth_step(i), columns.depth_step(i)) for i in range(columns.depths)],
        )

    def _add(self, stage: Num, weights: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        """Starts to add the weighted values of a block to the sums."""
        tile = self.values.tile
        low = tile.low_word(add(self.memory.base, self.values.offset), columns=True)
        low = add(low, mul(stage, tile.bytes >> 4))
        return multiply_registers(
            self.problem.element,
            sums,
            weights,
            (low, value(tile.high_word)),
            tile.row_step(DEPTH),
        )
