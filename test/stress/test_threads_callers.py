# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Many Python threads call compiled code at the same time, at random sizes and settings."""

from __future__ import annotations

import random
import resource
import threading
import time

from shapejit import threads
from unit.test_threads import BODIES, Program

CALLERS = 8
MOST_THREADS = 4
SECONDS = 4.0


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_callers_at_random_sizes() -> None:
    programs = [Program(name) for name in BODIES]
    failures: list[BaseException] = []
    calls = [0] * CALLERS

    def caller(index: int, end: float) -> None:
        rng = random.Random(index)
        try:
            while time.monotonic() < end and not failures:
                rng.choice(programs).check(rng.randrange(2000), rng.randint(1, MOST_THREADS))
                calls[index] += 1
        except BaseException as error:
            failures.append(error)

    def run_all(seconds: float) -> None:
        end = time.monotonic() + seconds
        callers = [threading.Thread(target=caller, args=(i, end)) for i in range(CALLERS)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(seconds + 60)
            assert not thread.is_alive(), "a call hangs"

    workers = threads.workers()
    run_all(SECONDS / 4)
    peak = _peak_bytes()
    run_all(SECONDS)
    assert not failures, failures[0]
    assert all(calls)
    assert threads.workers() == max(workers, MOST_THREADS - 1)
    assert _peak_bytes() - peak < 16 << 20
