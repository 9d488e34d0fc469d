# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Empty inputs: nothing is read through a null pointer, whatever is joined to what."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import shapejit


class Joined(nn.Module):
    """Joins two inputs that may be empty, with work before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([self.layer(x).relu(), y, x], dim=0)
        return torch.softmax(joined, -1), joined.sum(0)


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 3), (4, 0), (1, 1), (4, 3)])
def test_joining_parts_that_may_be_empty(m: int, n: int) -> None:
    torch.manual_seed(0)
    model = Joined().eval()
    program = shapejit.compile(
        model,
        (torch.randn(4, 8), torch.randn(3, 8)),
        dynamic_shapes=({0: Dim("m", min=0, max=16)}, {0: Dim("n", min=0, max=16)}),
    )
    x, y = torch.randn(m, 8), torch.randn(n, 8)
    with torch.no_grad():
        for ours, theirs in zip(program(x, y), model(x, y), strict=True):
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
