# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The ring of stages between the producer, which loads, and the consumers, which multiply.

A stage has two barriers: *full*, on which TMA reports the bytes that arrived, and *empty*, on which
every consumer warp reports that it read them. A place in the ring is a stage and a phase, the
parity of the laps. Producer and consumers walk the ring on their own, the producer a phase ahead::

    producer                        consumer
      ring.acquire(slot, bytes)       ring.await_full(slot)
      descriptor.load(.., slot)       (multiply)
      slot = ring.advance(slot)       ring.release(slot, ..)
                                      slot = ring.advance(slot)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith, llvm, memref, nvgpu, nvvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    cast,
    compare,
    constant,
    i32,
    index,
    integer,
    mul,
    pointer,
    select,
    sub,
    udiv,
    when,
    xor,
)
from shapejit.passes.nvgpu.shared import WORKGROUP

# Cycles that one try of a wait may suspend the thread; the try is repeated.
_WAIT_TICKS = 10_000_000


def barriers(count: int) -> Value:
    """``count`` mbarriers in static shared memory."""
    return nvgpu.mbarrier_create(
        ir.Type.parse(f"!nvgpu.mbarrier.group<memorySpace={WORKGROUP}, num_barriers = {count}>")
    )


def barrier_address(group: Value, count: int, number: Num) -> Value:
    """The address of one of a group of barriers in the shared window, i32."""
    words = cast(group, ir.Type.parse(f"memref<{count}xi64, 3>"))
    base = arith.index_cast(i32(), memref.extract_aligned_pointer_as_index(words))
    return add(base, mul(number, 8))


def barrier_pointer(group: Value, count: int, number: Num) -> Value:
    """``!llvm.ptr<3>`` to one of a group of barriers."""
    return llvm.inttoptr(pointer(3), barrier_address(group, count, number))


def await_phase(group: Value, phase: Value, number: Num) -> None:
    """Waits until a barrier has left a phase (i1)."""
    ticks = constant(_WAIT_TICKS, ir.IndexType.get())
    nvgpu.mbarrier_try_wait_parity(group, phase, ticks, index(number))


@dataclass(frozen=True)
class Slot:
    """A place in the ring: stage (i32) and phase (i1)."""

    stage: Value
    phase: Value

    @property
    def values(self) -> list[Value]:
        """As loops carry it."""
        return [self.stage, self.phase]


class Ring:
    """The barriers of a ring.

    Args:
        stages: of the ring.
        consumer_warps: warps of a CTA that release a stage.
        peers: CTAs of the cluster that write into each other's stages (by multicast): a stage is
            empty when the consumers of all of them have released it.
        leader: rank of the first of these CTAs.
    """

    def __init__(self, stages: int, consumer_warps: int, peers: int = 1, leader: Num = 0) -> None:
        self.stages, self._peers, self._leader = stages, peers, leader
        self._arrivals = consumer_warps * peers
        self.full, self._empty = barriers(stages), barriers(stages)

    def initialize(self) -> None:
        """Sets the barriers up, by one thread; a barrier of the CTA or cluster must follow."""
        for stage in range(self.stages):
            nvgpu.mbarrier_init(self.full, index(1), index(stage))
            nvgpu.mbarrier_init(self._empty, index(self._arrivals), index(stage))
        nvvm.fence_mbarrier_init()

    def first(self, *, producer: bool) -> Slot:
        """Where a walk starts: all stages are empty."""
        return Slot(constant(0), constant(int(producer), integer(1)))

    def advance(self, slot: Slot) -> Slot:
        """The place after this one."""
        after = add(slot.stage, 1)
        wraps = compare("eq", after, self.stages)
        turned = xor(slot.phase, constant(1, integer(1)))
        return Slot(select(wraps, 0, after), select(wraps, turned, slot.phase))

    def skip(self, slot: Slot, count: Num) -> Slot:
        """The place ``count`` further on."""
        reached = add(slot.stage, count)
        laps = udiv(reached, self.stages)
        turned = xor(slot.phase, arith.trunci(integer(1), laps))
        return Slot(sub(reached, mul(laps, self.stages)), turned)

    def acquire(self, slot: Slot, bytes_: int) -> None:
        """By the producer: waits until the stage is empty, and announces what will arrive."""
        await_phase(self._empty, slot.phase, slot.stage)
        nvgpu.mbarrier_arrive_expect_tx(self.full, index(bytes_), index(slot.stage))

    def forgo(self, slot: Slot, bytes_: Num) -> None:
        """By the producer: some of what was announced will not arrive."""
        ptx.complete_bytes(barrier_address(self.full, self.stages, slot.stage), bytes_)

    def await_full(self, slot: Slot) -> None:
        """By consumers: waits until all bytes of the stage are there."""
        await_phase(self.full, slot.phase, slot.stage)

    def release(self, stage: Value, lane: Value) -> None:
        """By all lanes of a consumer warp: the stage was read.

        The arrival has no scope: one of the cluster would order all of global memory, at a cost of
        more than half of the speed, and nothing but the stage is handed over.
        """
        if self._peers == 1:
            with when(compare("eq", lane, 0)):
                nvgpu.MBarrierArriveOp(self._empty, index(stage))
            return
        with when(compare("ult", lane, self._peers)):
            own = barrier_pointer(self._empty, self.stages, stage)
            nvvm.MBarrierArriveOp(None, nvvm.mapa(pointer(7), own, add(lane, self._leader)))


def slot_of(values: list[Any]) -> Slot:
    """The place that a loop carries as its first two values."""
    return Slot(values[0], values[1])
