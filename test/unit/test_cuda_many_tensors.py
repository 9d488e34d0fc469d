# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models in which very many tensors meet: kernels have no more of them than fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from shapejit.passes.fusion.clusters import MOST_TENSORS
from shapejit.passes.inline_pointwise import MAX_TENSORS
from unit.simulated_programs import Simulated, simulated

ROWS = {0: Dim("rows", min=1, max=64)}


class Norms(nn.Module):
    """Batch norms of one width, as a ResNet has many; what they compute of weights alone
    are neighbours in the order of kernels."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(count))
        for norm in self.norms:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = torch.relu(norm(x))
        return x


class Joined(nn.Module):
    """Rows of many sizes, one after the other, each after a little arithmetic."""

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat([part * 2 + 1 for part in parts], 1)


def parameters_of(execution: Simulated) -> list[int]:
    """How many parameters each kernel has."""
    return [len(interface.parameters) for _, interface in execution._lowered]


def test_what_is_computed_of_many_weights() -> None:
    model = Norms(14).eval().requires_grad_(False)
    program, execution = simulated(model, (torch.randn(3, 4),), {"x": ROWS})
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)
    assert execution.bind is not None
    assert MOST_TENSORS // 2 < max(parameters_of(execution.bind)) <= MOST_TENSORS


@pytest.mark.parametrize("count", [3, 70])
def test_many_parts_of_a_whole(count: int) -> None:
    parts = [torch.randn(3, 1 + number % 3) for number in range(count)]
    program, execution = simulated(Joined().eval(), parts, {"parts": tuple(ROWS for _ in parts)})
    assert max(parameters_of(execution)) <= MAX_TENSORS + 8
    given = [torch.randn(2, part.shape[1]) for part in parts]
    torch.testing.assert_close(program(*given), Joined()(*given))
