# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Transposed convolutions whose taps equal their strides, which are products: on both targets."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import shapejit
from shapejit.program import Program
from unit.cpu_kernels import assert_close, examples
from unit.ptx_samples import needs_ptxas
from unit.simulated_programs import Simulated, simulated

_LAYERS: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_NORMS: dict[int, Any] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}

#: Channels, filters, taps.
KERNELS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "line": (5, 3, (4,)),
    "plane": (12, 20, (2, 2)),
    "uneven": (7, 3, (2, 3)),
    "rows": (6, 5, (3, 1)),
    "columns": (6, 5, (1, 3)),
    "one_filter": (9, 1, (2, 2)),
    "one_channel": (1, 4, (2, 2)),
    "cube": (6, 10, (2, 3, 2)),
    "wide_line": (16, 8, (2,)),
    "wide_plane": (16, 24, (2, 2)),
    "wide_cube": (8, 8, (2, 2, 2)),
}
NARROW = [name for name in KERNELS if not name.startswith("wide")]


class Up(nn.Module):
    """Grows an image of channels last, as its result; a norm, an activation, a residual."""

    def __init__(self, channels: int, filters: int, taps: Sequence[int]) -> None:
        super().__init__()
        rank = len(taps)
        self.grow = _LAYERS[rank](channels, filters, taps, taps)
        self.norm = _NORMS[rank](filters)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        y = torch.tanh(self.norm(self.grow(x.movedim(-1, 1))))
        return y.movedim(1, -1) + residual


def _model(name: str) -> Up:
    torch.manual_seed(0)
    return Up(*KERNELS[name]).eval().requires_grad_(False)


def _inputs(name: str, n: int, image: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    channels, filters, taps = KERNELS[name]
    grown = [size * tap for size, tap in zip(image, taps, strict=True)]
    x, residual = torch.randn(n, *image, channels), torch.randn(n, *grown, filters)
    return x.to(dtype), residual.to(dtype)


def _shapes(name: str, low: int, high: int) -> Any:
    taps = KERNELS[name][2]
    n = Dim("n", min=0, max=4)
    sides = [Dim(f"side{i}", min=low, max=high) for i in range(len(taps))]
    grown = {1 + i: tap * side for i, (tap, side) in enumerate(zip(taps, sides, strict=True))}
    return ({0: n} | {1 + i: side for i, side in enumerate(sides)}, {0: n} | grown)


# On the CPU ---------------------------------------------------------------------------------------


@functools.cache
def _compiled(name: str) -> Program:
    example = _inputs(name, 2, (5, 6, 7)[: len(KERNELS[name][2])], torch.float32)
    return shapejit.compile(_model(name), example, dynamic_shapes=_shapes(name, 1, 4096))


@pytest.mark.parametrize("name", NARROW)
@examples(8)
@given(n=st.integers(0, 3), data=st.data())
def test_values(name: str, n: int, data: st.DataObject) -> None:
    image = [data.draw(st.integers(1, 9)) for _ in KERNELS[name][2]]
    inputs = _inputs(name, n, image, torch.float32)
    expected = copy.deepcopy(_model(name)).double()(*(each.double() for each in inputs))
    assert_close(_compiled(name)(*inputs), expected, terms=KERNELS[name][0] ** 0.5)


@pytest.mark.parametrize("image", [(4096, 1), (1, 4096), (1, 1)])
def test_ends_of_the_range(image: tuple[int, int]) -> None:
    inputs = _inputs("plane", 1, image, torch.float32)
    expected = copy.deepcopy(_model("plane")).double()(*(each.double() for each in inputs))
    assert_close(_compiled("plane")(*inputs), expected, terms=4)


@pytest.mark.parametrize("name", NARROW)
def test_one_kernel(name: str) -> None:
    """The product, with all that follows it; filters and vectors were laid out at load."""
    names = [kernel.name for kernel in _compiled(name).artefacts.kernels]
    assert names == ["gemm0"]


def test_weights_that_change() -> None:
    """What was laid out is laid out again."""
    model = _model("uneven")
    inputs = _inputs("uneven", 2, (3, 4), torch.float32)
    program = shapejit.compile(model, inputs, dynamic_shapes=_shapes("uneven", 1, 64))
    program(*inputs)
    with torch.no_grad():
        model.grow.weight.mul_(-2)
        model.grow.bias.add_(1)
    assert_close(program(*inputs), model(*inputs).double(), terms=4)


# On a GPU -----------------------------------------------------------------------------------------


@functools.cache
def _on_gpu(name: str) -> tuple[Program, Simulated]:
    example = _inputs(name, 2, (5, 6, 7)[: len(KERNELS[name][2])], torch.bfloat16)
    # Few pixels, so that there are few variants to build.
    shapes = _shapes(name, 1, 12)
    return simulated(_model(name).to(torch.bfloat16), example, shapes, max_regions=2)


@needs_ptxas
@pytest.mark.parametrize("name", ["wide_line", "wide_plane", "wide_cube"])
def test_kernels_of_gpus(name: str) -> None:
    """TMA reads the pixels and the filters, and nothing is multiplied with zeros in between."""
    program, execution = _on_gpu(name)
    assert program.artefacts.gpu is not None
    kinds = [variant.name.partition("__")[2] for variant in program.artefacts.gpu.variants]
    assert kinds
    assert all(re.match("small|swapped|persistent", kind) for kind in kinds), kinds
    sizes = [(2, (3, 5, 4)), (1, (1, 1, 1)), (0, (2, 2, 2)), (1, (12, 12, 2))]
    for n, image in sizes:
        inputs = _inputs(name, n, image[: len(KERNELS[name][2])], torch.bfloat16)
        model = _model(name)
        exact = copy.deepcopy(model).double()(*(each.double() for each in inputs))
        own = model.to(torch.bfloat16)(*inputs)
        assert_close(program(*inputs), exact, own)
        assert len(execution.launched) == 1
