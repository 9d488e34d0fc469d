# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What depends on weights alone is computed once on a GPU, and follows the weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from torch import Tensor, nn  # noqa: E402
from torch.export import Dim  # noqa: E402

import shapejit  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from unit.gpu_programs import Deep, tokens  # noqa: E402

WIDTH = 256


@pytest.fixture(autouse=True)
def _on_the_gpu(device: Device) -> Iterator[None]:
    with torch.no_grad():
        yield


class Scaled(nn.Module):
    """A weight that is kept in float32 and has scaled rows, in front of four products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.deep = Deep(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight * self.scale[:, None]).to(x.dtype)
        return self.deep(x @ weight.t())


def scaled(place: str = "cuda:0") -> Scaled:
    torch.manual_seed(0)
    return Scaled().eval().requires_grad_(False).to(place)


def compiled(model: nn.Module, place: str = "cuda:0") -> shapejit.Program:
    return shapejit.compile(model, (rows(7, place),), dynamic_shapes=tokens(most=512))


def rows(count: int, place: str = "cuda:0") -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, WIDTH, generator=generator).bfloat16().to(place)


def check(got: Tensor, model: nn.Module, x: Tensor) -> None:
    """Compares with float64; torch's own result says what can be expected."""
    exact = copy.deepcopy(model).double()(x.double())
    ours, torchs = ((each.double() - exact).norm().item() for each in (got, model(x)))
    assert ours <= 1.2 * torchs + 1e-12


def test_weights_that_change() -> None:
    """Under constant graphs: hoisted tensors stay where they are, so the graphs stay as well."""
    model = scaled()
    program = compiled(model)
    x = rows(100)
    check(program(x), model, x)
    assert program.stats().bind_runs == 1
    assert program.stats().hoisted_bytes == 2 * WIDTH * WIDTH
    before = [tensor.data_ptr() for tensor in program._weights.copies()]
    for run in range(2, 6):
        model.scale.mul_(1.25)
        for count in (1, 100, 512):
            x = rows(count)
            check(program(x), model, x)
        assert program.stats().bind_runs == run
    assert [tensor.data_ptr() for tensor in program._weights.copies()] == before


def test_another_stream_reads_what_is_new() -> None:
    model = scaled()
    program = compiled(model)
    x = rows(300)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for turn in range(20):
        model.scale.mul_(1.1 if turn % 2 else 0.9)
        torch.cuda.synchronize()
        results = []
        for stream in streams if turn % 3 else streams[::-1]:
            with torch.cuda.stream(stream):
                results.append(program(x))
        torch.cuda.synchronize()
        assert torch.equal(*results)
        check(results[0], model, x)
    assert program.stats().bind_runs == 21


def test_graphs_of_the_caller() -> None:
    """They see a changed weight once a call has seen it."""
    model = scaled()
    program = compiled(model)
    x = rows(64)
    program(x)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        program(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            captured = program(x)
    graph.replay()
    torch.cuda.synchronize()
    check(captured, model, x)
    model.scale.mul_(1.5)
    check(program(x), model, x)
    graph.replay()
    torch.cuda.synchronize()
    check(captured, model, x)
    del graph


def test_files(tmp_path: Path) -> None:
    model = scaled()
    program = compiled(model)
    path = tmp_path / "scaled.sj"
    program.save(path)
    loaded = shapejit.load(path)
    assert loaded.stats().bind_runs == 1
    for count in (1, 33):
        assert torch.equal(loaded(rows(count)), program(rows(count)))


def test_two_devices(tmp_path: Path) -> None:
    """Each program computes what it needs where its weights are."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    path = tmp_path / "scaled.sj"
    compiled(scaled()).save(path)
    for place in ("cuda:1", "cuda:0"):
        model = scaled(place)
        program = shapejit.load(path, weights=model)
        for count in (1, 33):
            x = rows(count, place)
            check(program(x), model, x)
        model.scale.mul_(2)
        check(program(x), model, x)
        assert program.stats().bind_runs == 2
        assert {tensor.device for tensor in program._weights.copies()} == {torch.device(place)}


class Convolutions(nn.Module):
    """Two convolutions of 3x3 taps with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(64, 128, 3, padding=1)
        self.norm = nn.BatchNorm2d(128)
        self.second = nn.Conv2d(128, 64, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


def test_filters_of_winograd() -> None:
    torch.manual_seed(0)
    model = Convolutions().eval().requires_grad_(False).cuda()
    model.norm.running_var.uniform_(0.5, 2)
    dims: Any = ({0: Dim("b", min=1, max=4), 2: Dim("h", min=1, max=64), 3: Dim("w", max=64)},)
    program = shapejit.compile(
        model,
        (torch.randn(2, 64, 20, 30, device="cuda"),),
        dynamic_shapes=dims,
        float32_precision="ieee",
        winograd="force",
    )
    filters = [spec for spec in program.artefacts.hoisted if len(spec.shape) > 1]
    assert len(filters) == 2
    for turn in range(2):
        for size in [(1, 64, 1, 1), (2, 64, 20, 30), (4, 64, 63, 64)]:
            x = torch.randn(size, device="cuda")
            exact = copy.deepcopy(model).double()(x.double())
            error = (program(x).double() - exact).norm() / exact.norm()
            assert error <= 4e-6, (size, error)
        assert program.stats().bind_runs == turn + 1
        model.second.weight.mul_(-0.5)
        model.norm.running_mean.add_(0.5)
