# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operators on images on a simulated GPU: pooling, resizing, padding, joins, group norms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.export import Dim

from shapejit.program import Program
from unit.simulated_programs import Simulated, simulated

CHANNELS: Final = 16

OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "mean": lambda x: F.adaptive_avg_pool2d(x, 1),
    "bilinear": lambda x: F.interpolate(x, size=(x.shape[2] + 3, 9), mode="bilinear"),
    "reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    "constant": lambda x: F.pad(x, (1, 2, 2, 1), value=0.5),
    "circular": lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"),
    "joined": lambda x: torch.cat([x, x[:, :8] * 2], 1),
    "group_norm": lambda x: F.silu(F.group_norm(x, 4)),
}
VECTORS = ("max_pool", "avg_pool", "bilinear", "reflect", "constant")
"""Those that must move whole vectors of channels, in one kernel."""


class Images(nn.Module):
    """An operator on an image that lies in memory channels last, as after a convolution."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.operator = OPERATORS[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.operator(x.permute(0, 3, 1, 2)).movedim(1, -1)


@functools.cache
def compiled(name: str) -> tuple[Program, Simulated]:
    shapes = ({0: Dim("n", min=1, max=8), 1: Dim("h", min=4, max=64), 2: Dim("w", min=4, max=64)},)
    example = (torch.randn(2, 5, 7, CHANNELS).to(torch.bfloat16),)
    return simulated(Images(name), example, shapes, max_regions=2)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    program, execution = compiled(name)
    torch.manual_seed(0)
    x = torch.randn(2, 5, 9, CHANNELS).to(torch.bfloat16)
    got, want, exact = program(x), Images(name)(x), Images(name)(x.double())
    assert got.shape == want.shape
    ours, torchs = ((each.double() - exact).norm().item() for each in (got, want))
    assert ours <= 1.2 * max(torchs, 2.0**-9 * exact.norm().item())
    if name in VECTORS:
        assert program.artefacts.gpu is not None
        assert len(execution.launched) == 1
        texts = [str(variant) for variant in program.artefacts.gpu.variants]
        assert all("loops_v8" in text for text in texts), texts
