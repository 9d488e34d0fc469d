# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs whose launches run side by side: their graphs on a fake driver, their results on the
simulated GPU, in whichever order the launches come."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from shapejit.artefacts import Artefacts
from shapejit.gpu.program_code import GpuCode
from shapejit.gpu.program_graphs import GraphCode
from shapejit.program import Program
from unit.fake_cuda import Fake
from unit.gpu_programs import FakeProgram, on_fake
from unit.simulated_programs import Simulated, simulated

WIDTH = 64
DEPTH = 4


class Tower(nn.Module):
    """Linear layers with gelu, and a norm behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.norm(x + functional.gelu(layer(x)))
        return x


class TwoTowers(nn.Module):
    """What two towers give, multiplied, and the second one's besides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Tower(), Tower()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        second = self.second(y)
        return self.out(self.first(x) * second), second


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, y = torch.randn(2, rows, WIDTH, generator=generator)
    return x.bfloat16(), y.bfloat16()


@functools.cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return TwoTowers().bfloat16().eval()


@functools.cache
def compiled() -> tuple[Program, Simulated]:
    """The model on the simulated GPU, for 1 to 40 rows."""
    rows = Dim("rows", min=1, max=40)
    with torch.no_grad():
        return simulated(model(), inputs(3), ({0: rows}, {0: rows}), max_regions=2)


def graph_of(artefacts: Artefacts) -> GraphCode:
    assert artefacts.gpu is not None
    assert artefacts.gpu.graph is not None
    return artefacts.gpu.graph


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = Fake(tmp_path_factory.mktemp("fake"))
    yield fake
    gc.collect()
    fake.check()


@pytest.fixture
def one(fake: Fake) -> FakeProgram:
    program, _ = compiled()
    return on_fake(program.artefacts, list(model().state_dict().values()), fake)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def branched_rows(graph: GraphCode) -> int:
    """Rows at which launches run side by side."""
    found = [r.symbols for r in graph.regions if r.order is not None and r.symbols is not None]
    return found[0][0]


def test_two_towers_run_side_by_side() -> None:
    """Each is a chain; what meets waits for the ends of both."""
    graph = graph_of(compiled()[0].artefacts)
    [branches] = graph.branches
    assert branches.reason.startswith("2 branches at rows ")
    [order] = graph.orders
    assert [region.order for region in graph.regions].count(0) == len(branches.regions)
    [first, second] = (_tower(order, number) for number, waits in enumerate(order) if not waits)
    assert [*first, *second] == list(range(branches.last + 1))
    assert min(len(first), len(second)) >= 2 * DEPTH - 1
    assert order[branches.last + 1] == (first[-1], second[-1])
    # The towers have no working memory in common.
    used = [
        {
            graph.words[word]
            for number in tower
            for word in graph.launches[number].operands
            if graph.words[word].startswith("arena")
        }
        for tower in (first, second)
    ]
    assert all(used)
    assert not used[0] & used[1]


def _tower(order: Sequence[tuple[int, ...]], root: int) -> list[int]:
    """The launches of a chain from its first one on."""
    found = [root]
    for number, waits in enumerate(order):
        if waits == (found[-1],):
            found.append(number)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_results_in_any_order(seed: int) -> None:
    """To the bit what launches one by one give, and close to float64."""
    program, execution = compiled()
    graph = graph_of(program.artefacts)
    x, y = inputs(branched_rows(graph))
    execution._random.seed(seed)
    results = program(x, y)
    exact = model().double()(x.double(), y.double())
    model().bfloat16()
    for result, reference in zip(results, exact, strict=True):
        assert (result.double() - reference).norm() < 0.02 * reference.norm()
    serial = dataclasses.replace(
        graph, regions=tuple(dataclasses.replace(r, order=None) for r in graph.regions)
    )
    execution._graph = serial
    try:
        for result, again in zip(results, program(x, y), strict=True):
            assert torch.equal(result, again)
    finally:
        execution._graph = graph


def test_edges_of_a_graph(one: FakeProgram) -> None:
    """A graph has an edge for each wait; launches one by one have their order."""
    graph = graph_of(one.program.artefacts)
    rows = branched_rows(graph)
    one.program(*inputs(rows))
    launches = one.launches(lambda: one.program(*inputs(rows)))
    assert launches[0].entry.startswith(b"head_")
    [order] = graph.orders
    for launch, waits in zip(launches[1:], order, strict=True):
        edges = list(launch.waits[: launch.wait_count])
        assert edges == ([wait + 1 for wait in waits] or [0])
        assert launch.programmatic == (len(waits) == 1)


def test_a_report(one: FakeProgram) -> None:
    graph = graph_of(one.program.artefacts)
    rows = branched_rows(graph)
    [branches] = graph.branches
    explanation = one.program.explain(*inputs(rows))
    [here] = [row for row in explanation.regions if row.here]
    assert here.branches == (f"launches 0 to {branches.last}: {branches.reason}",)
    assert "side by side" in str(explanation)
    others = [row for row in explanation.regions if row.number not in branches.regions]
    assert not any(row.branches for row in others)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g["orders"][0].__setitem__(0, [1]), "launch 0 waits for others than those"),
        (lambda g: g["orders"][0].__setitem__(2, [1, 0]), "launch 2 waits for others than those"),
        (lambda g: g["orders"][0].pop(), "shorter|longer"),
        (lambda g: g["regions"][0].__setitem__(3, 7), "a region has an order that is not there"),
        (lambda g: g["branches"][0].__setitem__(1, 99), "side by side that are not there"),
    ],
)
def test_damaged_records(change: Any, message: str) -> None:
    code = compiled()[0].artefacts.gpu
    assert code is not None
    assert code.graph is not None
    record = json.loads(json.dumps(code.to_json()))
    data = [variant.data for variant in code.variants]
    assert GpuCode.from_record(record, data, code.graph.head) == code
    change(record["graph"])
    with pytest.raises(ValueError, match=message):
        GpuCode.from_record(record, data, code.graph.head)
