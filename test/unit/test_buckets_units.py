# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Axes that count units: sizes that are multiples of one size share an axis."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from shapejit.passes.buckets.bindings import Bindings
from shapejit.passes.buckets.stated import _in_units
from shapejit.symbolic import Expr
from unit.ptx_samples import needs_ptxas

N, H = Expr.symbol(0), Expr.symbol(1)


def _bindings(*sizes: Expr) -> Bindings:
    launches = tuple({0: size} for size in sizes)
    return Bindings(launches, None, {})  # type: ignore[arg-type]


@given(
    factors=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    values=st.tuples(st.integers(0, 50), st.integers(0, 50)),
)
def test_units(factors: list[int], values: tuple[int, int]) -> None:
    """All that a size stands for is a whole number of units, of which no larger one is known."""
    base = N * H + N
    bindings = _bindings(*(base * factor for factor in factors))
    unit = bindings.unit(Expr.symbol(0))
    assert unit == math.gcd(*factors)
    counted = bindings.bound(Expr.symbol(0) // unit)
    for factor, size in zip(dict.fromkeys(factors), counted, strict=True):
        assert size == base * (factor // unit)
        assert size.evaluate(values) * unit == base.evaluate(values) * factor


def test_without_units() -> None:
    symbol = Expr.symbol(0)
    assert _bindings().unit(symbol) == 1
    assert _bindings(Expr.const(48)).unit(symbol) == 1
    assert _bindings(N * 6 + 3, N * 12).unit(symbol) == 3
    assert _bindings(N * 6 + 1).unit(symbol) == 1
    assert _bindings((N * 8 + 4) // 3).unit(symbol) == 1


@given(unit=st.integers(1, 40), cuts=st.sets(st.integers(2, 200), max_size=5), size=st.integers(0))
def test_stated_buckets(unit: int, cuts: set[int], size: int) -> None:
    """A number of units lies in the bucket in which the size lies, and in no other."""
    starts = [0, *sorted(cuts)]
    ends = [*(start - 1 for start in starts[1:]), None]
    buckets = [((a,), (b,), f"v{i}", "") for i, (a, b) in enumerate(zip(starts, ends, strict=True))]
    counted = [_in_units(bucket, [unit]) for bucket in buckets]

    def holding(kept: list[Any], at: int) -> list[str]:
        return [v for (a,), (b,), v, _ in kept if a <= at and (b is None or at <= b)]

    assert holding([each for each in counted if each], size) == holding(buckets, size * unit)


class Network(nn.Module):
    """Two layers of which one has a fourth of the other's pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(nn.functional.max_pool2d(torch.relu(self.first(x)), 2))
        return y


@needs_ptxas
def test_a_program() -> None:
    """Its host finds variants by units, whose number both layers' kernels have in common."""
    from unit.simulated_programs import simulated

    torch.manual_seed(0)
    model = Network().eval().to(torch.bfloat16)
    rows, columns = (2 * Dim(name, min=1, max=9) for name in ("rows", "columns"))
    x = torch.randn(1, 8, 8, 6).to(torch.bfloat16)
    program, execution = simulated(model, (x,), ({2: rows, 3: columns},), max_regions=2)
    code = execution._artefacts.gpu
    assert code is not None
    last = {kernel.name: kernel.buckets[-1].upper for kernel in code.kernels}
    assert last["conv0"] == last["gemm0"] == (81,)
    for height, width in ((2, 2), (8, 6), (18, 14)):
        x = torch.randn(1, 8, height, width).to(torch.bfloat16)
        with torch.no_grad():
            got, expected = program(x), model(x)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
