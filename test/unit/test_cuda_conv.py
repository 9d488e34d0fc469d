# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models with convolutions, compiled for a GPU and run on a simulated one."""

from __future__ import annotations

import ctypes
import functools
import gc
import struct
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from shapejit.gpu.interface import Im2colMap
from shapejit.passes.nvgpu.head import MAP_WORDS
from unit.fake_cuda import Fake
from unit.gpu_programs import on_fake
from unit.ptx_samples import needs_ptxas
from unit.simulated_programs import Simulated, simulated

pytestmark = needs_ptxas


class Network(nn.Module):
    """A stem, a strided layer with a norm, a 1x1 layer beside a 3x3 one, groups, channels alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(24)
        self.one = nn.Conv2d(24, 16, 1)
        self.three = nn.Conv2d(24, 16, 3, padding=2, dilation=2)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm(self.down(x)))
        y = self.one(x) + nn.functional.silu(self.three(x))
        return y + self.grouped(torch.relu(self.depthwise(y)))


def _shapes() -> Any:
    # Few pixels, so that there are few variants to build.
    n, h, w = Dim("n", min=1, max=3), Dim("h", min=1, max=12), Dim("w", min=1, max=12)
    return ({0: n, 2: h, 3: w},)


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = Network()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
    return model.eval().to(torch.bfloat16)


def _images(n: int, h: int, w: int) -> Tensor:
    torch.manual_seed(n + 10 * h + 1000 * w)
    return torch.randn(n, 3, h, w).to(torch.bfloat16)


@pytest.fixture(scope="module")
def compiled() -> tuple[nn.Module, Any, Simulated]:
    model = _model()
    program, execution = simulated(model, (_images(2, 9, 11),), _shapes())
    return model, program, execution


def _compare(model: nn.Module, program: Any, x: Tensor) -> None:
    """No more than 1.2 times as far from float64 as PyTorch in bfloat16, by the mean square."""
    with torch.no_grad():
        got, own = program(x), model(x)
        expected = _double(model)(x.double())
    assert got.shape == expected.shape
    error, allowed = (((each.double() - expected) ** 2).mean().sqrt() for each in (got, own))
    assert error <= 1.2 * allowed + 1e-3


def _double(model: nn.Module) -> nn.Module:
    copy = Network().eval().double()
    copy.load_state_dict(model.state_dict())
    return copy


@pytest.mark.parametrize("sizes", [(2, 9, 11), (1, 5, 7), (3, 3, 1)])
def test_sizes(compiled: tuple[nn.Module, Any, Simulated], sizes: tuple[int, int, int]) -> None:
    model, program, _ = compiled
    _compare(model, program, _images(*sizes))


def test_filters_that_change(compiled: tuple[nn.Module, Any, Simulated]) -> None:
    """Copies with channels last are made again."""
    model, program, _ = compiled
    with torch.no_grad():
        model.three.weight.mul_(-2)
    _compare(model, program, _images(1, 4, 6))


def test_kernels_and_words(compiled: tuple[nn.Module, Any, Simulated]) -> None:
    """What TMA reads gets its words; what is gathered has none."""
    _, _, execution = compiled
    code = execution._artefacts.gpu
    assert code is not None
    assert code.graph is not None
    kinds = [variant.name.partition("__")[2].split("_")[0] for variant in code.variants]
    assert "unaligned" in kinds  # stem and groups
    assert "depthwise" in kinds
    assert {"small", "swapped", "persistent"} & set(kinds)
    images = sum(
        any(type(each).__name__ == "Im2colMap" for each in interface.parameters)
        for _, interface in execution._lowered
    )
    assert images >= 2
    assert code.graph.call_words + 2 * MAP_WORDS <= 128


def test_maps_of_calls_on_a_driver(
    compiled: tuple[nn.Module, Any, Simulated], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each call encodes the maps of its images, and the head kernel copies them into the block."""
    _, program, execution = compiled
    fake = Fake(tmp_path_factory.mktemp("fake"))
    one = on_fake(execution._artefacts, program._weights.tensors, fake)
    code = one.program.artefacts.gpu
    assert code is not None
    interfaces = {variant.name[:63]: variant.entry.interface for variant in code.variants}
    for sizes in ((2, 9, 11), (1, 5, 7), (3, 4, 6)):
        with torch.no_grad():
            head, *launches = one.launches(functools.partial(one.program, _images(*sizes)))
        assert head.entry.startswith(b"head_")
        found = []
        for launch in launches:
            address = int.from_bytes(launch.parameter(0, 8), "little")
            for parameter in interfaces[launch.entry.decode()].parameters:
                if isinstance(parameter, Im2colMap):
                    data = ctypes.string_at(address + parameter.offset, 128)
                    found.append(struct.unpack_from("<4Q", data, 16))
        n, h, w = sizes
        assert (16, w, h, n) in found  # what the strided layer reads, from the fastest dim on
        assert (24, -(-w // 2), -(-h // 2), n) in found
    del one
    gc.collect()
    fake.check()
