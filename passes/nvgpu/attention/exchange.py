# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Partial results of warpgroups that share the keys of the same queries, through shared memory."""

from __future__ import annotations

from collections.abc import Callable

from mlir.dialects import llvm

from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.attention.softmax import Softmax, State
from shapejit.passes.nvgpu.builder import Num, Value, add, and_, compare, f32, mul, when
from shapejit.passes.nvgpu.shared import SharedMemory
from shapejit.passes.nvgpu.target import WARPGROUP
from shapejit.passes.nvgpu.wgmma import ROWS

_NUMBER_BYTES = 4
_STATE_NUMBERS = 4  # maxima and totals of two rows


def exchange_bytes(schedule: AttentionSchedule, sums: int) -> int:
    """Shared memory for the states of all groups but the first.

    Args:
        sums: that a thread has.
    """
    states = (schedule.groups - 1) * schedule.rows // ROWS
    return states * WARPGROUP * (sums + _STATE_NUMBERS) * _NUMBER_BYTES


def exchange(
    memory: SharedMemory,
    offset: Num,
    synchronize: Callable[[], None],
    schedule: AttentionSchedule,
    softmax: Softmax,
    place: tuple[Value, Value, Value],
    state: State,
) -> State:
    """Brings the states of all groups together, for the threads of the first group.

    Threads of one number in their warpgroups have the same rows and columns. All threads of a
    worker call it; what lies at the offset may be overwritten.

    Args:
        offset: of `exchange_bytes` bytes.
        synchronize: a barrier of these threads.
        place: the thread's number, the number of its block of rows, and its group.
        state: of this thread's part.

    Returns:
        The state of all parts; of no use to threads of other groups.
    """
    thread, rows, group = place
    blocks = schedule.rows // ROWS
    bytes_ = WARPGROUP * len(state.values) * _NUMBER_BYTES
    own = add(mul(rows, bytes_), mul(and_(thread, WARPGROUP - 1), _NUMBER_BYTES))
    start = add(own, offset)
    synchronize()
    with when(compare("ne", group, 0)):
        part = add(start, mul(add(group, -1), blocks * bytes_))
        for number, each in enumerate(state.values):
            target = memory.pointer(part, number * WARPGROUP * _NUMBER_BYTES)
            llvm.StoreOp(each, target, alignment=_NUMBER_BYTES)
    synchronize()
    for other in range(1, schedule.groups):
        part = add(start, (other - 1) * blocks * bytes_)
        values = [
            llvm.LoadOp(
                f32(), memory.pointer(part, number * WARPGROUP * _NUMBER_BYTES), alignment=4
            ).result
            for number in range(len(state.values))
        ]
        state = softmax.merge(state, State.of(values))
    return state
