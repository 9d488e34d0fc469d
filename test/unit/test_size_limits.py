# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sizes whose memory cannot be counted in 64 bits."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import shapejit
from shapejit.errors import ShapeError
from shapejit.size_limits import MOST_BYTES, SizeLimits


class Table(nn.Module):
    """A table of all products between two lists, as working memory, and as a result in a row."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        table = x[:, None] * y[None, :]
        return table.cumsum(1).flip(0).cumsum(0).sum(), table.flatten()


@functools.cache
def compiled(most: int | None = None) -> shapejit.Program:
    dims = tuple({0: Dim(name, min=1, max=most)} for name in ("n", "m"))
    with torch.no_grad():
        example = (torch.ones(5), torch.ones(7))
        return shapejit.compile(Table().eval(), example, dynamic_shapes=dims)


@torch.no_grad()
@pytest.mark.parametrize(("n", "m"), [(1 << 33, 1 << 29), (1 << 33, 1 << 33), (1 << 32, 1 << 30)])
def test_sizes_that_wrap_around_are_refused(n: int, m: int) -> None:
    """They take 2^64 bytes or more: in 64 bits that is next to nothing."""
    rule = f"n = {n}, m = {m} need {4 * n * m} bytes .*: no more than {MOST_BYTES} are counted"
    one = torch.ones(1)
    for ask in (compiled(), compiled().explain):
        with pytest.raises(ShapeError, match=f"SJ-SHAPE-010 the sizes {rule}"):
            ask(one.expand(n), one.expand(m))


@torch.no_grad()
def test_sizes_that_can_be_counted_go_on() -> None:
    total, row = compiled()(torch.full((3,), 2.0), torch.ones(4))
    assert row.tolist() == [2.0] * 12
    assert total == 2.0 * (1 + 2 + 3) * (1 + 2 + 3 + 4)
    explained = compiled().explain(torch.ones(1).expand(1 << 20), torch.ones(1).expand(1 << 20))
    assert explained.arena_bytes >= 4 << 40


def test_dims_with_bounds_need_no_look() -> None:
    assert SizeLimits(compiled().artefacts).unbounded
    assert not SizeLimits(compiled(1 << 20).artefacts).unbounded


def test_many_tensors_at_the_limit_are_counted() -> None:
    """As many as large programs hold at once: native code adds their bytes up with a sign."""
    assert 10_000 * MOST_BYTES < 1 << 63
