# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What modules of float32 compute for a GPU, with kernels on a simulated one."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from shapejit.program import Program
from unit.gpu_programs import Deep, Gated, Residual, tokens
from unit.simulated_programs import Simulated, simulated
from unit.test_cuda_numerics import check


@functools.cache
def program(kind: type[nn.Module]) -> tuple[Program, Simulated, nn.Module]:
    torch.manual_seed(0)
    model = kind(dtype=torch.float32).eval()  # type: ignore[call-arg]
    return *simulated(model, (torch.randn(7, 64),), tokens()), model


@pytest.mark.parametrize(("kind", "count"), [(Residual, 17), (Gated, 1), (Deep, 5)])
def test_feed_forward(kind: type[nn.Module], count: int) -> None:
    """By value and, with four launches, under constant graphs."""
    compiled, _, model = program(kind)
    check(compiled, model, torch.randn(count, 64))
    assert compiled.artefacts.gpu is not None
    names = [variant.name for variant in compiled.artefacts.gpu.variants]
    assert all("simt_" in name or "tf32x3" in name for name in names)
    assert any("tf32x3" in name for name in names)


class Attend(nn.Module):
    """Attention with a mask, causal or not."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=self.causal, enable_gqa=True
        )


@pytest.mark.parametrize("way", ["causal", "bool"])
def test_attention(way: str) -> None:
    """As products and a softmax; queries that see no key give zeros."""
    torch.manual_seed(0)
    model = Attend(way == "causal").eval()
    batch, queries, keys = Dim("b", min=1, max=8), Dim("m", max=64), Dim("n", max=64)

    def operands(b: int, m: int, n: int) -> list[Tensor]:
        found = [torch.randn(b, 4, m, 16), torch.randn(b, 2, n, 16), torch.randn(b, 2, n, 16)]
        if way == "bool":
            found.append(torch.rand(b, 1, m, n) > 0.4)
        return found

    rows = queries if way != "causal" else keys
    shapes = [{0: batch, 2: rows}, {0: batch, 2: keys}, {0: batch, 2: keys}]
    if way == "bool":
        shapes.append({0: batch, 2: rows, 3: keys})
    program, _ = simulated(model, tuple(operands(2, 5, 5)), tuple(shapes))
    for b, m, n in [(1, 1, 1), (2, 9, 9)] if way == "causal" else [(1, 1, 3), (2, 9, 5)]:
        args = operands(b, m, n)
        if way == "bool":
            args[3][0, 0, 0] = False
        with torch.no_grad():
            got = program(*args)
            exact = model(*(a.double() if a.is_floating_point() else a for a in args))
        exact = exact.nan_to_num()  # what torch gives where there is no key
        assert got.shape == exact.shape
        assert (got.double() - exact).abs().max() <= 2.0**-20 * exact.abs().max()


class Block(nn.Module):
    """Convolutions with what follows them: 3x3, strided, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.skip = nn.Conv2d(4, 8, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.skip(x))


def test_convolutions() -> None:
    """By Winograd's algorithm, and as products of gathered pixels where that cannot be."""
    torch.manual_seed(0)
    model = Block().eval()
    batch, rows, columns = Dim("b", min=1, max=8), Dim("h", min=1, max=32), Dim("w", max=32)
    compiled, _ = simulated(
        model,
        (torch.randn(2, 4, 6, 5),),
        ({0: batch, 2: rows, 3: columns},),
        winograd="force",
    )
    for sizes in [(1, 1, 1), (2, 7, 6)]:
        check(compiled, model, torch.randn(sizes[0], 4, *sizes[1:]))
