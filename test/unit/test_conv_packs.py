# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Packed copies of weights that are no matrices: what the pass records is what is copied."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import shapejit
from shapejit.artefacts import PackSpec
from shapejit.weights import pack_panels, unpack_panels
from unit.cpu_convs import pack_filter, pack_merged
from unit.cpu_kernels import examples


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def filter_spec(
    groups: int, outside: int, inside: int, taps: tuple[int, int], panel: int
) -> PackSpec:
    """The kernel [g * f, c, t, u] over [g, f, t, u, c], f in panels."""
    across, down = taps[1], taps[0] * taps[1]
    return PackSpec(
        weight=0,
        dim=1,
        panel=panel,
        sizes=(groups, outside, *taps, inside),
        strides=(outside * inside * down, inside * down, across, 1, down),
    )


SMALL = st.integers(1, 5)


@examples(20)
@given(groups=SMALL, outside=st.integers(1, 9), inside=SMALL, taps=st.tuples(SMALL, SMALL))
def test_kernels(groups: int, outside: int, inside: int, taps: tuple[int, int]) -> None:
    spec = filter_spec(groups, outside, inside, taps, panel=4)
    weight = torch.randn(groups * outside, inside, *taps)
    packed = pack_panels(weight, spec)
    assert torch.equal(packed, pack_filter(weight, groups, 4))
    assert torch.equal(unpack_panels(packed, spec, weight.shape), weight)


@examples(10)
@given(groups=st.integers(1, 20), taps=SMALL)
def test_depthwise_kernels(groups: int, taps: int) -> None:
    spec = PackSpec(0, 0, 8, sizes=(groups, taps), strides=(taps, 1))
    weight = torch.randn(groups, 1, taps)
    packed = pack_panels(weight, spec)
    assert torch.equal(packed, pack_merged(weight, 8))
    assert torch.equal(unpack_panels(packed, spec, weight.shape), weight)


def test_flipped_kernels() -> None:
    """Of a transposed convolution: [c, f, t, u] over [1, f, t, u, c], both taps backwards."""
    weight = torch.randn(5, 6, 3, 2)
    spec = PackSpec(0, 1, 4, sizes=(1, 6, 3, 2, 5), strides=(0, 6, -2, -1, 36), offset=5)
    packed = pack_panels(weight, spec)
    turned = weight.flip(2, 3).transpose(0, 1).contiguous()
    assert torch.equal(packed, pack_filter(turned, 1, 4))
    assert torch.equal(unpack_panels(packed, spec, weight.shape), weight)


def test_other_memory_formats() -> None:
    weight = torch.randn(6, 5, 3, 2).contiguous(memory_format=torch.channels_last)
    spec = filter_spec(1, 6, 5, (3, 2), panel=4)
    assert torch.equal(pack_panels(weight, spec), pack_filter(weight.contiguous(), 1, 4))


class Layers(nn.Module):
    """One convolution of each kind of pack."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Conv2d(3, 10, 3, padding=1)
        self.depthwise = nn.Conv2d(10, 10, 3, padding=1, groups=10)
        self.pointwise = nn.Conv2d(10, 12, 1)
        self.up = nn.ConvTranspose2d(12, 6, 3, stride=2, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.pointwise(self.depthwise(self.dense(x))))


def test_weights_of_a_program(tmp_path: Path) -> None:
    """Packed at load, again after a change in place; given back by a program that freed them."""
    model = Layers().eval().requires_grad_(False)
    dims = ({0: Dim("n", max=4), 2: Dim("h", max=32), 3: Dim("w", max=32)},)
    x = torch.randn(2, 3, 7, 9)
    program = shapejit.compile(model, (torch.randn(2, 3, 8, 8),), dynamic_shapes=dims)

    def check(compiled: shapejit.Program) -> None:
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)

    check(program)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    check(program)
    program.save(tmp_path / "layers.sj")
    check(shapejit.load(tmp_path / "layers.sj"))
    freed = shapejit.compile(
        copy.deepcopy(model),
        (torch.randn(2, 3, 8, 8),),
        dynamic_shapes=dims,
        free_original=True,
    )
    check(freed)
    for name, value in freed.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
