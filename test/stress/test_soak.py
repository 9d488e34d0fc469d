# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Many Python threads call compiled programs at random shapes, on several cores each.

4 seconds a test by default; ``SOAK_SECONDS=60`` makes it more. torch brings another OpenMP runtime
into the process, which the callers use as well.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

import shapejit
from model.architectures import ARCHITECTURES

CALLERS = 8
MOST_THREADS = 3
SECONDS = float(os.environ.get("SOAK_SECONDS", "4"))
SHAPES = 24
NAMES = ("padded_encoder", "self_attention")
#: Memory is flat when it grows by less than this from one round of calls to the next.
FLAT_BYTES = 16 << 20
#: New threads get new arenas of the C library's allocator, which it keeps: that takes a few rounds.
ROUNDS = 5


class Case:
    """A program with inputs of several shapes and its results there, computed by one thread.

    The results were compared with torch's once; calls must repeat them to the bit.
    """

    def __init__(self, name: str) -> None:
        architecture = ARCHITECTURES[name]
        example = architecture.inputs(3, 17)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its export
            self.program = shapejit.compile(
                architecture.model,
                example,
                dynamic_shapes=architecture.dynamic_shapes(len(example)),
            )
        rng = random.Random(0)
        shapes = [(1, 1), (16, 1), (1, 200)]
        shapes += [(rng.randint(1, 12), rng.randint(1, 60)) for _ in range(SHAPES - 3)]
        self.inputs = [architecture.inputs(*shape) for shape in shapes]
        torch.set_num_threads(1)
        with torch.no_grad():
            self.results = [self.program(*inputs) for inputs in self.inputs]
            for inputs, result in zip(self.inputs, self.results, strict=True):
                torch.testing.assert_close(
                    result, architecture.model(*inputs), rtol=1e-4, atol=1e-4
                )

    def check(self, rng: random.Random) -> None:
        """One call at a random shape, on a random number of threads."""
        index = rng.randrange(len(self.inputs))
        torch.set_num_threads(rng.randint(1, MOST_THREADS))
        with torch.no_grad():
            result: Tensor = self.program(*self.inputs[index])
        # Not torch.equal: torch's own OpenMP runtime hangs in the child of a fork.
        assert np.array_equal(result.numpy(), self.results[index].numpy())


@functools.cache
def case(name: str) -> Case:
    return Case(name)


@pytest.fixture(autouse=True)
def _keep_thread_count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run_callers(act: Callable[[random.Random], None], seconds: float) -> list[int]:
    """Calls ``act`` over and over on `CALLERS` threads; how often each did."""
    end = time.monotonic() + seconds
    failures: list[BaseException] = []
    calls = [0] * CALLERS

    def caller(number: int) -> None:
        rng = random.Random(number)
        try:
            while time.monotonic() < end and not failures:
                act(rng)
                calls[number] += 1
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=caller, args=(i,), daemon=True) for i in range(CALLERS)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(seconds + 60)
        assert not thread.is_alive(), "a call hangs"
    assert not failures, failures[0]
    return calls


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def test_callers_of_one_program() -> None:
    one = case(NAMES[0])
    growth = []
    while not growth or (growth[-1] >= FLAT_BYTES and len(growth) < ROUNDS):
        before = resident_bytes()
        assert all(run_callers(one.check, SECONDS))
        growth.append(resident_bytes() - before)
    assert growth[-1] < FLAT_BYTES, growth
    assert one.program.stats().compiles == 1


def test_callers_of_two_programs_beside_eager() -> None:
    first, second = map(case, NAMES)
    x = torch.randn(64, 64)
    square = x @ x

    def act(rng: random.Random) -> None:
        rng.choice((first, second)).check(rng)
        torch.testing.assert_close(x @ x, square, rtol=1e-4, atol=1e-4)

    assert all(run_callers(act, SECONDS))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_children_of_forks_go_on_calling() -> None:
    one = case(NAMES[0])
    run_callers(one.check, 0.5)  # the pool has its threads, which a fork does not copy
    children = [forked(one, seed) for seed in range(4)]
    try:
        run_callers(one.check, 0.5)
        assert [wait(child, 60) for child in children] == [0] * len(children)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def forked(one: Case, seed: int) -> int:
    """The process id of a child that calls the program a few times and exits with 0."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rng = random.Random(seed)
            for _ in range(20):
                one.check(rng)
            status = 0
        finally:
            os._exit(status)
    return child


def wait(child: int, seconds: float) -> int:
    """The exit status of a child."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    raise AssertionError("a call in the child of a fork hangs")
