# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How long launches take that run side by side, from what each takes alone.

A launch holds a share of the room for CTAs, and keeps tensor cores or memory busy for a share of
its time. As long as the shares of all that run add up to no more than one, each runs as fast as
alone; beyond, all are slower alike. CTAs that start early wait in what room is left and slow nobody
down.

Where branches meet, a launch waits for the ends of several, which takes longer than the start of a
kernel that is there already. On an H200 two towers of 17 launches each took 56 us one by one and 34
side by side, of few rows; of 2048 rows they took no longer than one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shapejit.passes.branches.order import Order

#: Microseconds from the ends of several kernels to the start of the one that waits for them, beyond
#: what a kernel that starts early takes; and of a kernel in another branch than the one it waits
#: for, as the two queues tell each other. Stated, to the safe side of what CUDA graphs take.
MEETING: Final = 3.0
LEAVING: Final = 1.5

# Times that are so close are one.
_EPSILON: Final = 1e-9


@dataclass(frozen=True)
class Work:
    """What a launch takes alone.

    Attributes:
        time: microseconds.
        room: share of the room for CTAs that its own take, at most 1.
        busy: share of the time in which tensor cores or memory are busy, at most 1.
    """

    time: float
    room: float
    busy: float


def serial(works: Sequence[Work]) -> float:
    """Microseconds of launches one after the other."""
    return sum(work.time for work in works)


def makespan(works: Sequence[Work], order: Order) -> float:
    """Microseconds of launches that run as early as an order lets them.

    Args:
        works: of all launches.
        order: of the same.
    """
    delays = _delays(order)
    behind: list[list[int]] = [[] for _ in works]
    missing = [len(waits) for waits in order.waits]
    for n, waits in enumerate(order.waits):
        for k in waits:
            behind[k].append(n)
    now, left = 0.0, [work.time for work in works]
    starts = {n: delays[n] for n, count in enumerate(missing) if not count}
    running: set[int] = set()
    while starts or running:
        for n in [n for n, start in starts.items() if start <= now + _EPSILON]:
            running.add(n)
            del starts[n]
        room = sum(works[n].room for n in running)
        busy = sum(works[n].busy for n in running)
        slowness = max(room, busy, 1.0)
        step = min(
            min((left[n] * slowness for n in running), default=math.inf),
            min((start - now for start in starts.values()), default=math.inf),
        )
        now += step
        for n in running:
            left[n] -= step / slowness
        for n in [n for n in running if left[n] <= _EPSILON]:
            running.remove(n)
            for k in behind[n]:
                missing[k] -= 1
                if not missing[k]:
                    starts[k] = now + delays[k]
    return now


def _delays(order: Order) -> list[float]:
    """What each launch waits beyond the ends of what it waits for."""
    delays, first_behind = [], set[int]()
    has_root = False
    for waits in order.waits:
        if len(waits) > 1:
            delays.append(MEETING)
        elif waits:
            delays.append(LEAVING if waits[0] in first_behind else 0.0)
            first_behind.add(waits[0])
        else:
            delays.append(LEAVING if has_root else 0.0)
            has_root = True
    return delays
