# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The two ends of the ring: loading the operands of a tile stage by stage, and multiplying them.

Rows and columns of tiles are sides of wgmma; which operand is on which side is the schedule's
choice. A gated pair has two weights and the lhs once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shapejit.passes.nvgpu.builder import Num, Value, add, loop, mul
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction, Threads
from shapejit.passes.nvgpu.operands import StagedOperand, tile_layout
from shapejit.passes.nvgpu.problem import GemmProblem, Matrix, lhs_matrix, weight_matrix
from shapejit.passes.nvgpu.ring import Ring, Slot, slot_of
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.two_parts import TwoPartProducts
from shapejit.passes.nvgpu.wgmma import (
    ROWS,
    Multiplier,
    await_groups,
    multiply_stage,
    stage_step,
)

_LINE_BYTES = 128
# A stage is released when the products of the next one are under way.
_LEAST_STAGES = 2


def check_stages(schedule: GemmSchedule) -> None:
    """Checks that the ring is long enough: with one stage a kernel would wait forever.

    Raises:
        LoweringError: it is not.
    """
    if schedule.stages < _LEAST_STAGES:
        raise LoweringError(f"has the schedule {schedule}; its ring needs {_LEAST_STAGES} stages")


def sides_of(
    problem: GemmProblem, schedule: GemmSchedule
) -> tuple[Sequence[Matrix], Sequence[Matrix]]:
    """What the rows and the columns of tiles are read from.

    Raises:
        LoweringError: TMA cannot read an operand.
    """

    def matrix(found: Matrix) -> Matrix:
        return replace(found, rounds=not schedule.tf32x3)

    lhs = [matrix(lhs_matrix(problem))]
    weights = [matrix(weight_matrix(problem, number)) for number in range(len(problem.weights))]
    return (weights, lhs) if schedule.swapped else (lhs, weights)


def streamed(matrix: Matrix) -> Matrix:
    """A matrix of which the second-level cache fetches no more than the line that is missed.

    Why: a line of a tile is 128 bytes. Fetching twice as much reads ahead for the next stage, which
    helps when few CTAs wait for their loads (by 2-3 % at 64 tiles, on an H200); when the whole GPU
    streams weights, it only disturbs the order of the reads (by 1-3 % at 90 MB, 4-5 % at 470 MB).
    """
    return replace(matrix, promotion=_LINE_BYTES)


def stage_bytes(problem: GemmProblem, schedule: GemmSchedule) -> int:
    """Shared memory of a stage of the ring."""
    rows, columns = sides_of(problem, schedule)
    extents = [schedule.rows] * len(rows) + [schedule.columns] * len(columns)
    return sum(
        tile_layout(matrix, problem.k, extent, schedule.depth).bytes
        for matrix, extent in zip((*rows, *columns), extents, strict=True)
    )


@dataclass(frozen=True)
class Sharing:
    """How a CTA shares the tiles of one side with others of its cluster.

    Attributes:
        count: CTAs that load a part of each tile, for all of them.
        member: this CTA's number among them.
        mask: their ranks in the cluster, i16; None if there is no other.
    """

    count: int = 1
    member: Num = 0
    mask: Value | None = None


ALONE = Sharing()


@dataclass(frozen=True)
class Operands:
    """The operands of a product in the ring.

    Attributes:
        rows, columns: operands of each side; one of the sides has one, the other one a weight.
        rows_sharing, columns_sharing: of their tiles in the cluster.
        swapped: whether the weights are on the side of the rows.
    """

    rows: tuple[StagedOperand, ...]
    columns: tuple[StagedOperand, ...]
    rows_sharing: Sharing
    columns_sharing: Sharing
    swapped: bool

    @staticmethod
    def make(
        function: KernelFunction,
        memory: SharedMemory,
        problem: GemmProblem,
        schedule: GemmSchedule,
        rows_sharing: Sharing = ALONE,
        columns_sharing: Sharing = ALONE,
        *,
        streams_weights: bool = False,
    ) -> Operands:
        """Allocates the stages and asks for the tensor maps.

        Args:
            streams_weights: see `streamed`.

        Raises:
            LoweringError: TMA cannot read an operand, or there is not enough shared memory.
        """
        rows, columns = sides_of(problem, schedule)
        if streams_weights and schedule.swapped:
            rows = list(map(streamed, rows))
        elif streams_weights:
            columns = list(map(streamed, columns))

        def stage(
            matrices: Sequence[Matrix], extent: int, sharing: Sharing
        ) -> tuple[StagedOperand, ...]:
            return tuple(
                StagedOperand.make(
                    function,
                    memory,
                    matrix,
                    tile_layout(matrix, problem.k, extent, schedule.depth),
                    schedule.stages,
                    sharing.count,
                )
                for matrix in matrices
            )

        return Operands(
            stage(rows, schedule.rows, rows_sharing),
            stage(columns, schedule.columns, columns_sharing),
            rows_sharing,
            columns_sharing,
            schedule.swapped,
        )

    @property
    def all(self) -> tuple[StagedOperand, ...]:
        return (*self.rows, *self.columns)

    @property
    def stage_bytes(self) -> int:
        """What arrives in a stage."""
        return sum(operand.layout.bytes for operand in self.all)

    def prefetch(self) -> None:
        """Starts to fetch the tensor maps, by one thread; only a hint."""
        for operand in self.all:
            operand.descriptor.prefetch()

    def acquire(self) -> None:
        """Makes the loads of this thread see the tensor maps as they are."""
        for operand in self.all:
            operand.descriptor.acquire()

    def load(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        ring: Ring,
        slot: Slot,
        indices: Mapping[int, Num],
    ) -> None:
        """By the producer: fills a stage as soon as it is empty.

        Args:
            indices: of the stage's first elements, along every dim of the problem's space.
        """
        self.load_weights(function, memory, ring, slot, indices)
        self.load_lhs(function, memory, ring, slot, indices)

    def load_weights(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        ring: Ring,
        slot: Slot,
        indices: Mapping[int, Num],
    ) -> None:
        """The same, of the weights alone; what `load_lhs` brings is announced too."""
        ring.acquire(slot, self.stage_bytes)
        side = (
            (self.rows, self.rows_sharing) if self.swapped else (self.columns, self.columns_sharing)
        )
        _load_side(*side, function, memory, ring, slot, indices)

    def load_lhs(
        self,
        function: KernelFunction,
        memory: SharedMemory,
        ring: Ring,
        slot: Slot,
        indices: Mapping[int, Num],
    ) -> None:
        """What `load_weights` leaves out."""
        side = (
            (self.columns, self.columns_sharing) if self.swapped else (self.rows, self.rows_sharing)
        )
        _load_side(*side, function, memory, ring, slot, indices)


