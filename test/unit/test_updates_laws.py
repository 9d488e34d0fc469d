# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Laws of writes in place: any mix of writes and reads does what eager PyTorch does.

Programs are drawn as lists of steps on two tensors, of which one is a buffer and one an input of a
free size; what is read on the way is returned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import shapejit

Step = Callable[[Tensor, Tensor, Tensor], Any]
"""Of the tensor that is written, the other one (both [rows, 4], of at least 4 rows), and two
positions."""

WRITES: dict[str, Step] = {
    "positions": lambda x, y, at: x.index_copy_(0, at, y[:2]),
    "assigned positions": lambda x, y, at: x.__setitem__(at, y[-2:] * 2),
    "a column": lambda x, y, at: x[:4, 1].copy_(y[:4, 2]),
    "rows": lambda x, y, at: x[1:3].copy_(y[:2]),
    "a part of a part": lambda x, y, at: x[1:4][:2, 1:].copy_(y[2:4, :3]),
    "its own rows": lambda x, y, at: x[:3].copy_(x[1:4].clone()),
    "a sum": lambda x, y, at: x.add_(y.sum(0)),
    "all": lambda x, y, at: x.mul_(0.5),
    "where negative": lambda x, y, at: x.masked_fill_(x < 0, 0.0),
    "a row of what it holds": lambda x, y, at: x[0].add_(x[-1]),
}
READS: dict[str, Step] = {
    "rows": lambda x, y, at: x[1:4] + y[:3],
    "positions": lambda x, y, at: x[at],
    "a sum": lambda x, y, at: x.sum(0) * y[0],
    "all": lambda x, y, at: x * 1,
}

Draw = tuple[str, str, bool]
"""Kind of step ("write" or "read"), its name, and whether the buffer comes first."""


class Drawn(nn.Module):
    """Takes the steps on a buffer and an input."""

    def __init__(self, steps: list[Draw]) -> None:
        super().__init__()
        self.steps = steps
        self.register_buffer("state", torch.linspace(-1, 1, 24).reshape(6, 4))

    def forward(self, x: Tensor, at: Tensor) -> list[Tensor]:
        found = [x.sum()]
        for kind, name, of_state in self.steps:
            first, second = (self.state, x) if of_state else (x, self.state)
            if kind == "write":
                WRITES[name](first, second, at)
            else:
                found.append(READS[name](first, second, at))
        return found


def draws() -> st.SearchStrategy[list[Draw]]:
    write = st.tuples(st.just("write"), st.sampled_from(sorted(WRITES)), st.booleans())
    read = st.tuples(st.just("read"), st.sampled_from(sorted(READS)), st.booleans())
    return st.lists(st.one_of(write, write, read), min_size=5, max_size=9)


@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(draws())
@torch.no_grad()
def test_any_mix_of_writes_and_reads(steps: list[Draw]) -> None:
    eager = Drawn(steps).eval()
    model = copy.deepcopy(eager)
    example = (torch.randn(7, 4), torch.tensor([0, 2]))
    rows = Dim("rows", min=4, max=50)
    program = shapejit.compile(model, example, dynamic_shapes=({0: rows}, None), verify_each=True)
    for size in (4, 5, 50):
        x, at = torch.randn(size, 4), torch.randperm(4)[:2]
        theirs = x.clone()
        expected, got = eager(theirs, at), program(x, at)
        torch.testing.assert_close((x, model.state), (theirs, eager.state))
        torch.testing.assert_close(got, expected)
