# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Working memory that grows: what was outgrown goes back, and nothing that runs is disturbed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from torch import Tensor  # noqa: E402

import shapejit  # noqa: E402
from shapejit.arena import LARGE  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from unit.gpu_programs import Deep, tokens  # noqa: E402

WIDTH = 512
MOST = 1 << 18
GROWING = (1 << 12, 1 << 15, 3 << 15, 5 << 15, MOST)
#: What else calls may take: torch keeps the memory of the first arena, which is small.
SPARE_BYTES = 64 << 20


@pytest.fixture(autouse=True)
def _on_the_gpu(device: Device) -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def program() -> shapejit.Program:
    torch.manual_seed(0)
    x = noise(7)
    return shapejit.compile(Deep(WIDTH).cuda().eval(), (x,), dynamic_shapes=tokens(most=MOST))


def noise(count: int) -> Tensor:
    return torch.randn(count, WIDTH, device="cuda", dtype=torch.bfloat16)


def used_bytes() -> int:
    """Device memory in use, by whatever, with what torch keeps for later."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def give_back(program: shapejit.Program) -> None:
    """Frees the program's working memory, and what torch keeps for later."""
    torch.cuda.synchronize()
    program._execution.release()
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.alone
def test_what_was_outgrown_goes_back(program: shapejit.Program) -> None:
    """Memory is that of the largest arena alone, without asking torch to give back its own."""
    inputs = [noise(count) for count in GROWING]
    results = [torch.empty_like(x) for x in inputs]
    expected = program(inputs[-1]).clone()
    largest = program.stats().arena_bytes
    assert largest > 8 * LARGE
    give_back(program)
    before = used_bytes()
    for x, result in zip(inputs, results, strict=True):
        program(x, out=result)
    taken = used_bytes() - before
    assert program.stats().arena_bytes == largest
    assert torch.equal(results[-1], expected)
    assert taken <= largest + SPARE_BYTES, f"{taken} bytes for an arena of {largest}"


def test_calls_in_flight_keep_what_they_use(program: shapejit.Program) -> None:
    """Small calls queue up behind something long; a larger one takes their memory away."""
    inputs = [noise(count) for count in (1 << 15, 1000, 1 << 15, 3 << 15, 7 << 15)]
    expected = [program(x).clone() for x in inputs]
    torch.cuda.synchronize()
    for _ in range(5):
        give_back(program)
        torch.cuda._sleep(20_000_000)
        results = [program(x) for x in inputs]
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_growing_while_another_thread_captures(program: shapejit.Program) -> None:
    """A capture forbids allocations of all threads, unless they say that it is none of theirs."""
    small, large = noise(1000), noise(MOST)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # which has its graphs then
        expected, most = program(small).clone(), program(large).clone()
        for count in GROWING:
            program(large[:count])
    give_back(program)
    captured, grown = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def grow() -> None:
        try:
            captured.wait(60)
            with torch.no_grad(), torch.cuda.stream(stream):
                for count in GROWING[1:]:  # torch may allocate nothing now
                    program(large[:count], out=result[:count])
        except BaseException as error:
            failures.append(error)
        finally:
            grown.set()

    graph = torch.cuda.CUDAGraph()
    result = torch.empty_like(large)
    torch.cuda.synchronize()
    thread = threading.Thread(target=grow)
    thread.start()
    with torch.cuda.graph(graph):
        held = program(small)
        captured.set()
        grown.wait(60)
    thread.join()
    assert not failures, failures
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(held, expected)
    assert torch.equal(result, most)
