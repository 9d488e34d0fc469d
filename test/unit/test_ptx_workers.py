# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The threads that build: never more than the limit, urgent calls first, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from shapejit.codegen.workers import Workers

SECONDS = 60.0


def never() -> None:
    raise AssertionError("dropped")


class Gate:
    """Calls that wait until they are let go, and note their order."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[str] = SimpleQueue()
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.open = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def call(self, name: str) -> Callable[[], None]:
        def run() -> None:
            with self.lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
            self.begun.put(name)
            assert self.open.acquire(timeout=SECONDS)
            with self.lock:
                self.inside -= 1
            self.ended.put(name)

        return run

    def let(self, count: int) -> list[str]:
        """Lets so many calls end, and gives their names."""
        self.open.release(count)
        return [self.ended.get(timeout=SECONDS) for _ in range(count)]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("limit", [1, 3])
def test_never_more_than_the_limit(limit: int) -> None:
    workers, gate = Workers(lambda: limit), Gate()
    for number in range(10):
        workers.submit(gate.call(str(number)), never)
    for _ in range(limit):
        gate.begun.get(timeout=SECONDS)
    assert workers.running == limit
    assert workers.waiting == 10 - limit
    assert sorted(gate.let(10)) == [str(number) for number in range(10)]
    assert gate.most == limit
    until(lambda: workers.running == 0)  # the threads end
    assert workers.waiting == 0


def test_calls_run_in_order_and_urgent_ones_first() -> None:
    workers, gate = Workers(lambda: 1), Gate()
    workers.submit(gate.call("first"), never)
    gate.begun.get(timeout=SECONDS)
    for name in ("a", "b"):
        workers.submit(gate.call(name), never)
    for name in ("u", "v"):
        workers.submit(gate.call(name), never, urgent=True)
    hastened = workers.submit(gate.call("h"), never)
    workers.hasten(hastened)
    workers.hasten(hastened)
    assert [gate.let(1)[0] for _ in range(6)] == ["first", "u", "v", "h", "a", "b"]
    workers.hasten(hastened)  # too late, and no harm
    assert workers.waiting == 0


def test_a_change_of_the_limit_takes_effect_with_the_next_call() -> None:
    limit = 1
    workers, gate = Workers(lambda: limit), Gate()
    for number in range(4):
        workers.submit(gate.call(str(number)), never)
    until(lambda: gate.inside == 1)
    limit = 3
    workers.submit(gate.call("4"), never)
    until(lambda: gate.inside == 2)
    limit = 1
    workers.submit(gate.call("5"), never)
    gate.let(1)
    until(lambda: workers.running == 1)
    gate.let(5)
    assert gate.most == 2


def test_a_limit_that_cannot_be_read_loses_nothing() -> None:
    def limit() -> int:
        raise ValueError("bad knob")

    workers = Workers(limit)
    with pytest.raises(ValueError, match="bad knob"):
        workers.submit(never, never)
    assert (workers.waiting, workers.running) == (0, 0)


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call is dropped if no other thread can take it, and left to that one if it can."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    start = threading.Thread.start
    workers, gate, dropped = Workers(lambda: 2), Gate(), []
    workers.submit(gate.call("first"), never)
    gate.begun.get(timeout=SECONDS)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    workers.submit(gate.call("second"), never)
    assert workers.waiting == 1
    assert gate.let(2) == ["first", "second"]
    until(lambda: workers.running == 0)
    workers.submit(never, lambda: dropped.append("third"))
    assert dropped == ["third"]
    monkeypatch.setattr(threading.Thread, "start", start)
    workers.submit(gate.call("fourth"), never)
    assert gate.let(1) == ["fourth"]


def test_many_threads_submit() -> None:
    workers, done = Workers(lambda: 2), SimpleQueue[int]()

    def submit(start: int) -> None:
        for number in range(start, start + 50):
            workers.submit(lambda number=number: done.put(number), never, urgent=number % 3 == 0)

    threads = [threading.Thread(target=submit, args=(50 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done.get(timeout=SECONDS) for _ in range(400)) == list(range(400))
    until(lambda: workers.running == 0)


def test_a_fork_starts_anew() -> None:
    workers, gate = Workers(lambda: 1), Gate()
    for name in ("a", "b"):
        workers.submit(gate.call(name), never)
    gate.begun.get(timeout=SECONDS)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own: SimpleQueue[str] = SimpleQueue()
            assert (workers.waiting, workers.running) == (0, 0)
            workers.submit(lambda: own.put("mine"), never)
            assert own.get(timeout=SECONDS) == "mine"
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gate.let(2) == ["a", "b"]


EXIT = """
import threading, time
from shapejit.codegen.workers import Workers
workers = Workers(lambda: 1)
begun = threading.Event()
def build():
    begun.set()
    time.sleep(0.3)
    print("built", flush=True)
workers.submit(build, lambda: print("dropped"))
begun.wait()
for _ in range(3):
    workers.submit(build, lambda: print("dropped", flush=True))
"""


def test_the_end_of_the_interpreter_waits_for_what_runs_and_drops_the_rest() -> None:
    run = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=SECONDS
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split() == ["built", "dropped", "dropped", "dropped"]
