# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs under constant graphs on a real GPU."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from shapejit.gpu.device import Device
from shapejit.gpu.errors import LaunchError
from shapejit.gpu.interface import TensorMap
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module

torch = pytest.importorskip("torch")

from gpu.graph_programs import (  # noqa: E402
    GemmChain,
    TestProgram,
    gemm_kernels,
    head,
    with_more_maps,
)
from gpu.runtime_kernels import COPY_BLOCK, DUMP_BLOCK, image  # noqa: E402
from shapejit.gpu.graph import GraphLaunch  # noqa: E402
from unit.simulated_gemms import Gemm  # noqa: E402

SIZE = 1024
SMALL, LARGE = "small_m_64x32x64_s7_w1_k2", "persistent_128x128x64_s4_w2_stream"


@pytest.fixture(autouse=True)
def head_is_not_kept(everything_is_given_back: None) -> Iterator[None]:
    """So that it is given back too."""
    yield
    head.cache_clear()


# What the head kernel writes ----------------------------------------------------------------------

_ELEMENTS = {"u8": 1, "bf16": 2, "f32": 4, "f64": 8}
_VALUES = 12


def _random_map(random_: random.Random) -> TensorMap:
    element = random_.choice(list(_ELEMENTS))
    rank = random_.randint(1, 5)
    inner = max(16 // _ELEMENTS[element], random_.choice([16, 8, 4]))
    box = (inner, *[8, 4, 2, 1][: rank - 1])
    values = range(1, 1 + _VALUES)
    return TensorMap(
        operand=random_.randint(1, 3),
        element=element,
        dims=tuple(random_.choice(values) for _ in range(rank)),
        strides=tuple(random_.choice(values) for _ in range(rank - 1)),
        box=box,
        swizzle=random_.choice([0, 128]),
        promotion=random_.choice([0, 64, 128, 256]),
    )


def _random_values(random_: random.Random, count: int, unusual: int) -> list[int]:
    """Sizes and strides, some of which no tensor map may have, or only a certain one."""
    values = [16 * random_.randint(1, 1 << 12) for _ in range(count)]
    for _ in range(unusual):
        values[random_.randrange(count)] = random_.choice([0, 1, 3, 2**20])
    return values


@pytest.mark.parametrize("seed", range(10))
def test_what_the_head_kernel_writes(device: Device, seed: int) -> None:
    """It is, to the bit, what the driver encodes for a launch of its own."""
    random_ = random.Random(seed)
    maps = [_random_map(random_) for _ in range(12)]
    interface = with_more_maps(DUMP_BLOCK, maps)
    names = ("bytes", *(f"v{number}" for number in range(_VALUES)))
    kernel = Kernel(replace(interface, values=names), Module(image(device.arch), device))
    result = torch.zeros(interface.block_bytes, dtype=torch.uint8, device="cuda")
    # Words: three addresses, six values; fixed: the result, its bytes, an address, six values.
    values = [*range(3, 9), *range(12, 18)]
    launch = GraphLaunch(kernel, (9, 0, 1, 11), (10, *values))
    program = TestProgram(device, {0: [launch]}, call_words=9, word_count=18)
    fixed = [result.data_ptr(), interface.block_bytes, 0x7F0000000000]
    fixed += _random_values(random_, 6, unusual=0)
    host = torch.zeros(interface.block_bytes, dtype=torch.uint8).pin_memory()
    checked = 0
    for call in range(100):
        words = [16 * random_.randint(1, 1 << 40) for _ in range(3)]
        words += _random_values(random_, 6, random_.randrange(3))
        every = [*words, *fixed]
        operands = [every[word] for word in launch.operands]
        given = [every[word] for word in launch.values]
        try:
            kernel.fill_block(operands, given, host.data_ptr(), None)
        except LaunchError:
            with pytest.raises(LaunchError):
                program.run(0, every)
            continue
        program.run(0, every)
        if call % 20 == 10:
            program.graph.wait()
        written = result.cpu()
        checked += 1
        for number, each in enumerate(maps):
            start = interface.parameters[-len(maps) + number].offset  # type: ignore[union-attr]
            wanted = host[start : start + 128].view(torch.int64)
            made = written[start : start + 128].view(torch.int64)
            if 0 in (given[dim] for dim in each.dims):
                # Of an empty tensor strides do not matter; its size and place are those of zeros.
                assert made[0] == wanted[0], f"address of {each}"
                assert torch.equal(made[4:7], wanted[4:7]), f"sizes of {each}"
            else:
                differing = [f"{a:#x} {b:#x}" for a, b in zip(made, wanted, strict=True) if a != b]
                assert not differing, f"{each}, {given}"
    assert checked > 20


# Chains -------------------------------------------------------------------------------------------


def test_copies(device: Device) -> None:
    """A chain of copies that do not start ahead. Words: rows, addresses; fixed: 256 columns."""
    count = 8
    kernel = Kernel(COPY_BLOCK, Module(image(device.arch), device))
    columns = 2 + count
    launches = [
        GraphLaunch(kernel, (1 + i, 2 + i), (0, columns, 0, columns, columns)) for i in range(count)
    ]
    program = TestProgram(device, {0: launches}, call_words=2 + count, word_count=3 + count)
    random_ = random.Random(1)
    program.prepare([0], [0] * (2 + count) + [256])
    for _ in range(20):
        made = []
        for _ in range(20):
            rows = random_.randint(1, 300)
            first = torch.randn(rows, 256, device="cuda").bfloat16()
            rest = [torch.full_like(first, float("nan")) for _ in range(count)]
            addresses = [tensor.data_ptr() for tensor in (first, *rest)]
            program.run(0, [rows, *addresses, 256])
            made.append((first, rest))
        assert all(torch.equal(first, rest[-1]) for first, rest in made)
    assert program.graph.use().graph_calls == 400


def _chain(device: Device, steps: int = 6) -> GemmChain:
    torch.manual_seed(0)
    gemm = Gemm(sizes=(("n", SIZE), ("k", SIZE)))
    small, large = gemm_kernels(device, gemm, [SMALL, LARGE])
    weights = [
        (torch.randn(SIZE, SIZE, device="cuda") / SIZE**0.5).bfloat16() for _ in range(steps)
    ]
    return GemmChain(weights, ([small] * steps, [large] * steps, [small, large] * (steps // 2)))


def _sizes(count: int, seed: int) -> list[int]:
    random_ = random.Random(seed)
    return [random_.choice([1, 2, 17, 64, random_.randint(1, 1500)]) for _ in range(count)]


def _check(chain: GemmChain, calls: Sequence[tuple[int, Sequence[torch.Tensor]]]) -> None:
    for region, tensors in calls:
        wanted = chain.reference(tensors[0]).float()
        error = (tensors[-1].float() - wanted).norm() / wanted.norm()
        assert error < 0.02, f"error {error} of {tensors[0].shape[0]} rows in region {region}"


@pytest.mark.parametrize("ctas", [0, 40])
@pytest.mark.parametrize("ahead", [True, False])
def test_gemms_of_alternating_sizes(device: Device, ahead: bool, ctas: int) -> None:
    """Regions change from call to call; nothing waits for a call to end."""
    chain = replace(_chain(device), ctas=ctas)
    program = chain.program(device)
    if ahead:
        first = torch.zeros(0, SIZE, device="cuda").bfloat16()
        program.prepare([0, 1, 2], chain.words(0, chain.tensors(first)))
    for batch in range(20):
        calls = []
        for number, rows in enumerate(_sizes(20, batch)):
            region = (number + batch) % 3
            tensors = chain.tensors(torch.randn(rows, SIZE, device="cuda").bfloat16())
            program.run(region, chain.words(rows, tensors))
            calls.append((region, tensors))
        _check(chain, calls)
    program.graph.wait()
    use = program.graph.use()
    assert use.graph_calls + use.stream_calls == 400
    assert (use.graph_calls == 400) == ahead
    assert use.graphs == 3


def test_calls_without_a_pause(device: Device) -> None:
    """Of very different sizes, with no other kernel between them: maps are rewritten at once."""
    chain = _chain(device)
    program = chain.program(device)
    first = torch.zeros(0, SIZE, device="cuda").bfloat16()
    program.prepare([0, 1, 2], chain.words(0, chain.tensors(first)))
    for batch in range(6):
        calls = [
            chain.tensors(torch.randn(rows, SIZE, device="cuda").bfloat16())
            for rows in [1, 1500, 17, 900] * 10
        ]
        words = [chain.words(tensors[0].shape[0], tensors) for tensors in calls]
        torch.cuda.synchronize()
        for each in words:
            program.run(batch % 3, each)
        torch.cuda.synchronize()
        _check(chain, [(batch % 3, tensors) for tensors in calls])


def test_an_empty_call(device: Device) -> None:
    chain = _chain(device)
    program = chain.program(device)
    for rows in (5, 0, 7, 0, 1):
        tensors = chain.tensors(torch.randn(rows, SIZE, device="cuda").bfloat16())
        program.run(1, chain.words(rows, tensors))
        program.graph.wait()
        torch.cuda.synchronize()
        if rows:
            _check(chain, [(1, tensors)])


def test_streams_at_the_same_time(device: Device) -> None:
    """More streams than instances take turns, and wait for each other where they have to."""
    chain = _chain(device)
    program = chain.program(device, most_instances=3)
    streams = [torch.cuda.Stream() for _ in range(6)]
    calls = []
    for number, rows in enumerate(_sizes(300, 5)):
        tensors = chain.tensors(torch.randn(rows, SIZE, device="cuda").bfloat16())
        calls.append((number % 3, tensors))
    torch.cuda.synchronize()
    for number, (region, tensors) in enumerate(calls):
        stream = streams[number % (3 if number < 100 else 6)]
        words = chain.words(tensors[0].shape[0], tensors)
        program.run(region, words, stream.cuda_stream)
        if number in (40, 120):
            program.graph.wait()
    torch.cuda.synchronize()
    _check(chain, calls)
    use = program.graph.use()
    assert use.instances == 3
    assert use.graph_calls > 150


def test_making_graphs_while_others_wait_for_the_device(device: Device) -> None:
    """Making a graph keeps no thread from anything, and none keeps it from that."""
    chain = _chain(device)
    failures: list[BaseException] = []
    stop = threading.Event()

    def synchronize() -> None:
        try:
            while not stop.is_set():
                torch.cuda.synchronize()
                torch.empty(1 << 20, device="cuda").zero_()
                torch.cuda.empty_cache()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=synchronize)
    thread.start()
    try:
        for _ in range(10):
            program = chain.program(device)
            tensors = chain.tensors(torch.randn(50, SIZE, device="cuda").bfloat16())
            for region in range(3):
                program.run(region, chain.words(50, tensors))
            program.graph.wait()
            program.run(2, chain.words(50, tensors))
            torch.cuda.synchronize()
            _check(chain, [(2, tensors)])
            assert program.graph.use().graphs == 3
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_a_weight_that_moves(device: Device) -> None:
    chain = _chain(device)
    program = chain.program(device)
    calls = []
    for number in range(6):
        tensors = chain.tensors(torch.randn(33, SIZE, device="cuda").bfloat16())
        program.run(0, chain.words(33, tensors))
        calls.append((0, tensors))
        if number % 2:
            torch.cuda.synchronize()
            _check(chain, calls)
            calls.clear()
            chain.weights = [weight.flip(0).clone() for weight in chain.weights]
    assert program.graph.use().bindings == 3


def test_capture(device: Device) -> None:
    """A caller's graph keeps what it needs, and reads what is then at the captured addresses."""
    chain = _chain(device)
    program = chain.program(device)
    tensors = chain.tensors(torch.randn(100, SIZE, device="cuda").bfloat16())
    program.run(2, chain.words(100, tensors))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program.run(2, chain.words(100, tensors))
        program.run(1, chain.words(100, tensors))
    assert program.graph.use().captured_calls == 2
    for _ in range(3):
        program.run(0, chain.words(77, chain.tensors(torch.zeros_like(tensors[0][:77]))))
        for each in tensors[1:]:
            each.fill_(float("nan"))
        tensors[0].copy_(torch.randn(100, SIZE, device="cuda"))
        graph.replay()
        _check(chain, [(2, tensors)])
    del program
    weights = chain.weights
    chain = GemmChain(weights, ())
    gc.collect()
    tensors[0].copy_(torch.randn(100, SIZE, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    _check(chain, [(2, tensors)])
    del graph
