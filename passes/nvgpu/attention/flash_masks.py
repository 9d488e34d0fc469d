# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which scores of a block count, in a flash kernel: masks only where there is something to hide.

A block is one of three sorts. The first one of a tile may reach beyond the last key; blocks at the
causal limit are seen in part; of all others only a mask hides something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlir.dialects import arith

from shapejit.passes.nvgpu.attention.flash_schedule import FlashSchedule
from shapejit.passes.nvgpu.attention.masks import ElementMask, KeyMask, Limits, Queries
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.attention.softmax import Softmax, number
from shapejit.passes.nvgpu.builder import Num, Value, mul, smax, sub, udiv
from shapejit.passes.nvgpu.function import KernelFunction, Threads


@dataclass(frozen=True)
class FlashMasks:
    """Emits what is hidden.

    Attributes:
        problem, schedule: of the kernel.
        limits, key_mask, elements: what is seen.
        softmax: says whether scores are to be scaled.
    """

    problem: AttentionProblem
    schedule: FlashSchedule
    limits: Limits
    key_mask: KeyMask | None
    elements: ElementMask | None
    softmax: Softmax

    @staticmethod
    def make(
        function: KernelFunction,
        problem: AttentionProblem,
        schedule: FlashSchedule,
        limits: Limits,
        threads: Threads,
        softmax: Softmax,
    ) -> FlashMasks:
        """Asks for what the masks need."""
        key_mask, elements = None, None
        if problem.mask is not None and problem.masks_keys:
            key_mask = KeyMask(function, problem.mask, limits.keys, schedule.keys, threads.lane)
        elif problem.mask is not None:
            elements = ElementMask(function, problem)
        return FlashMasks(problem, schedule, limits, key_mask, elements, softmax)

    def within(self, limits: Limits) -> FlashMasks:
        """The same within limits of a batch and head."""
        return self if limits is self.limits else replace(self, limits=limits)

    def first_whole(self, queries: Queries, blocks: Num) -> Num:
        """Of blocks counted down, the first one from 1 on that all queries see whole."""
        whole = udiv(self.limits.of_query(queries.first), self.schedule.keys)
        return smax(sub(blocks, whole), 1)

    def load(self, queries: Queries, block: Num) -> list[Value]:
        """Starts to load what `hide` takes of a block."""
        if self.key_mask is None:
            return []
        return self.key_mask.load(queries.batch, queries.head, self._first(block))

    def hide_first(
        self, scores: list[Value], queries: Queries, block: Num, seen: Sequence[Value]
    ) -> list[Value]:
        """The scores of the first block of a tile, see `hide`."""
        scores = self._by_masks(scores, queries, block, seen, whole=False)
        if self.limits.is_causal:
            return self.limits.apply(scores, queries, self._first(block))
        if self.key_mask is None or self.limits.varies:
            return self.limits.hide(scores, queries, self._first(block), self.schedule.keys)
        return scores  # there is no mask beyond the last key, so those are hidden

    def hide(
        self,
        scores: list[Value],
        queries: Queries,
        block: Num,
        seen: Sequence[Value],
        *,
        in_part: bool,
    ) -> list[Value]:
        """The scores of a later block, scaled if the softmax takes them so.

        Args:
            seen: what was loaded.
            in_part: whether it may lie at the causal limit.
        """
        scores = self._by_masks(scores, queries, block, seen, whole=True)
        return self.limits.apply(scores, queries, self._first(block)) if in_part else scores

    def _first(self, block: Num) -> Num:
        return mul(block, self.schedule.keys)

    def _by_masks(
        self,
        scores: list[Value],
        queries: Queries,
        block: Num,
        seen: Sequence[Value],
        *,
        whole: bool,
    ) -> list[Value]:
        problem = self.problem
        if self.softmax.is_scaled and not problem.adds_mask:
            scores = [arith.mulf(score, number(problem.scale)) for score in scores]
        if self.elements is not None:
            scores = self.elements.apply(
                scores, queries, self._first(block), problem.scale, whole=whole
            )
        if self.key_mask is not None:
            words = self.key_mask.shared(seen)
            scores = self.key_mask.hide(scores, words, queries.fragment)
        return scores
