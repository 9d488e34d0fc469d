# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random chains of operators through the whole compiler, against PyTorch at sizes from 1 on.

A module is drawn step by step. A step is kept if PyTorch takes it at all sizes that are tried, so
that sizes which it refuses play no part. All numbers are small multiples of 1/4 and all operators
exact on them, or monotone: a wrong index, mask or order cannot hide in a tolerance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.export import Dim

import shapejit

SIZES = ((5, 7), (1, 1), (1, 6), (6, 1), (2, 3), (3, 3), (4, 4), (8, 2), (11, 13))
"""Of the dims a and b; the example's first."""
SHAPES: tuple[tuple[str | int, ...], ...] = (
    ("a", "b"), ("b", "a"), ("a", "a"), ("a", "b", 4), ("b",), (1, "b"), ("a", 1), (2, 3, "a"),
)  # fmt: skip
DTYPES = (torch.float32, torch.float32, torch.float32, torch.int64, torch.int32, torch.bool)

Step = Callable[..., Tensor]


def first(x: Tensor, dim: int) -> Tensor:
    """`x` with a dim in front, whose slices then are of that dim."""
    return x.transpose(0, dim)


def place(x: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """Any numbers as indices of a dim."""
    return index.long().remainder(x.shape[dim])


def changed(x: Tensor, dim: int, step: int) -> Tensor:
    x = x.clone()
    first(x, dim)[::step] = 1
    first(x, dim)[0] = first(x, dim)[-1]
    return x


def one_operand(pick: random.Random, x: Tensor) -> dict[str, Step]:
    dim, other = pick.randrange(x.dim()), pick.randrange(x.dim()) - x.dim()
    many, shift, keep = pick.randint(1, 3), pick.randint(-3, 3), pick.random() < 0.5
    return {
        f"abs_half_{shift}": lambda x: abs(x) * 0.5 + shift,
        f"floor_{many}": lambda x: x // (many + 0.5 if x.is_floating_point() else many),
        f"remainder_{shift}": lambda x: x % (shift - 4),
        "clamp": lambda x: x.float().clamp(-1, 1.5),
        "int": lambda x: x.to(torch.int32),
        "half": lambda x: x.to(torch.float16).float(),
        "not": lambda x: ~x if not x.is_floating_point() else x.round(),
        f"greater_{shift}": lambda x: x > shift / 4,
        f"transpose_{dim}_{other}": lambda x: x.transpose(dim, other),
        f"flip_{dim}": lambda x: x.flip(dim),
        f"roll_{shift}_{dim}": lambda x: x.roll(shift, dim),
        f"tail_{many}_{dim}": lambda x: first(x, dim)[many:],
        f"cut_{many}_{dim}": lambda x: first(x, dim)[:-many],
        f"last_{many}_{dim}": lambda x: first(x, dim)[-many:],
        f"strided_{many}_{dim}": lambda x: first(x, dim)[many - 1 :: many + 1],
        f"inner_{many}_{dim}": lambda x: first(x, dim)[1:-1:many],
        f"select_{dim}": lambda x: x.select(dim, -1),
        f"spread_{dim}": lambda x: x.unsqueeze(dim).expand(*x.shape[:dim], 3, *x.shape[dim:]),
        "flatten": lambda x: x.transpose(0, -1).flatten(),
        f"regroup_{dim}": lambda x: x.reshape(-1, x.shape[dim]),
        f"repeat_{many}": lambda x: x.repeat(many, *[1] * (x.dim() - 1)),
        f"interleave_{many}_{dim}": lambda x: x.repeat_interleave(many, dim),
        f"pad_{many}_{shift}": lambda x: F.pad(x.float(), (many, shift), value=0.25),
        f"tril_{shift}": lambda x: x.tril(shift),
        f"diagonal_{shift}": lambda x: x.diagonal(shift),
        f"sum_{dim}": lambda x: x.sum(dim, keepdim=keep),
        f"greatest_{dim}": lambda x: x.amax(dim, keepdim=keep),
        f"cumsum_{dim}": lambda x: x.cumsum(dim),
        f"cummax_{dim}": lambda x: x.cummax(dim).values,
        f"sort_{dim}": lambda x: x.sort(dim, stable=True, descending=keep).indices,
        f"argmin_{dim}": lambda x: x.float().argmin(dim),
        f"changed_{dim}_{many}": lambda x: changed(x, dim, many),
        f"positions_{dim}": lambda x: torch.arange(x.shape[dim]),
        f"times_size_{dim}": lambda x: x * x.shape[dim],
        f"pool_{many}": lambda x: F.max_pool2d(x.float().flatten(1)[None], many, ceil_mode=keep),
        f"nearest_{many}": lambda x: F.interpolate(x.float()[None, None], scale_factor=many),
    }


def two_operands(pick: random.Random, x: Tensor, y: Tensor) -> dict[str, Step]:
    dim = pick.randrange(x.dim())
    return {
        "add": torch.add,
        "less": lambda x, y: x - 2 * y,
        "times": torch.mul,
        "least": torch.minimum,
        "equal": torch.eq,
        "where": lambda x, y: torch.where(y > 0, x, y.to(x.dtype)),
        "masked": lambda x, y: x.masked_fill(y > 0, 1),
        "floor_divide": lambda x, y: x.int() // (y.int().abs() + 1),
        f"cat_{dim}": lambda x, y: torch.cat([x, y, x], dim),
        f"stack_{dim}": lambda x, y: torch.stack([x, y], dim),
        f"gather_{dim}": lambda x, y: x.gather(dim, place(x, y, dim)),
        "rows": lambda x, y: x[place(x, y)],
        "selected": lambda x, y: x.index_select(0, place(x, y.flatten())),
        f"scatter_{dim}": lambda x, y: x.scatter(dim, place(x, y, dim), 1),
        "product": lambda x, y: x.float() @ y.float(),
        "outer": lambda x, y: torch.einsum("i,j->ji", x.flatten().float(), y.flatten().float()),
        "written": lambda x, y: torch.slice_scatter(x, y.to(x.dtype), dim, 1, 1 + y.shape[dim]),
    }


@dataclass
class Drawn:
    """A module and its inputs at all sizes."""

    names: list[str]
    module: Chain
    inputs: list[list[Tensor]]
    dims: tuple[dict[int, Any], ...]


class Chain(nn.Module):
    """Steps one after the other, each of results before it; all but the inputs are returned."""

    def __init__(self, steps: Sequence[tuple[Step, tuple[int, ...]]]) -> None:
        super().__init__()
        self.steps = list(steps)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = list(inputs)
        for step, operands in self.steps:
            values.append(step(*(values[operand] for operand in operands)))
        return tuple(values[len(inputs) :][-3:])


def tensor(dtype: torch.dtype, shape: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-8, 9, tuple(shape), generator=generator)
    return values / 4 if dtype.is_floating_point else values.to(dtype)


def results(step: Step, operands: tuple[int, ...], values: Sequence[list[Tensor]]) -> list[Tensor]:
    """Of a step at all sizes; none if it is not taken at some size, or grows too much."""
    try:
        found = [step(*(each[operand] for operand in operands)) for each in values]
    except (RuntimeError, IndexError, TypeError):
        return []
    kinds = {(x.dtype, x.dim()) for x in found}
    large = any(x.numel() > 20000 or (x.numel() and abs(x.double()).max() > 999) for x in found)
    return [] if len(kinds) > 1 or found[0].dim() > 5 or large else found


def draw(seed: int) -> Drawn:
    pick = random.Random(seed)
    inputs = [(pick.choice(DTYPES), pick.choice(SHAPES)) for _ in range(pick.randint(1, 3))]
    values: list[list[Tensor]] = []
    for a, b in SIZES:
        sizes = {"a": a, "b": b}
        shapes = [[sizes.get(str(size), size) for size in shape] for _, shape in inputs]
        pairs = enumerate(zip(inputs, shapes, strict=True))
        values.append([tensor(dtype, shape, seed + i) for i, ((dtype, _), shape) in pairs])
    given = [list(each) for each in values]
    names: list[str] = []
    steps: list[tuple[Step, tuple[int, ...]]] = []
    wanted = pick.randint(3, 7)
    while len(steps) < wanted:
        usable = [i for i, x in enumerate(values[0]) if x.dim()]
        operands = tuple(pick.choices(usable[-4:], k=pick.randint(1, 2)))
        make = one_operand if len(operands) == 1 else two_operands
        name, step = pick.choice(list(make(pick, *(values[0][i] for i in operands)).items()))
        for each, result in zip(values, results(step, operands, values), strict=False):
            each.append(result)
        if len(values[0]) > len(inputs) + len(steps):
            names.append(f"{name}{operands}")
            steps.append((step, operands))
    made = {name: Dim(name, min=1, max=40) for name in "ab"}
    dims = tuple(
        {i: made[size] for i, size in enumerate(shape) if isinstance(size, str)}
        for _, shape in inputs
    )
    return Drawn(names, Chain(steps).eval(), given, dims)


@pytest.mark.parametrize("seed", range(16))
def test_chains_of_operators(seed: int) -> None:
    drawn = draw(seed)
    program = shapejit.compile(
        drawn.module,
        drawn.inputs[0],
        dynamic_shapes={"inputs": drawn.dims},
        target="cpu",
        opt_level=0,
    )
    for inputs in drawn.inputs:
        expected = drawn.module(*(x.clone() for x in inputs))
        for got, wanted in zip(program(*inputs), expected, strict=True):
            assert got.dtype is wanted.dtype, drawn.names
            assert torch.equal(got, wanted), (drawn.names, [tuple(x.shape) for x in inputs])
