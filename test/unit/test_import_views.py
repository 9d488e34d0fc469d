# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules of operators that move elements: views, joins, padding, writes into a part."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given

from reference.importing import Imported, quick, sizes

# x is [a, b, 6] with a and b dynamic.
VIEWS = {
    "broadcast_to": lambda x: x.broadcast_to(2, x.shape[0], x.shape[1], 6),
    "chunk": lambda x: x.chunk(3, -1)[1],
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "diagonal": lambda x: torch.diagonal(x, 1, 1, 2),
    "expand": lambda x: x[:, :, :1].expand(-1, -1, 4),
    "expand_new": lambda x: x[:1, :, 0].expand(5, 1, x.shape[1]),
    "flatten": lambda x: x.flatten(),
    "flatten_some": lambda x: x.flatten(0, 1),
    "flip": lambda x: x.flip(0, 2),
    "movedim": lambda x: x.movedim(0, -1),
    "narrow": lambda x: x.narrow(2, 1, 3),
    "permute": lambda x: x.permute(2, 0, 1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_new": lambda x: x.repeat(2, 1, 1, 2),
    "repeat_dynamic": lambda x: x[:, :1].repeat(1, x.shape[0], 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1),
    "repeat_interleave_flat": lambda x: x.repeat_interleave(2),
    "reshape": lambda x: x.reshape(x.shape[0], -1, 3),
    "reshape_heads": lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2),
    "reshape_back": lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2).reshape(-1, 3),
    "roll": lambda x: x.roll(2, 2),
    "roll_back": lambda x: x.roll((-1, 1), (2, 0)),
    "roll_flat": lambda x: x.roll(1),
    "select": lambda x: x[:, :, 2],
    "select_last": lambda x: x[..., -1],
    "slice": lambda x: x[..., 1:4],
    "slice_open": lambda x: x[..., 2:],
    "slice_negative": lambda x: x[..., -4:-1],
    "slice_step": lambda x: x[..., ::2],
    "slice_step_odd": lambda x: x[..., 1:6:4],
    "slice_empty": lambda x: x[..., 5:2],
    "slice_dynamic_step": lambda x: x[:, ::2],
    "slice_drop_last": lambda x: x[:, :-1],
    "slice_drop_first": lambda x: x[:, 1:],
    "split": lambda x: x.split(2, -1)[2],
    "split_sizes": lambda x: x.split([1, 2, 3], -1)[1],
    "squeeze": lambda x: x[..., :1].squeeze(-1),
    "squeeze_all": lambda x: x[:1, :1].unsqueeze(0).squeeze(),
    "squeeze_not": lambda x: x.squeeze(-1),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "transpose": lambda x: x.transpose(0, -1),
    "mT": lambda x: x.mT,
    "unbind": lambda x: x.unbind(-1)[3],
    "unflatten": lambda x: x.unflatten(-1, (3, 2)),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "unsqueeze_last": lambda x: x.unsqueeze(-1),
    "view_as": lambda x: x.view(-1, 6),
}

# x and y are [a, 4] and [b, 4].
JOINS = {
    "cat": lambda x, y: torch.cat([x, y]),
    "cat_three": lambda x, y: torch.cat([y, x, y]),
    "cat_one": lambda x, y: torch.cat([x]),
    "cat_static": lambda x, y: torch.cat([x[:, :1], x], 1),
    "cat_halves": lambda x, y: torch.cat([-x[:, 2:], x[:, :2]], -1),
    "cat_twice": lambda x, y: torch.cat([x, x], 1),
    "cat_empty": lambda x, y: torch.cat([torch.zeros(0), x, y[:, :0].reshape(0, 4)]),
    "cat_promotes": lambda x, y: torch.cat([x, (y > 0)]),
    "cat_constants": lambda x, y: torch.cat([torch.zeros(3, 4), x]),
    "cat_positions": lambda x, y: torch.cat([torch.arange(x.shape[0]), torch.arange(y.shape[0])]),
    "hstack": lambda x, y: torch.hstack([x, x * 2]),
    "pad": lambda x, y: F.pad(x, (1, 2), value=3.0),
    "pad_both": lambda x, y: F.pad(x, (0, 1, 2, 0)),
    "pad_cut": lambda x, y: F.pad(x, (-1, -1, 1, 0)),
    "select_scatter": lambda x, y: torch.select_scatter(x, x[:, 0] * 2, 1, 2),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3),
    "write": lambda x, y: _written(x),
    "stack": lambda x, y: torch.stack([x, x + 1, x + 2]),
    "stack_last": lambda x, y: torch.stack([x, x + 1], -1),
    "vstack": lambda x, y: torch.vstack([x, y]),
}


def _written(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 1:3] = 5.0
    x[:, 0] = x[:, 3]
    return x


@pytest.fixture(scope="module")
def views() -> Imported:
    return Imported.table(VIEWS, [torch.randn(4, 5, 6)], [{0: "a", 1: "b"}], low=1, high=9)


@quick
@given(a=sizes(1, 9), b=sizes(1, 9))
def test_views(views: Imported, a: int, b: int) -> None:
    views.check(torch.randn(a, b, 6))


def test_views_are_views(views: Imported) -> None:
    """No element is moved but where a view says so: there is no loop but the one of `copy`."""
    assert str(views.imported.module).count("shapejit.loop") <= 1


@pytest.fixture(scope="module")
def joins() -> Imported:
    examples = [torch.randn(5, 4), torch.randn(3, 4)]
    return Imported.table(JOINS, examples, [{0: "a"}, {0: "b"}], low=0, high=9)


@quick
@given(a=sizes(0, 9), b=sizes(0, 9))
def test_joins(joins: Imported, a: int, b: int) -> None:
    joins.check(torch.randn(a, 4), torch.randn(b, 4))


def test_slices_clamp_at_small_sizes() -> None:
    """torch traced with a size of 5; the slices must be empty, not negative, at sizes 0 and 1."""
    functions = {
        "drop_two": lambda x: x[2:] * 2,
        "drop_ends": lambda x: x[1:-1] * 2,
        "differences": lambda x: x[1:] - x[:-1],
        "windows": lambda x: torch.diff(x, dim=0),
    }
    imported = Imported.table(functions, [torch.randn(5, 4)], [{0: "a"}], low=0, high=9)
    for size in (0, 1, 2, 3, 9):
        imported.check(torch.randn(size, 4))
    assert any(symbol.derived for symbol in imported.imported.symbols)
