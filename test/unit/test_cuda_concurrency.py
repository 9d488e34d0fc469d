# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs on a GPU called from several threads, streams and devices, on the fake driver."""

from __future__ import annotations

import functools
import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shapejit.artefacts import Artefacts
from shapejit.gpu.program_run import GpuExecution
from shapejit.program import Program
from unit.fake_cuda import Fake
from unit.gpu_programs import CPU, FakeProgram, deep, residual, with_fake_code
from unit.test_cuda_graphs import LAUNCHES, WIDTH, arena_of, check_launch

THREADS = 4
CALLS = 15
MOST_INSTANCES = 8
MOST_ARENAS = 16


class ThreadStreams:
    """A current stream for each thread, as torch has it."""

    captured = False

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def handle(self) -> int:
        return getattr(self._local, "handle", 0)

    @handle.setter
    def handle(self, handle: int) -> None:
        self._local.handle = handle

    def current(self) -> tuple[int, bool]:
        return self.handle, False


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    fake = Fake(tmp_path)
    yield fake
    gc.collect()
    fake.check()


def on_streams(
    fake: Fake,
    device: int = 0,
    of: Callable[[], tuple[Artefacts, list[Tensor]]] = deep,
) -> FakeProgram:
    """A program, `Deep`, on a device, with a current stream for each thread."""
    artefacts, weights = of()
    made, streams = with_fake_code(artefacts), ThreadStreams()
    execution = GpuExecution.of(made, fake.driver.device(device), CPU, streams)
    program = Program(made, weights, execution=execution)
    return FakeProgram(fake, program, streams)  # type: ignore[arg-type]


def in_threads(*work: Callable[[], None]) -> None:
    """Runs functions at the same time; the first failure is the caller's."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(function: Callable[[], None]) -> None:
        try:
            start.wait()
            with torch.no_grad():
                function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def call_often(
    one: FakeProgram, stream: int, seed: int, last: dict[int, Any], calls: int = CALLS
) -> None:
    """Calls at random sizes in a stream, with and without `out`; notes the last one."""
    one.streams.handle = stream
    rng = random.Random(seed)
    x = y = torch.empty(0)
    for _ in range(calls):
        count = int(2 ** rng.uniform(0, 13))
        x = torch.empty(count, WIDTH, dtype=torch.bfloat16)
        out = torch.empty_like(x) if rng.random() < 0.5 else None
        y = one.program(x, out=out)
        assert y.shape == x.shape
        assert out is None or y is out
    last[stream] = (x, y, arena_of(one))


def call_in_all_regions(one: FakeProgram, stream: int) -> None:
    """Has a stream's graphs made, of all regions in which calls are expected."""
    one.streams.handle = stream
    code = one.program.artefacts.gpu
    assert code is not None
    assert code.graph is not None
    for number in code.graph.order:
        symbols = code.graph.regions[number].symbols
        assert symbols is not None
        one.program(torch.empty(symbols[0], WIDTH, dtype=torch.bfloat16))
    execution: Any = one.program._execution
    execution._program.wait()


