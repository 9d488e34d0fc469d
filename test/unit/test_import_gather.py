# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules of gathers and of tensors made from nothing, and arithmetic on sizes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given

from reference.importing import Imported, quick, sizes

# table is [11, 6], ids [a, b] in 0..10, x [a, b, 6], rows [b] in -5..4 for x's static dim.
GATHERS = {
    "embedding": lambda table, ids, x, rows: F.embedding(ids, table),
    "gather": lambda table, ids, x, rows: x.gather(2, ids[..., None] % 6),
    "gather_rows": lambda table, ids, x, rows: table.gather(0, ids[:, :1].expand(-1, 6)),
    "index": lambda table, ids, x, rows: table[ids],
    "index_two": lambda table, ids, x, rows: table[ids, ids % 6],
    "index_broadcast": lambda table, ids, x, rows: table[ids[:, :1], ids[:1] % 6],
    "index_last": lambda table, ids, x, rows: x[:, :, rows],
    "index_middle": lambda table, ids, x, rows: x[:, rows * 0, 1:],
    "index_apart": lambda table, ids, x, rows: x[rows * 0, :, rows],
    "index_positions": lambda table, ids, x, rows: x[
        torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None, :]
    ],
    "index_last_position": lambda table, ids, x, rows: x[torch.arange(x.shape[0]), -1],
    "index_reversed": lambda table, ids, x, rows: x[:, x.shape[1] - 1 - torch.arange(x.shape[1])],
    "index_select": lambda table, ids, x, rows: x.index_select(2, rows.abs() % 6),
    "one_hot": lambda table, ids, x, rows: F.one_hot(ids, 11),
    "take": lambda table, ids, x, rows: table.take(ids * 3),
}

# Only the sizes of x [a, b] are read.
CREATION = {
    "arange": lambda x: torch.arange(x.shape[1]),
    "arange_float": lambda x: torch.arange(x.shape[1], dtype=torch.float32) / 3,
    "arange_narrow": lambda x: torch.arange(x.shape[1], dtype=torch.int8) * 100 > 0,
    "arange_start": lambda x: torch.arange(2, x.shape[0] + 4),
    "arange_step": lambda x: torch.arange(0, x.shape[0] * 2 + 1, 3),
    "arange_down": lambda x: torch.arange(x.shape[0], -1, -1),
    "arange_static": lambda x: torch.arange(0.5, 4.0, 0.75),
    "eye": lambda x: torch.eye(x.shape[0], x.shape[1]),
    "full": lambda x: torch.full((x.shape[0], 3), 2.5),
    "full_like": lambda x: torch.full_like(x, 7, dtype=torch.int64),
    "full_size": lambda x: torch.full((2, x.shape[1]), x.shape[0]),
    "linspace": lambda x: torch.linspace(0, 1, 5),
    "new_full": lambda x: x.new_full((x.shape[1],), 1.5),
    "new_ones": lambda x: x.new_ones(x.shape[1], dtype=torch.bool),
    "new_zeros": lambda x: x.new_zeros(2, x.shape[0]),
    "ones": lambda x: torch.ones(x.shape[0], x.shape[1]) * 2,
    "scalar": lambda x: torch.tensor(1.5) * x,
    "tril": lambda x: x.tril(),
    "tril_mask": lambda x: torch.ones(x.shape[0], x.shape[1], dtype=torch.bool).tril(1),
    "triu": lambda x: x.triu(1),
    "zeros_like": lambda x: torch.zeros_like(x) - 1,
    # Formulas of positions.
    "causal": lambda x: torch.arange(x.shape[1])[None] <= torch.arange(x.shape[0])[:, None],
    "distance": lambda x: torch.arange(x.shape[1])[None] - torch.arange(x.shape[0])[:, None],
    "even": lambda x: torch.arange(x.shape[1]) % 2 == 0,
    "not_causal": lambda x: ~(torch.arange(x.shape[1])[None] <= torch.arange(x.shape[0])[:, None]),
    "halved": lambda x: torch.arange(x.shape[1]) // 2 * 3,
    "band": lambda x: (torch.arange(x.shape[1]) > 1) & (torch.arange(x.shape[1]) < x.shape[1] - 1),
    "same": lambda x: torch.arange(x.shape[1]) == torch.arange(x.shape[1]),
    "either": lambda x: (torch.arange(x.shape[1]) < 2) | (torch.arange(x.shape[1]) > 4),
    "bias": lambda x: torch.where(torch.arange(x.shape[1]) < 3, 0.0, -math.inf) + x,
    # Sizes in arithmetic.
    "add_size": lambda x: x + x.shape[0],
    "divide_size": lambda x: x / x.shape[1],
    "float_of_size": lambda x: x * (x.shape[1] ** 0.5),
    "inverse_size": lambda x: x * (1.0 / (x.shape[0] * x.shape[1] + 1)),
    "int_of_size": lambda x: torch.arange(x.shape[1]) * x.shape[0] + x.shape[0] // 2,
    "max_of_sizes": lambda x: x.new_zeros(torch.sym_max(x.shape[0], x.shape[1]) + 1) + 1,
}


@pytest.fixture(scope="module")
def gathers() -> Imported:
    ids = torch.randint(0, 11, (4, 5))
    examples = [torch.randn(11, 6), ids, torch.randn(4, 5, 6), torch.arange(5) - 2]
    dims = [{}, {0: "a", 1: "b"}, {0: "a", 1: "b"}, {0: "b"}]
    return Imported.table(GATHERS, examples, dims, low=1, high=9)


@quick
@given(a=sizes(1, 9), b=sizes(1, 9))
def test_gathers(gathers: Imported, a: int, b: int) -> None:
    gathers.check(
        torch.randn(11, 6),
        torch.randint(0, 11, (a, b)),
        torch.randn(a, b, 6),
        torch.randint(-6, 6, (b,)),
    )


def test_indexing_by_positions_is_a_view() -> None:
    functions = {name: GATHERS[name] for name in ("index_positions", "index_reversed")}
    examples = [torch.randn(11, 6), torch.zeros(4, 5, dtype=torch.int64), torch.randn(4, 5, 6),
                torch.arange(5)]  # fmt: skip
    dims = [{}, {0: "a", 1: "b"}, {0: "a", 1: "b"}, {0: "b"}]
    imported = Imported.table(functions, examples, dims)
    text = str(imported.imported.module)
    assert "tensor.extract" not in text


def test_indices_out_of_bounds_are_clamped() -> None:
    table = torch.arange(8.0).reshape(4, 2)
    imported = Imported.table(
        {"rows": lambda t, i: F.embedding(i, t)}, [table, torch.tensor([0, 1])], [{}, {0: "a"}]
    )
    rows = imported.run(table, torch.tensor([-5, 2, 9]))["rows"]
    assert rows.tolist() == [[0, 1], [4, 5], [6, 7]]


@pytest.fixture(scope="module")
def creation() -> Imported:
    return Imported.table(CREATION, [torch.randn(4, 5)], [{0: "a", 1: "b"}], low=0, high=9)


@quick
@given(a=sizes(0, 9), b=sizes(0, 9))
def test_creation(creation: Imported, a: int, b: int) -> None:
    creation.check(torch.randn(a, b))
