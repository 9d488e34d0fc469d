# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What compiled modules of products compute, with kernels on a simulated GPU."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from shapejit.program import Program
from unit.gpu_programs import Deep, Gated, Residual, Scores, rows, tokens
from unit.simulated_programs import Simulated, simulated


def check(program: Program, model: nn.Module, *args: Tensor) -> None:
    """Compares a call with float64; torch's own result in that type says what can be expected."""
    with torch.no_grad():
        got, theirs = program(*args), model(*args)
        exact = copy.deepcopy(model).double()(*(arg.double() for arg in args))
    assert (got.shape, got.dtype) == (theirs.shape, theirs.dtype)
    if exact.numel():
        ours, torchs = ((each.double() - exact).norm().item() for each in (got, theirs))
        assert ours <= 1.2 * max(torchs, exact.norm().item() * torch.finfo(got.dtype).eps / 8)


@functools.cache
def feed_forward(kind: type[nn.Module]) -> tuple[Program, Simulated, nn.Module]:
    torch.manual_seed(0)
    model = kind().eval()
    return *simulated(model, (rows(7),), tokens()), model


@pytest.mark.parametrize("count", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("kind", [Residual, Gated])
def test_feed_forward(kind: type[nn.Module], count: int) -> None:
    program, execution, model = feed_forward(kind)
    check(program, model, rows(count))
    assert len(execution.launched) == 2


@pytest.mark.parametrize("count", [1, 40])
def test_under_constant_graphs(count: int) -> None:
    """Four launches: the same kernels in block form, with operands and values in words."""
    program, execution, model = feed_forward(Deep)
    check(program, model, rows(count))
    assert len(execution.launched) == 4


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 128, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def test_a_linear_layer_rounds_once() -> None:
    """Not after the product and again after the bias, which would give 1.4 times the error."""
    program, _, model = feed_forward(Linear)
    x = rows(40)
    with torch.no_grad():
        got = program(x).double()
        exact = copy.deepcopy(model).double()(x.double())
    rounded = exact.bfloat16().double()
    assert (got - exact).norm() <= 1.02 * (rounded - exact).norm()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 3, 8), (1, 20, 33), (3, 1, 16)])
def test_products_of_two_inputs(sizes: tuple[int, int, int]) -> None:
    program, _, model = scores()
    batch, m, n = sizes
    generator = torch.Generator().manual_seed(n)
    q, k = (torch.randn(batch, size, 64, generator=generator).bfloat16() for size in (m, n))
    check(program, model, q, k)


@functools.cache
def scores() -> tuple[Program, Simulated, nn.Module]:
    model = Scores()
    args = [torch.zeros(2, size, 64, dtype=torch.bfloat16) for size in (5, 16)]
    batch = Dim("batch", min=1, max=8)
    shapes = {
        "q": {0: batch, 1: Dim("m", min=1, max=64)},
        "k": {0: batch, 1: Dim("n", min=1, max=64)},
    }
    return *simulated(model, args, shapes), model


class Product(nn.Module):
    """With the second factor's neighbours along n."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b)


@functools.cache
def product(multiple: int) -> tuple[Program, Simulated, nn.Module]:
    inner = Dim("k", min=1, max=512 // multiple)
    k = multiple * inner if multiple != 1 else inner
    args = [torch.zeros(sizes, dtype=torch.float16) for sizes in ((2, 6, 16), (2, 16, 40))]
    shapes = {"a": {1: Dim("m", min=1, max=300), 2: k}, "b": {1: k}}
    return *simulated(Product(), args, shapes), Product()


@pytest.mark.parametrize(
    ("multiple", "m", "k"), [(8, 1, 8), (8, 20, 136), (1, 1, 1), (1, 20, 70), (1, 5, 64)]
)
def test_products_over_a_free_dim(multiple: int, m: int, k: int) -> None:
    """In f16; tensor maps can be used if the inner size is known to be a multiple of 8."""
    program, execution, model = product(multiple)
    generator = torch.Generator().manual_seed(k)
    check(
        program,
        model,
        torch.randn(2, m, k, generator=generator).half(),
        torch.randn(2, k, 40, generator=generator).half(),
    )
    assert program.artefacts.gpu is not None
    names = {program.artefacts.gpu.variants[n].schedule for n in execution.launched}
    assert all(name.startswith("unaligned") == (multiple == 1) for name in names)


class Transposed(nn.Module):
    """Weights as GPT-2 has them, [k, n], and n no multiple of 8."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(64, 33, generator=generator).bfloat16())
        self.bias = nn.Parameter(torch.randn(33, generator=generator).bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(self.bias, x, self.weight))


@pytest.mark.parametrize("count", [1, 19])
def test_weights_along_the_other_dim(count: int) -> None:
    program, _, model = feed_forward(Transposed)
    check(program, model, rows(count))


class Softmax(nn.Module):
    """One kernel of loops, in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(2 * x + 1, -1)


@pytest.mark.parametrize("count", [1, 5])
def test_a_single_kernel_of_loops(count: int) -> None:
    program, execution, model = softmax()
    check(program, model, torch.randn(count, 100, generator=torch.Generator().manual_seed(count)))
    assert len(execution.launched) == 1


@functools.cache
def softmax() -> tuple[Program, Simulated, nn.Module]:
    return *simulated(Softmax(), (torch.zeros(7, 100),), tokens()), Softmax()


class Attention(nn.Module):
    """One kernel with an attention."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (20, 33)])
def test_a_single_attention(m: int, n: int) -> None:
    program, execution, model = attention()
    generator = torch.Generator().manual_seed(m)
    q, k, v = (torch.randn(2, 2, s, 32, generator=generator).bfloat16() for s in (m, n, n))
    check(program, model, q, k, v)
    assert len(execution.launched) == 1


@functools.cache
def attention() -> tuple[Program, Simulated, nn.Module]:
    args = [torch.zeros(2, 2, size, 32, dtype=torch.bfloat16) for size in (5, 9, 9)]
    m, n = Dim("m", min=1, max=64), Dim("n", min=1, max=64)
    shapes = {"q": {2: m}, "k": {2: n}, "v": {2: n}}
    return *simulated(Attention(), args, shapes), Attention()
