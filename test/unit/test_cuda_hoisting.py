# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What depends on weights alone is computed once: on a simulated GPU, and on a fake driver."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import shapejit
from shapejit import archive, execution
from shapejit.artefacts import Artefacts
from shapejit.gpu import program_run
from shapejit.gpu.program_run import GpuExecution
from shapejit.program import Program
from unit.fake_cuda import Fake
from unit.gpu_programs import (
    CPU,
    Deep,
    FakeProgram,
    FakeStreams,
    build,
    on_fake,
    rows,
    tokens,
    with_fake_code,
)
from unit.simulated_programs import simulated
from unit.test_cuda_numerics import check


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


class Cast(nn.Module):
    """Weights that are kept in float32, and one with scaled rows, in front of `Deep`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)
        self.deep = Deep()

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight * self.scale[:, None]).to(x.dtype)
        return self.deep(x @ weight.t())


@functools.cache
def cast() -> tuple[Artefacts, list[Tensor], nn.Module]:
    torch.manual_seed(0)
    model = Cast().eval().requires_grad_(False)
    return *build(model, (rows(7),), tokens(64)), model


def test_under_constant_graphs() -> None:
    """The bind part launches its kernels by value, whatever the program does."""
    torch.manual_seed(0)
    model = Cast().eval().requires_grad_(False)
    program, machine = simulated(model, (rows(7),), tokens(64))
    assert program.artefacts.gpu is not None
    assert program.artefacts.gpu.graph is not None
    bind, part = machine.bind, program.artefacts.bind
    assert bind is not None
    assert part is not None
    assert part.program.gpu is not None
    assert part.program.gpu.graph is None
    assert len(bind.launched) == 1
    names = [program.artefacts.weights[number].name for number in part.weights]
    assert names == ["weight", "scale"]
    assert [(h.dtype, h.shape, h.read_in_place) for h in part.hoisted] == [
        ("bfloat16", (64, 64), True)
    ]
    # One product for it and two for each of the others.
    assert len(program.artefacts.gpu.graph.launches) == 5
    check(program, model, rows(5))
    check(program, model, rows(1))
    assert program.stats().bind_runs == 1
    assert program.stats().hoisted_bytes == 2 * 64 * 64
    model.scale.mul_(2)
    check(program, model, rows(5))
    assert program.stats().bind_runs == 2


class Convolution(nn.Module):
    """A convolution of 3x3 taps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


IMAGES = ({0: Dim("b", min=1, max=8), 2: Dim("h", min=1, max=32), 3: Dim("w", max=32)},)


BOUNDS = {16: 2e-6, 36: 1e-5}
"""Errors that are allowed for F(2x2) and F(4x4), by their points."""


@pytest.mark.parametrize("points", BOUNDS)
def test_filters_of_winograd(points: int) -> None:
    """They are transformed once: calls transform images, multiply, and transform back."""
    artefacts, _ = build(
        Convolution(),
        (torch.randn(2, 4, 6, 5),),
        IMAGES,
        winograd="force",
        max_rel_error=BOUNDS[points],
    )
    kernels = artefacts.kernels
    # The last one changes the order of the result's dims.
    assert [kernel.kind for kernel in kernels] == ["loop", "gemm", "loop", "loop"]
    assert all("conv2d" in kernel.fuses for kernel in kernels[:3])
    [filters] = artefacts.hoisted
    assert torch.Size(filters.shape).numel() == points * 8 * 4
    assert filters.weights == (0,)
    assert filters.sources[0].startswith("aten.conv2d test_cuda_hoisting.py")


def test_filters_that_change() -> None:
    torch.manual_seed(0)
    model = Convolution().eval().requires_grad_(False)
    program, machine = simulated(model, (torch.randn(2, 4, 6, 5),), IMAGES, winograd="force")
    assert machine.bind is not None
    assert len(machine.bind.launched) == 1
    check_error(program, model, torch.randn(1, 4, 5, 6), BOUNDS[16])
    model.conv.weight.mul_(-1.5)
    check_error(program, model, torch.randn(1, 4, 3, 2), BOUNDS[16])
    assert program.stats().bind_runs == 2


