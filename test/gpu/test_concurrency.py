# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One program called from several threads, streams and devices: right, and memory flat.

``GPU_SOAK_PROGRAM_CALLS`` changes how many calls there are, 10 000 by default.
"""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from torch import Tensor  # noqa: E402

import shapejit  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from unit.gpu_programs import Deep, tokens  # noqa: E402

THREADS = 4
CALLS = int(os.environ.get("GPU_SOAK_PROGRAM_CALLS", "10000"))
WIDTH = 512
MOST = 4096
SHAPES = 96
#: Of memory after the first fifth of the calls and after the last call.
FLAT_BYTES = 32 << 20


@pytest.fixture(autouse=True)
def _on_the_gpu(device: Device) -> Iterator[None]:
    with torch.no_grad():
        yield


def compiled(place: str) -> shapejit.Program:
    torch.manual_seed(0)
    model = Deep(WIDTH).to(place).eval()
    x = torch.randn(7, WIDTH, device=place, dtype=torch.bfloat16)
    return shapejit.compile(model, (x,), dynamic_shapes=tokens(most=MOST))


def cases(program: shapejit.Program, place: str) -> list[tuple[Tensor, Tensor]]:
    """Inputs of random sizes, ends included, with what one caller alone gets."""
    rng = random.Random(0)
    sizes = [1, MOST, *(int(2 ** rng.uniform(0, 12)) for _ in range(SHAPES - 2))]
    generator = torch.Generator(place).manual_seed(0)
    found = []
    for size in sizes:
        x = torch.randn(size, WIDTH, device=place, generator=generator).bfloat16()
        found.append((x, program(x).clone()))
    torch.cuda.synchronize(place)
    return found


def in_threads(*work: Callable[[], None]) -> None:
    """Runs functions at the same time; the first failure is the caller's."""
    failures: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
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
    program: shapejit.Program, known: list[tuple[Tensor, Tensor]], seed: int, calls: int
) -> None:
    """Calls at random sizes in a stream of this thread's own; results are equal to the bit."""
    rng = random.Random(seed)
    place = known[0][0].device
    with torch.cuda.device(place), torch.cuda.stream(torch.cuda.Stream(place)):
        wrong = torch.zeros((), dtype=torch.int64, device=place)
        for _ in range(calls):
            x, expected = rng.choice(known)
            out = torch.empty_like(expected) if rng.random() < 0.5 else None
            result = program(x, out=out)
            assert out is None or result is out
            wrong += (result.view(torch.int16) != expected.view(torch.int16)).sum()
        assert wrong.item() == 0


def used_bytes(device: int) -> int:
    """Device memory in use, by whatever; what torch keeps for later is given back first."""
    torch.cuda.synchronize(device)
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


@pytest.mark.alone
def test_threads_with_streams_of_their_own() -> None:
    program = compiled("cuda:0")
    known = cases(program, "cuda:0")

    def round_of(calls: int, seed: int) -> None:
        in_threads(
            *(
                lambda number=number: call_often(program, known, seed + number, calls // THREADS)
                for number in range(THREADS)
            )
        )

    # Each thread has a stream of its own. The first 16 streams get working memory, all sizes of
    # which have been needed by then; those that come later take what others had.
    for part in range(5):
        round_of(CALLS // 25, part)
    early = used_bytes(0)
    for part in range(4):
        round_of(CALLS // 5, 100 * (part + 1))
    late = used_bytes(0)
    stats = program.stats()
    assert (
        stats.calls
        == SHAPES + (5 * (CALLS // 25 // THREADS) + 4 * (CALLS // 5 // THREADS)) * THREADS
    )
    assert stats.graphs is not None
    assert stats.graphs.instances <= 8
    assert abs(late - early) <= FLAT_BYTES, f"{early} bytes, then {late}"


def test_threads_in_one_stream() -> None:
    program = compiled("cuda:0")
    known = cases(program, "cuda:0")
    stream = torch.cuda.Stream("cuda:0")

    def work(seed: int) -> None:
        rng = random.Random(seed)
        kept: list[tuple[Tensor, Tensor]] = []
        with torch.cuda.stream(stream):
            for _ in range(200):
                x, expected = rng.choice(known)
                kept.append((program(x), expected))
            for result, expected in kept:
                assert torch.equal(result, expected)

    in_threads(*(lambda seed=seed: work(seed) for seed in range(THREADS)))


def test_calls_beside_captures_of_the_callers() -> None:
    """One thread replays a graph with a captured call, others call the program."""
    program = compiled("cuda:0")
    known = cases(program, "cuda:0")
    x, expected = known[5]
    static, out = x.clone(), torch.empty_like(expected)
    program(static, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        program(static, out=out)

    def replay() -> None:
        stream = torch.cuda.Stream("cuda:0")
        with torch.cuda.stream(stream):
            for _ in range(200):
                out.zero_()
                graph.replay()
                assert torch.equal(out, expected)

    in_threads(
        replay, *(lambda seed=seed: call_often(program, known, seed, 300) for seed in range(2))
    )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices() -> None:
    work: list[Any] = []
    for number in range(2):
        place = f"cuda:{number}"
        with torch.cuda.device(place):
            program = compiled(place)
        known = cases(program, place)
        work.append(
            lambda program=program, known=known, number=number: call_often(
                program, known, number, 500
            )
        )
    in_threads(*work)
    # Calls go to the program's device, whatever device is current.
    with torch.cuda.device(0):
        x, expected = known[3]
        assert torch.equal(program(x), expected)
