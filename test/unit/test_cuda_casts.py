# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Roundings that a model asks for, or that decide something, on a simulated GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim

from unit.simulated_programs import simulated


class Casts(nn.Module):
    """Casts of what is stored in f32, and sums in bf16 that are compared or made integers."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        half, other = x.bfloat16(), y.bfloat16()
        total = half + other
        return (
            half.float(),
            half == other,
            torch.where(half > 1, half, -half).float(),
            torch.floor(total.float()),
            total.to(torch.int32),
            total == 3,
        )


def test_casts_are_as_the_program_says() -> None:
    x = torch.tensor([1 + 1e-4, 0.9999, 2.9999, 3.00001, 1.5, 2.0])
    y = torch.tensor([1.0, 1.0, 3.0, 3.0, 1.5001, 0.999])
    dims = {0: Dim("n", min=1, max=100)}
    model = Casts()
    program, _ = simulated(model.eval(), (x, y), (dims, dims))
    for result, expected in zip(program(x, y), model(x, y), strict=True):
        assert torch.equal(result, expected), (result, expected)
