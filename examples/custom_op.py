# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""An operator of one's own, made with `torch.library`, and the rules that compile it.

Two operators: `snake`, pointwise, and `power_norm`, a reduction over the last dimension. Without
rules the model would be refused; with them both fuse into what is around.

python examples/custom_op.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim

import shapejit
from shapejit.rules import Context, Expr, Read, Scalar, Tensor, Write, rule

# What the operators are to PyTorch ----------------------------------------------------------------


@torch.library.custom_op("mylib::snake", mutates_args=())
def snake(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """x + sin(alpha x)^2 / alpha, an activation of audio models."""
    return x + torch.sin(alpha * x) ** 2 / alpha


@snake.register_fake
def _snake_fake(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("mylib::power_norm", mutates_args=())
def power_norm(x: torch.Tensor) -> torch.Tensor:
    """x divided by the fourth root of the mean of its fourth powers, over the last dimension."""
    return x / x.pow(4).mean(-1, keepdim=True).pow(0.25)


@power_norm.register_fake
def _power_norm_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


# What they are to shapejit ------------------------------------------------------------------------


@rule("mylib.snake")
def _snake_rule(ctx: Context, x: Tensor, alpha: float) -> Tensor:
    ops = ctx.ops

    def body(value: Scalar) -> Scalar:
        rate = ops.const(alpha, value.dtype)
        wave = ops.math("math.sin", ops.mul(rate, value))
        return ops.add(value, ops.div(ops.mul(wave, wave), rate))

    return ctx.pointwise(body, x)


@rule("mylib.power_norm")
def _power_norm_rule(ctx: Context, x: Tensor) -> Tensor:
    ops = ctx.ops
    *rows, last = (Expr.dim(i) for i in range(x.rank))
    size = x.shape[-1]  # an expression of the model's symbols

    def fourth_power(value: Scalar) -> list[Scalar]:
        value = ops.cast(value, torch.float32)
        square = ops.mul(value, value)
        return [ops.mul(square, square)]

    [total] = ctx.builder.loop(
        x.shape,
        [Read(x, (*rows, last))],
        fourth_power,
        [Write(torch.float32, tuple(range(x.rank - 1)), "add")],
    )

    def body(value: Scalar, total: Scalar) -> list[Scalar]:
        count = ops.from_index(ops.index_expr(size), torch.float32)
        root = ops.math("math.sqrt", ops.math("math.sqrt", ops.div(total, count)))
        return [ops.cast(ops.div(ops.cast(value, torch.float32), root), x.dtype)]

    [result] = ctx.builder.loop(
        x.shape,
        [Read(x, (*rows, last)), Read(total, tuple(rows))],
        body,
        [Write(x.dtype, tuple(range(x.rank)))],
    )
    return result


# A model with them --------------------------------------------------------------------------------


class Model(nn.Module):
    """float32 [batch, time, 64] to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return power_norm(x + self.second(snake(self.first(x), 0.5)))


def main() -> None:
    """Compiles the model once and compares it with PyTorch at three shapes."""
    model = Model().eval()
    batch, time = Dim("batch", min=1, max=16), Dim("time", min=1, max=1000)
    program = shapejit.compile(
        model, (torch.randn(2, 10, 64),), dynamic_shapes=({0: batch, 1: time},)
    )
    with torch.inference_mode():
        for shape in ((1, 1), (3, 77), (16, 1000)):
            x = torch.randn(*shape, 64)
            error = (program(x) - model(x)).abs().max().item()
            print(f"{shape[0]:3} x {shape[1]:4}: largest difference {error:.1e}")
    print(program.explain(x))


if __name__ == "__main__":
    main()
