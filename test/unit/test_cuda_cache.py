# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention over what a cache holds, in whole programs on a simulated GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from unit.simulated_programs import simulated

LENGTH = 320


class Cache(nn.Module):
    """A step of generation: new keys go into a cache, queries see those up to their own.

    Args:
        given: whether positions are an argument; else the cache counts.
    """

    def __init__(self, given: bool) -> None:
        super().__init__()
        self.given = given
        for name in ("keys", "values"):
            empty = torch.full((1, 2, LENGTH, 64), 1e4, dtype=torch.bfloat16)
            self.register_buffer(name, empty)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        if not self.given:
            positions = torch.arange(x.shape[2]) + self.count
        self.keys.index_copy_(2, positions, x[:, ::2] * 0.5)
        self.values.index_copy_(2, positions, x[:, ::2] - 1)
        self.count.add_(x.shape[2])
        mask = torch.arange(LENGTH) <= positions[:, None]
        found: Tensor = nn.functional.scaled_dot_product_attention(
            x, self.keys, self.values, mask, enable_gqa=True
        )
        return found


def reference(x: Tensor, keys: Tensor, values: Tensor, before: int) -> Tensor:
    """In float64, over what the cache holds."""
    total = before + x.shape[2]
    k, v = (each[:, :, :total].double().repeat_interleave(2, 1) for each in (keys, values))
    mask = torch.arange(total) <= torch.arange(before, total)[:, None]
    return nn.functional.scaled_dot_product_attention(x.double(), k, v, mask)


@torch.no_grad()
@pytest.mark.parametrize("given", [False, True])
def test_a_cache_is_read_as_far_as_it_is_filled(given: bool) -> None:
    """What lies beyond is large, and would be seen if it had any weight."""
    model = copy.deepcopy(Cache(given).eval())
    example = (torch.zeros(1, 4, 3, 64, dtype=torch.bfloat16), torch.arange(3))
    new = Dim("new", min=1, max=40)
    program, _ = simulated(model, example, ({2: new}, {0: new}))
    masks = [kernel for kernel in program.artefacts.kernels if "le" in kernel.fuses]
    assert len(masks) == given, "a mask of consecutive positions is not made at all"
    before = 0
    for count in (1, 37, 2):
        x = torch.randn(1, 4, count, 64).bfloat16()
        got = program(x, torch.arange(before, before + count))
        expected = reference(x, model.keys, model.values, before)
        torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=2e-2)
        before += count
    assert int(model.count) == before
    assert bool((model.keys[:, :, before:] == torch.tensor(1e4).bfloat16()).all())
