# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Launches that run side by side in a graph, on a real GPU."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shapejit.gpu.device import Device

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.nn import functional  # noqa: E402

import shapejit  # noqa: E402
from gpu.graph_programs import GemmChain, TestProgram, gemm_kernels, head  # noqa: E402
from shapejit.gpu.program_run import GpuExecution  # noqa: E402
from shapejit.passes.branches.order import Accesses, order_with  # noqa: E402
from shapejit.program import Program  # noqa: E402
from unit.simulated_gemms import Gemm  # noqa: E402

SIZE = 1024
STEPS = 14
BUFFERS = 6
# Neither takes scratch memory, which launches side by side must not share.
SCHEDULES = ("small_m_64x32x64_s7_w1_k2", "persistent_128x128x64_s4_w2")


@pytest.fixture
def head_is_not_kept(everything_is_given_back: None) -> Iterator[None]:
    """So that it is given back too."""
    yield
    head.cache_clear()


@pytest.mark.usefixtures("head_is_not_kept")
@pytest.mark.parametrize("seed", range(6))
def test_random_products(device: Device, seed: int) -> None:
    """Products from buffer to buffer, each waiting for just what it has to: to the bit what they
    give one by one, though buffers are written again and again."""
    random_ = random.Random(seed)
    torch.manual_seed(seed)
    gemm = Gemm(sizes=(("n", SIZE), ("k", SIZE)))
    kernels = gemm_kernels(device, gemm, SCHEDULES)
    weights = [
        (torch.randn(SIZE, SIZE, device="cuda") / SIZE**0.5).bfloat16() for _ in range(STEPS)
    ]
    chain = GemmChain(weights, [[random_.choice(kernels) for _ in range(STEPS)]], ctas=32)
    moves = [random_.sample(range(BUFFERS), 2) for _ in range(STEPS)]
    accesses = [Accesses(frozenset({source}), frozenset({target})) for source, target in moves]
    order = order_with(accesses, [range(STEPS)])
    assert not order.is_chain()
    one_by_one = [
        replace(launch, operands=(1 + source, launch.operands[1], 1 + target))
        for launch, (source, target) in zip(chain.launches(0), moves, strict=True)
    ]
    side_by_side = [
        replace(launch, waits=waits) for launch, waits in zip(one_by_one, order.waits, strict=True)
    ]
    program = TestProgram(
        device, {0: one_by_one, 1: side_by_side}, chain.call_words, chain.word_count
    )
    empty = chain.tensors(torch.zeros(0, SIZE, device="cuda").bfloat16())
    program.prepare([0, 1], chain.words(0, empty))
    for _ in range(4):
        calls = []
        for rows in random_.choices([1, 17, 64, 200, 700, 1500], k=10):
            start = torch.randn(BUFFERS, rows, SIZE, device="cuda").bfloat16()
            calls.append((rows, start, start.clone()))
        torch.cuda.synchronize()
        for rows, first, second in calls:
            for region, buffers in enumerate((first, second)):
                unused = [buffers[0]] * (STEPS + 1 - BUFFERS)
                program.run(region, chain.words(rows, [*buffers, *unused]))
        torch.cuda.synchronize()
        assert all(torch.equal(first, second) for _, first, second in calls)
    assert program.graph.use().graph_calls == 80


class Tower(nn.Module):
    """Linear layers with gelu, and a norm behind each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.norm(x + functional.gelu(layer(x)))
        return x


class TwoTowers(nn.Module):
    """What two towers give, multiplied, and the second one's besides."""

    def __init__(self, width: int = 512, depth: int = 6) -> None:
        super().__init__()
        self.first, self.second = Tower(width, depth), Tower(width, depth)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        second = self.second(y)
        return self.out(self.first(x) * second), second


def test_two_towers(device: Device) -> None:
    """Side by side and one by one: the same to the bit, and close to float64."""
    torch.manual_seed(0)
    model = TwoTowers().eval().bfloat16().cuda()
    exact = TwoTowers().eval().double().cuda()
    exact.load_state_dict({name: x.double() for name, x in model.state_dict().items()})
    rows = Dim("rows", min=1, max=600)
    example = torch.randn(2, 5, 512, device="cuda").bfloat16()
    with torch.no_grad():
        program = shapejit.compile(
            model, (example[0], example[1]), dynamic_shapes=({0: rows}, {0: rows}), target="cuda"
        )
        code = program.artefacts.gpu
        assert code is not None
        assert code.graph is not None
        assert code.graph.branches
        regions = tuple(replace(region, order=None) for region in code.graph.regions)
        serial_code = replace(code, graph=replace(code.graph, regions=regions))
        serial_artefacts = dataclasses.replace(program.artefacts, gpu=serial_code)
        execution = GpuExecution.on(serial_artefacts, example.device)
        weights = [model.state_dict()[spec.name] for spec in serial_artefacts.weights]
        serial = Program(serial_artefacts, weights, execution=execution)
        for count in (1, 2, 7, 16, 24, 25, 64, 256, 600, 3, 1):
            x, y = torch.randn(2, count, 512, device="cuda").bfloat16()
            for _ in range(5):
                results, again = program(x, y), serial(x, y)
                assert all(map(torch.equal, results, again))
            for result, reference in zip(results, exact(x.double(), y.double()), strict=True):
                assert (result.double() - reference).norm() < 0.02 * reference.norm()