def check_last(one: FakeProgram, stream: int, x: Tensor, y: Tensor, arena: int) -> None:
    """What lies in a stream's block is what its last call needs, whatever others did meanwhile."""
    every = (one.fake.controls.fakeLaunchAt(n)[0] for n in range(one.fake.launches))
    head, *launches = [each for each in every if each.stream == stream][-1 - LAUNCHES :]
    assert head.entry.startswith(b"head_")
    weights = [weight.data_ptr() for weight in one.program.all_weights()]
    count = x.shape[0]
    between = arena + -(-count * 2 * 2 * WIDTH // 256) * 256
    check_launch(one, launches[0], 0, [x.data_ptr(), *weights[0:2], arena], count)
    operands = [arena, *weights[2:4], x.data_ptr(), between]
    check_launch(one, launches[1], 1, operands, count)
    check_launch(one, launches[2], 0, [between, *weights[4:6], arena], count)
    operands = [arena, *weights[6:8], between, y.data_ptr()]
    check_launch(one, launches[3], 1, operands, count)


def test_threads_with_streams_of_their_own(fake: Fake) -> None:
    one = on_streams(fake)
    streams = [fake.controls.fakeStreamCreate(0) for _ in range(THREADS)]
    with torch.no_grad():
        for stream in streams:
            call_in_all_regions(one, stream)
    memory = [fake.memory]
    for round_ in range(2):
        fake.controls.fakeForgetLaunches()
        last: dict[int, Any] = {}
        in_threads(
            *(
                functools.partial(call_often, one, stream, seed, last)
                for seed, stream in enumerate(streams, THREADS * round_)
            )
        )
        for stream, (x, y, arena) in last.items():
            check_last(one, stream, x, y, arena)
        memory.append(fake.memory)
    assert len(set(memory)) == 1, "memory grows from round to round"
    stats = one.program.stats()
    assert stats.graphs is not None
    assert stats.graphs.instances <= MOST_INSTANCES
    for stream in streams:
        fake.controls.fakeStreamDestroy(stream)


def test_threads_in_one_stream(fake: Fake) -> None:
    """Calls in one stream share its block and its arena; their launches do not mix."""
    one = on_streams(fake)
    stream = fake.controls.fakeStreamCreate(0)
    last: dict[int, Any] = {}
    in_threads(*(functools.partial(call_often, one, stream, seed, last) for seed in range(THREADS)))
    launched = [fake.controls.fakeLaunchAt(n)[0] for n in range(fake.launches)]
    assert len(launched) == THREADS * CALLS * (1 + LAUNCHES)
    for start in range(0, len(launched), 1 + LAUNCHES):
        heads = [each.entry.startswith(b"head_") for each in launched[start : start + 5]]
        assert heads == [True] + [False] * LAUNCHES
    fake.controls.fakeStreamDestroy(stream)


def test_threads_in_one_stream_without_a_graph(fake: Fake) -> None:
    """Two launches a call, the second of which reads what the first left in the shared arena."""
    one = on_streams(fake, of=residual)
    stream, calls = fake.controls.fakeStreamCreate(0), 100

    def work(seed: int) -> None:
        one.streams.handle = stream
        rng = random.Random(seed)
        for _ in range(calls):
            one.program(torch.empty(rng.randint(1, 100), WIDTH, dtype=torch.bfloat16))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(*(functools.partial(work, seed) for seed in range(THREADS)))
    finally:
        sys.setswitchinterval(before)
    entries = [bytes(fake.controls.fakeLaunchAt(n)[0].entry) for n in range(fake.launches)]
    assert len(entries) == 2 * THREADS * calls
    first, second = set(entries[::2]), set(entries[1::2])
    assert first.isdisjoint(second), "launches of two calls are mixed"
    fake.controls.fakeStreamDestroy(stream)


def test_instances_and_arenas_are_bounded(fake: Fake) -> None:
    one = on_streams(fake)
    streams = [fake.controls.fakeStreamCreate(0) for _ in range(MOST_ARENAS + 4)]
    with torch.no_grad():
        for stream in streams:
            call_in_all_regions(one, stream)
        memory = fake.memory
        for seed, stream in enumerate(streams):
            last: dict[int, Any] = {}
            call_often(one, stream, seed, last, calls=2)
            check_last(one, stream, *last[stream])
    assert fake.memory == memory
    execution: Any = one.program._execution
    assert len(execution._arenas._arenas) == MOST_ARENAS
    stats = one.program.stats().graphs
    assert stats is not None
    assert stats.instances <= MOST_INSTANCES
    assert stats.graphs <= stats.instances * stats.regions
    for stream in streams:
        fake.controls.fakeStreamDestroy(stream)


def test_two_devices(fake: Fake) -> None:
    """A program is on one device. Calls go there from whatever device is current."""
    programs = [on_streams(fake, device) for device in (0, 1)]
    streams = [fake.controls.fakeStreamCreate(device) for device in (0, 1)]
    last: dict[int, Any] = {}

    def work(number: int) -> None:
        # The other device is current.
        fake.controls.fakeSetContext(1 - number)
        call_often(programs[number], streams[number], number, last)
        assert fake.controls.fakeContext() == 1 - number, "the caller's device has changed"
        fake.controls.fakeSetContext(-1)

    in_threads(lambda: work(0), lambda: work(1))
    for one, stream in zip(programs, streams, strict=True):
        check_last(one, stream, *last[stream])
    kernels = [one.program._execution.kernels for one in programs]  # type: ignore[attr-defined]
    assert not {id(k) for k in kernels[0]} & {id(k) for k in kernels[1]}
    for stream in streams:
        fake.controls.fakeStreamDestroy(stream)
