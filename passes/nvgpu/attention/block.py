# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a warpgroup does with its part of a block of keys: two products and a softmax between them.

The part may be cut into shares. Then the products of one share run beside the softmax of another::

    one share     | scores |  softmax  | sums |
    two shares    | scores 0 | scores 1 |    | sums 0 |    | sums 1 |
                             |  softmax 0  |  softmax 1  |

The sums of a share wait for its own softmax alone. They are scaled to a new maximum when the sums
of the share before have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir.dialects import arith

from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.masks import ElementMask, KeyMask, Limits, Queries
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.attention.softmax import Softmax, State, number, scaled
from shapejit.passes.nvgpu.attention.tiles import Tile
from shapejit.passes.nvgpu.builder import Num, Value, add, mul, value
from shapejit.passes.nvgpu.register_wgmma import (
    await_products,
    multiply_registers,
    multiply_shared,
)
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.wgmma import DEPTH, ROWS


@dataclass(frozen=True)
class Placed:
    """A tile in shared memory, or the stages of one, one behind the other.

    Attributes:
        tile: its layout.
        offset: in shared memory, i32.
    """

    tile: Tile
    offset: Num


@dataclass(frozen=True)
class BlockStep:
    """Emits the work on a block.

    Attributes:
        problem, schedule: of the kernel.
        memory: shared memory.
        queries, keys, values: tiles in it.
        block: which 64 of the tile's queries the warpgroup has, i32.
        group: which part of a block's keys, i32.
        limits, key_mask, elements: what is seen.
        softmax: its arithmetic.
    """

    problem: AttentionProblem
    schedule: AttentionSchedule
    memory: SharedMemory
    queries: Placed
    keys: Placed
    values: Placed
    block: Num
    group: Num
    limits: Limits
    key_mask: KeyMask | None
    elements: ElementMask | None
    softmax: Softmax

    def emit(
        self, queries: Queries, first: Num, stage: Num, words: Sequence[Value], state: State
    ) -> State:
        """The state after the warpgroup's part of a block.

        Args:
            queries: of the warpgroup.
            first: the first key of the part.
            stage: of keys and values, uniform.
            words: of the key mask, if there is one.
            state: before.
        """
        schedule = self.schedule
        shares, sums = range(schedule.shares), state.sums
        pending = [self._scores(stage, share) for share in shares]
        for share in shares:
            # In flight behind these scores: those of later shares, and the sums of the last one.
            later = len(shares) - 1 - share + (share > 0)
            scores, _ = await_products(later, pending[share])
            start = add(first, share * schedule.share)
            scores = self._hide(scores, queries, start, self._words(words, share))
            update = self.softmax.weights(scores, state)
            packed = self._packed(update.weights)
            if share > 0:
                ptx.compute_now(arith.addf(*update.totals))
                sums, packed = await_products(len(shares) - 1 - share, sums, packed)
            sums = self._add(stage, share, packed, scaled(sums, update.factors))
            state = State(update.maxima, update.totals, sums)
        sums, _ = await_products(0, sums)
        return State(state.maxima, state.totals, sums)

    def _packed(self, weights: Sequence[Value]) -> list[Value]:
        """Weights as a factor of the tensor cores: in pairs, i32."""
        element = self.problem.element
        return [
            base_ptx.pack_halves(weights[i], weights[i + 1], element)
            for i in range(0, len(weights), 2)
        ]

    def _words(self, words: Sequence[Value], share: int) -> Sequence[Value]:
        each = len(words) // self.schedule.shares
        return words[share * each : (share + 1) * each]

    # Products -------------------------------------------------------------------------------------

    def _scores(self, stage: Num, share: int) -> list[Value]:
        """Starts the product of queries and a share of the keys."""
        rows, columns = self.queries.tile, self.keys.tile
        start = rows.low_word(add(self.memory.base, self.queries.offset), columns=False)
        return multiply_shared(
            self.problem.element,
            self.schedule.share,
            (add(start, mul(self.block, rows.row_step(ROWS))), value(rows.high_word)),
            self._descriptor(self.keys, stage, share, columns=False),
            [(rows.depth_step(i), columns.depth_step(i)) for i in range(columns.depths)],
        )

    def _add(
        self, stage: Num, share: int, packed: Sequence[Value], sums: Sequence[Value]
    ) -> list[Value]:
        """Starts to add the weighted values of a share to the sums."""
        return multiply_registers(
            self.problem.element,
            sums,
            packed,
            self._descriptor(self.values, stage, share, columns=True),
            self.values.tile.row_step(DEPTH),
        )

    def _descriptor(
        self, placed: Placed, stage: Num, share: int, *, columns: bool
    ) -> tuple[Value, Value]:
        """Halves of the descriptor of a share of the warpgroup's part of keys or values."""
        tile, schedule = placed.tile, self.schedule
        low = tile.low_word(add(self.memory.base, placed.offset), columns=columns)
        low = add(low, mul(self.group, tile.row_step(schedule.keys)))
        low = add(low, share * tile.row_step(schedule.share))
        return add(low, mul(stage, tile.bytes >> 4)), value(tile.high_word)

    # Masks ----------------------------------------------------------------------------------------

    def _hide(
        self, scores: list[Value], queries: Queries, first: Num, words: Sequence[Value]
    ) -> list[Value]:
        """Scores of a share with masks; scaled if the softmax takes them so."""
        problem = self.problem
        if self.softmax.is_scaled and not problem.adds_mask:
            scores = [arith.mulf(score, number(problem.scale)) for score in scores]
        if self.elements is not None:
            scores = self.elements.apply(scores, queries, first, problem.scale)
        if self.key_mask is not None:
            scores = self.key_mask.hide(scores, words, queries.fragment)
        if self.key_mask is None or self.limits.is_causal or self.limits.varies:
            scores = self.limits.hide(scores, queries, first, self.schedule.share)
        return scores