def check_error(program: Program, model: nn.Module, x: Tensor, bound: float) -> None:
    """Compares a call with float64."""
    exact = copy.deepcopy(model).double()(x.double())
    assert (program(x).double() - exact).norm() <= bound * exact.norm()


# On a fake driver ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = Fake(tmp_path_factory.mktemp("fake"))
    yield fake
    gc.collect()
    fake.check()


def own(fake: Fake) -> tuple[FakeProgram, nn.Module]:
    """The program with weights of its own."""
    artefacts, tensors, model = cast()
    mine = copy.deepcopy(model)
    named = dict(mine.named_parameters())
    assert len(tensors) == len(named)
    return on_fake(artefacts, [named[spec.name] for spec in artefacts.tensors], fake), mine


def test_launches(fake: Fake) -> None:
    """When the program is made, and when a weight has changed; in the current stream."""
    before = fake.launches
    one, model = own(fake)
    made = [fake.controls.fakeLaunchAt(n)[0] for n in range(before, fake.launches)]
    bind = one.program.artefacts.bind
    assert bind is not None
    assert bind.program.gpu is not None
    [variant] = bind.program.gpu.variants
    assert [launch.entry.decode() for launch in made].count(variant.name) == 1
    assert one.program.stats().bind_runs == 1
    x = rows(5)
    one.program(x)
    assert one.program.stats().bind_runs == 1
    one.streams.handle = fake.controls.fakeStreamCreate(0)
    launches = one.launches(lambda: one.program(x))
    assert all(launch.entry.decode() != variant.name for launch in launches)
    model.scale.mul_(2)
    launches = one.launches(lambda: one.program(x))
    [again] = [launch for launch in launches if launch.entry.decode() == variant.name]
    assert again.stream == one.streams.handle
    assert one.program.stats().bind_runs == 2


def test_memory_and_code(fake: Fake) -> None:
    one, _ = own(fake)
    stats = one.program.stats()
    assert stats.hoisted_bytes == 2 * 64 * 64
    assert stats.arena_bytes == 0
    bind, main = one.program._bind, one.program._execution
    assert bind is not None
    assert bind.code_bytes > 0
    assert stats.code_bytes == main.code_bytes + bind.code_bytes
    held = {row.what: row.bytes for row in one.program.explain(rows(3)).memory}
    assert held["computed from weights"] == stats.hoisted_bytes
    assert held["machine code"] == stats.code_bytes


def test_captured_calls_keep_hoisted_tensors(fake: Fake) -> None:
    """Their graphs read them for as long as the process lives."""
    one, model = own(fake)
    [hoisted] = one.program._weights.last.hoisted
    stream = one.streams.handle = fake.controls.fakeStreamCreate(0)
    one.program(rows(3))
    fake.controls.fakeBeginCapture(stream, 0)
    one.streams.captured = True
    one.program(rows(3))
    fake.controls.fakeGraphDestroy(fake.controls.fakeEndCapture(stream))
    one.streams.captured = False
    assert any(tensor is hoisted for tensor in program_run._kept.values())
    model.scale.mul_(2)
    one.program(rows(3))
    assert one.program._weights.last.hoisted[0] is not hoisted


def test_saved(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = own(fake)
    path = tmp_path / "cast.sj"
    one.program.save(path)
    streams = FakeStreams()

    def on(artefacts: Artefacts, device: torch.device | None = None) -> execution.Execution:
        return GpuExecution.of(with_fake_code(artefacts), fake.driver.device(0), CPU, streams)

    monkeypatch.setattr(archive, "execution_for", on)
    bind = one.program.artefacts.bind
    saved = archive._read(path).artefacts.bind
    assert saved is not None
    assert bind is not None
    assert saved.program.gpu == bind.program.gpu
    assert saved.program.objects == bind.program.objects
    assert saved.hoisted == bind.hoisted
    loaded = FakeProgram(fake, shapejit.load(path), streams)
    assert loaded.program.stats().bind_runs == 1
    loaded.program(rows(5))