def _load_side(
    operands: Sequence[StagedOperand],
    sharing: Sharing,
    function: KernelFunction,
    memory: SharedMemory,
    ring: Ring,
    slot: Slot,
    indices: Mapping[int, Num],
) -> None:
    for operand in operands:
        operand.load(function, memory, ring, slot, indices, sharing.member, sharing.mask)


class Multiplication(Protocol):
    """A consumer's products of tiles, which are started and finished."""

    def start(self, slot: Slot, stages: Num) -> tuple[Slot, Value, list[Value]]:
        """The products of a tile over so many stages, at least one; the last ones may be in flight.

        Returns:
            The place in the ring after it, the stage that is still being read, and the sums; see
            `finish`.
        """

    def finish(self, last: Value, sums: Sequence[Value]) -> list[list[list[Value]]]:
        """Waits for the products; returns the sums' registers by weight and 64-row block.

        Args:
            last, sums: what `start` returned.
        """


def multiplication(
    memory: SharedMemory,
    problem: GemmProblem,
    schedule: GemmSchedule,
    operands: Operands,
    ring: Ring,
    threads: Threads,
) -> Multiplication:
    """A consumer's products, by a schedule; see `Products`."""
    if not schedule.tf32x3:
        return Products(memory, problem, schedule, operands, ring, threads)
    weights = len(problem.weights)
    sides = operands.rows, operands.columns
    return TwoPartProducts(memory, schedule, *sides, weights, ring, threads)


class Products:
    """A consumer's products: 64 rows at a time, weight by weight.

    Args:
        memory: shared memory of the kernel.
        problem: whose product it is.
        schedule: how it is cut.
        operands: in the ring.
        ring: of the stages.
        threads: where the thread is.
    """

    def __init__(
        self,
        memory: SharedMemory,
        problem: GemmProblem,
        schedule: GemmSchedule,
        operands: Operands,
        ring: Ring,
        threads: Threads,
    ) -> None:
        self._ring, self._lane = ring, threads.lane
        self._blocks = schedule.rows // (ROWS * schedule.consumers)
        self._products: list[tuple[Multiplier, Value, Value]] = []
        for number in range(len(problem.weights)):
            rows = operands.rows[min(number, len(operands.rows) - 1)]
            columns = operands.columns[min(number, len(operands.columns) - 1)]
            multiplier = Multiplier(schedule.columns, rows.layout, columns.layout, problem.element)
            panel = rows.layout.panel_bytes
            first = add(mul(threads.warpgroup, self._blocks * panel), rows.offset)
            rows_word = rows.layout.low_word(add(memory.base, first))
            columns_word = columns.layout.low_word(add(memory.base, columns.offset))
            self._products += [
                (multiplier, add(rows_word, block * panel >> 4), columns_word)
                for block in range(self._blocks)
            ]

    def start(self, slot: Slot, stages: Num) -> tuple[Slot, Value, list[Value]]:
        """See `Multiplication`.

        The first stage is peeled: it overwrites the sums, and ptxas would serialise products under
        a condition. A stage is released when the products of the next one are under way.
        """
        ring = self._ring
        ring.await_full(slot)
        undefined = [multiplier.undefined() for multiplier, _, _ in self._products]
        sums = multiply_stage(self._at(slot.stage), undefined, fresh=True)
        init = [*ring.advance(slot).values, slot.stage, *sums]
        with loop(1, stages, 1, init) as each:
            here = slot_of(each.carried)
            before, *sums = each.carried[2:]
            ring.await_full(here)
            sums = multiply_stage(self._at(here.stage), sums, fresh=False)
            await_groups(1)
            ring.release(before, self._lane)
            each.next = [*ring.advance(here).values, here.stage, *sums]
        last, *sums = each.results[2:]
        return slot_of(each.results), last, sums

    def finish(self, last: Value, sums: Sequence[Value]) -> list[list[list[Value]]]:
        """See `Multiplication`."""
        await_groups(0)
        self._ring.release(last, self._lane)
        registers = [self._products[0][0].sums(each) for each in sums]
        return [
            registers[first : first + self._blocks]
            for first in range(0, len(registers), self._blocks)
        ]

    def _at(self, stage: Value) -> list[tuple[Multiplier, Value, Value]]:
        """The products of one stage, with the descriptors of its tiles."""
        return [
            (
                multiplier,
                add(rows, stage_step(multiplier.rows_layout.bytes, stage)),
                add(columns, stage_step(multiplier.columns_layout.bytes, stage)),
            )
            for multiplier, rows, columns in self._products
        ]
