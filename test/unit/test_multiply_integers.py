# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products and convolutions of integers, exact on both targets: the pass, and whole models."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import shapejit
from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit.cpu_features import host_target
from shapejit.importer import import_model
from shapejit.passes.multiply_integers import _piece
from shapejit.pipeline import gpu_stages, run_stage
from unit.ptx_samples import needs_ptxas
from unit.simulated_programs import Simulated, simulated

SIZES = ({0: Dim("n", min=0, max=3), 2: Dim("h", min=1, max=12), 3: Dim("w", min=1, max=12)},)
ROWS = ({0: Dim("m", min=1, max=40)},)
_LAST = "multiply-integers"


class Model(nn.Module):
    """A function of an input and a weight."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], weight: Tensor) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


def small(*sizes: int, dtype: torch.dtype = torch.int8) -> Tensor:
    """All values of 8 bits, those at the ends more often."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    drawn = torch.randint(low, high + 1, sizes, dtype=torch.int32)
    ends = torch.randint(0, 4, sizes)
    drawn[ends == 0] = low
    return drawn.to(dtype)


def _conv(**options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def apply(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x.int(), w.int(), **options)

    return apply


#: A function of an image and filters, the sizes of the filters, the type of the image.
CONVOLUTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], torch.dtype]] = {
    "plain": (_conv(padding=1), (8, 16, 3, 3), torch.int8),
    "one tap": (_conv(), (8, 24, 1, 1), torch.int8),
    "groups": (_conv(groups=2, stride=2, padding=(1, 2)), (6, 5, 3, 2), torch.int8),
    "pieces": (_conv(padding=1), (4, 256, 3, 3), torch.int8),
    "pieces of groups": (_conv(groups=2, padding=1), (4, 192, 3, 3), torch.int8),
    "unsigned": (_conv(padding=1), (8, 64, 3, 3), torch.uint8),
    "8 bits": (lambda x, w: functional.conv2d(x, w, padding=1), (8, 32, 3, 3), torch.int8),
    "64 bits": (lambda x, w: functional.conv2d(x.long(), w.long()), (3, 16, 2, 2), torch.int8),
    "unknown": (lambda x, w: functional.conv2d(x, w.int(), padding=1), (5, 6, 3, 3), torch.int32),
}


@functools.cache
def convolution(name: str) -> tuple[Model, int, torch.dtype]:
    """The model, its channels and the type of its images."""
    torch.manual_seed(0)
    function, sizes, dtype = CONVOLUTIONS[name]
    channels = {"groups": 10, "pieces of groups": 384}.get(name, sizes[1])
    return Model(function, small(*sizes)).eval(), channels, dtype


