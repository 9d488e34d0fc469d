# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What picks tokens out of logits, as whole programs with kernels on a simulated GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from unit.simulated_programs import simulated


class TopP(nn.Module):
    """The probabilities of the tokens that together have most of it, greatest first."""

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, tokens = torch.sort(logits.softmax(-1), dim=-1, descending=True, stable=True)
        before = probabilities.cumsum(-1) - probabilities
        return torch.where(before < 0.9, probabilities, 0.0), tokens


class TopK(nn.Module):
    """The five best tokens at the last place of each row, and where masked tokens are packed."""

    def forward(self, logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, tokens = logits[:, -1].topk(5)
        return values, tokens, mask.cumsum(-1) - 1


def test_top_p() -> None:
    logits = torch.randn(3, 40)
    shapes = {"logits": {0: Dim("batch", min=0, max=8), 1: Dim("tokens", min=0, max=300)}}
    program, execution = simulated(TopP(), (logits,), shapes)
    for rows, columns in ((3, 40), (1, 1), (2, 130), (0, 7)):
        x = torch.randn(rows, columns)
        wanted, wanted_tokens = TopP()(x)
        values, tokens = program(x)
        assert torch.equal(tokens, wanted_tokens)
        torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-6)
        # A softmax, a sort, a scan and the choice.
        assert len(execution.launched) == 4


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 33)])
def test_top_k(rows: int, length: int) -> None:
    shapes = {
        "logits": {0: Dim("batch", min=1, max=8), 1: Dim("length", min=1, max=64)},
        "mask": {0: Dim("batch", min=1, max=8), 1: Dim("length", min=1, max=64)},
    }
    example = torch.randn(2, 4, 100).bfloat16(), torch.ones(2, 4, dtype=torch.bool)
    program, _ = simulated(TopK(), example, shapes)
    x, mask = torch.randn(rows, length, 100).bfloat16(), torch.rand(rows, length) > 0.3
    values, tokens, places = program(x, mask)
    assert torch.equal(values, x[:, -1].topk(5)[0])
    assert torch.equal(x[:, -1].gather(1, tokens), values)
    assert torch.equal(places, mask.cumsum(-1) - 1)
