# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutional models: compiled once, right at every batch and image size, fused as expected."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F  # noqa: N812

import shapejit
from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit import passes
from shapejit.importer import import_model
from shapejit.pass_host import run_pipeline

passes.register_all()

SIZES = [(1, 1, 1), (2, 9, 14), (0, 8, 8), (3, 32, 5), (1, 17, 31)]
"""Batch, height and width."""


class Bottleneck(nn.Module):
    """1x1, 3x3 in groups, 1x1, each with a batch norm, around a shortcut."""

    def __init__(self, inside: int, width: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inside, width, 1, bias=False)
        self.middle = nn.Conv2d(
            width, width, 3, stride=stride, padding=1, groups=groups, bias=False
        )
        self.expand = nn.Conv2d(width, outside, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(c) for c in (width, width, outside)])
        self.shortcut = nn.Conv2d(inside, outside, 1, stride=stride)
        self.plain = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.reduce(x)))
        y = F.relu(self.norms[1](self.middle(y)))
        y = self.norms[2](self.expand(y))
        return F.relu(y + (x if self.plain else self.shortcut(x)))


class Residual(nn.Module):
    """A stem, two bottlenecks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(Bottleneck(16, 8, 24, 2, 2), Bottleneck(24, 12, 24, 1, 1))
        self.classify = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(F.relu(self.stem(x)))
        return self.classify(y.mean((2, 3)))


class Mobile(nn.Module):
    """Depthwise layers with hard activations and a gate by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, 20, 1)
        self.depthwise = nn.Conv2d(20, 20, 5, stride=2, padding=2, groups=20)
        self.gate = nn.Conv2d(20, 20, 1)
        self.project = nn.Conv2d(20, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.depthwise(F.hardswish(self.expand(x))))
        gate = F.hardsigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return self.project(y * gate)


class Decoder(nn.Module):
    """Down and up again, with a transposed convolution and a join of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 10, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(10, 6, 4, stride=2, padding=1)
        self.out = nn.Conv2d(6, 3, 3, padding="same", dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.up(F.silu(self.down(x))))
        return self.out(torch.cat([y[:, :3] * 2, y[:, 3:]], 1))


class Waves(nn.Module):
    """Convolutions over time on [batch, channels, height * width]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 16, 5, padding=2)
        self.second = nn.Conv1d(16, 16, 3, padding=4, dilation=4, groups=4)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.gelu(self.first(x.flatten(2))))
        return self.norm(y.transpose(1, 2))


MODELS: Mapping[str, type[nn.Module]] = {
    "decoder": Decoder,
    "mobile": Mobile,
    "residual": Residual,
    "waves": Waves,
}


def make(name: str) -> nn.Module:
    """A model with random weights and statistics."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model.requires_grad_(False)


def dims(name: str) -> Any:
    """Dynamic batch, height and width."""
    low = 0 if name != "residual" else 1  # a mean over no pixels is NaN
    return (
        {
            0: Dim("n", min=0, max=8),
            2: Dim("h", min=max(low, 1), max=64),
            3: Dim("w", min=1, max=64),
        },
    )


@pytest.mark.parametrize("name", MODELS)
def test_compiled(name: str) -> None:
    model = make(name)
    double = copy.deepcopy(model).double()
    example = (torch.randn(2, 3, 12, 16),)
    program = shapejit.compile(model, example, dynamic_shapes=dims(name))
    for n, h, w in SIZES:
        x = torch.randn(n, 3, h, w)
        got, want = program(x), double(x.double())
        assert got.shape == want.shape
        if got.numel():
            error = (got.double() - want).abs().max() / want.abs().max()
            assert error < 1e-5, f"{error} at {(n, h, w)}"


STAGES = (
    "shapejit-canonicalize-shapes,canonicalize,cse",
    "shapejit-fold-views,canonicalize,cse",
    "shapejit-inline-pointwise,canonicalize,cse",
    "shapejit-hoist-weights",
    "shapejit-pack-weights{panel=8},canonicalize,cse",
    "shapejit-form-kernels",
)


@pytest.mark.parametrize("name", MODELS)
def test_stages_keep_the_meaning(name: str) -> None:
    """The interpreter gives the same before and after every pass."""
    imported = import_model(make(name), (torch.randn(2, 3, 12, 16),), dynamic_shapes=dims(name))
    weights = [w.numpy() for w in imported.weight_tensors]
    inputs = [[np.random.default_rng(0).normal(size=(n, 3, h, w))] for n, h, w in SIZES]
    before = [Interpreter(imported.module).run([*x, *weights]) for x in inputs]
    for stage in STAGES:
        run_pipeline(imported.module, f"{stage},shapejit-verify-shapes", stage="test")
        interpreter = Interpreter(imported.module)
        for x, wanted in zip(inputs, before, strict=True):
            for got, want in zip(interpreter.run([*x, *weights]), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9, err_msg=stage)


def launched(name: str) -> list[str]:
    """The leading op of each kernel that the model launches, in order."""
    imported = import_model(make(name), (torch.randn(2, 3, 12, 16),), dynamic_shapes=dims(name))
    run_pipeline(imported.module, ",".join(STAGES), stage="test")
    kernels = sir.kernels(imported.module)
    leaders = []
    for op in sir.walk(imported.module.operation):
        if op.name == "shapejit.launch":
            kernel = kernels[ir.FlatSymbolRefAttr(op.attributes["kernel"]).value]
            leaders.append(sir.operations(sir.body(kernel))[0].name.removeprefix("shapejit."))
    return leaders


def test_a_residual_net_is_its_convolutions() -> None:
    """Norms, activations, shortcuts and layouts cost no kernel but one for the input's layout."""
    block = ["gemm", "conv", "gemm"]
    assert sorted(launched("residual")) == sorted(
        ["loop", "conv", *block, "conv", *block, "loop", "gemm"]
    )


def test_a_mobile_net_is_its_convolutions_and_its_gate() -> None:
    assert sorted(launched("mobile")) == sorted(
        ["gemm", "conv", "loop", "loop", "gemm", "loop", "gemm"]
    )