def image(name: str, batch: int, height: int, width: int) -> Tensor:
    torch.manual_seed(batch + 10 * height + 100 * width)
    _, channels, dtype = convolution(name)
    if dtype is torch.int32:
        return torch.randint(-(2**31), 2**31 - 1, (batch, channels, height, width)).int()
    return small(batch, channels, height, width, dtype=dtype)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_pass_keeps_the_meaning(name: str) -> None:
    """By the interpreter, which rounds nothing and wraps integers around."""
    model, _, _ = convolution(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = import_model(model, (image(name, 2, 7, 9),), dynamic_shapes=SIZES)
    inputs = [image(name, *sizes) for sizes in ((1, 5, 6), (2, 8, 3), (0, 4, 4))]
    weights = [each.numpy() for each in found.weight_tensors]
    for stage in gpu_stages(4):
        run_stage(found.module, stage, host_target("host"), verify=True)
        if stage.name == _LAST:
            break
    products = [
        op for op in sir.walk(found.module.operation)
        if op.name in ("shapejit.gemm", "shapejit.conv")
    ]  # fmt: skip
    assert len(products) == (0 if name in ("unknown",) else 1)
    assert all(str(op.operands[0].type.element_type) == "bf16" for op in products)
    interpreter = Interpreter(found.module)
    for x in inputs:
        [got] = interpreter.run([x.numpy(), *weights])
        np.testing.assert_array_equal(got, model(x).numpy())


@functools.cache
def compiled(name: str) -> tuple[Any, Simulated]:
    return simulated(convolution(name)[0], (image(name, 2, 7, 9),), SIZES, max_regions=2)


@needs_ptxas
@pytest.mark.parametrize(
    "name", ["plain", "pieces", "pieces of groups", "unsigned", "8 bits", "unknown"]
)
def test_convolutions_on_a_gpu(name: str) -> None:
    model, _, _ = convolution(name)
    program, _ = compiled(name)
    for sizes in ((2, 4, 3), (0, 4, 4)):
        x = image(name, *sizes)
        assert torch.equal(program(x), model(x)), sizes


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_on_a_cpu(name: str) -> None:
    model, _, _ = convolution(name)
    program = shapejit.compile(model, (image(name, 2, 7, 9),), dynamic_shapes=SIZES, target="cpu")
    for sizes in ((1, 5, 7), (3, 12, 4), (0, 4, 4)):
        x = image(name, *sizes)
        assert torch.equal(program(x), model(x)), sizes


PRODUCTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, int]]] = {
    "int_mm": (torch._int_mm, (1024, 24)),
    "pieces": (lambda x, w: x.int() @ w.int(), (2048, 8)),
    "no divisor": (lambda x, w: x.int() @ w.int(), (1031, 3)),
    "8 bits": (lambda x, w: x @ w, (64, 16)),
}


def product(name: str) -> tuple[Model, Callable[[int], Tensor]]:
    torch.manual_seed(1)
    function, (depth, columns) = PRODUCTS[name]
    return Model(function, small(depth, columns)).eval(), lambda rows: small(rows, depth)


@needs_ptxas
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_a_gpu(name: str) -> None:
    """Exact also where all factors are -128, whose sum is 2^24 for a whole piece."""
    model, rows = product(name)
    program, _ = simulated(model, (rows(20),), ROWS, max_regions=2)
    with torch.no_grad():
        x = rows(5)
        assert torch.equal(program(x), model(x))
        model.weight.fill_(-128)
        x = torch.full_like(rows(3), -128)
        assert torch.equal(program(x), model(x))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_a_cpu(name: str) -> None:
    model, rows = product(name)
    program = shapejit.compile(model, (rows(20),), dynamic_shapes=ROWS, target="cpu")
    for count in (17, 40):
        x = rows(count)
        assert torch.equal(program(x), model(x))


class Quantized(nn.Module):
    """Two layers as they are exported after quantization, but for their sums, which are int32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", small(16, 3, 3, 3))
        self.register_buffer("second", small(8, 16, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.conv2d(self.levels(x, 0.03).int(), self.first.int(), padding=1)
        y = self.levels(torch.relu(y * 0.001), 0.2)
        return functional.conv2d(y.int(), self.second.int(), padding=1) * 0.0005

    @staticmethod
    def levels(x: Tensor, step: float) -> Tensor:
        return torch.clamp(torch.round(x / step), -128, 127).to(torch.int8)


@needs_ptxas
def test_a_quantized_network_is_a_launch_a_layer() -> None:
    torch.manual_seed(2)
    model = Quantized().eval()
    program, execution = simulated(model, (torch.randn(2, 3, 7, 9),), SIZES, max_regions=2)
    x = torch.randn(1, 3, 6, 8)
    torch.testing.assert_close(program(x), model(x), rtol=1e-6, atol=0)
    # The image's levels, channels last; then each layer with what makes levels of its sums.
    assert len(execution.launched) <= 4


def test_pieces_divide() -> None:
    assert _piece(1024, 1024) == 1024
    assert _piece(4096, 1024) == 1024
    assert _piece(1152, 1024) == 576
    assert _piece(1031, 1024) is None
    assert _piece(None, 1024) is None
    assert _piece(256, 113) == 64
    assert _piece(0, 1024) == 0
    assert _piece(4, 0) is None
