# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules of scans, sorts and what is read off sorted rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.importing import Imported, quick, sizes
from shapejit import ir as sir

# x is [a, b] of floats, n is [a, b] of int64 with ties.
SCANS = {
    "cummax": lambda x, n: tuple(x.cummax(1)),
    "cummax_int": lambda x, n: tuple(n.cummax(-1)),
    "cummax_u8": lambda x, n: tuple((n + 9).to(torch.uint8).cummax(0)),
    "cummin": lambda x, n: tuple(x.cummin(0)),
    "cumprod": lambda x, n: x.cumprod(1),
    "cumsum": lambda x, n: x.cumsum(0),
    "cumsum_bool": lambda x, n: (n > 0).cumsum(-1),
    "cumsum_dtype": lambda x, n: n.cumsum(1, dtype=torch.float32),
    "cumsum_int32": lambda x, n: n.to(torch.int32).cumsum(1),
    "cumsum_of_ones": lambda x, n: torch.ones_like(n).cumsum(1),
    "logcumsumexp": lambda x, n: x.logcumsumexp(1),
}
SORTS = {
    "argsort": lambda x, n: torch.argsort(n, dim=1, stable=True),
    "kthvalue": lambda x, n: x.kthvalue(1, 1)[0],
    "kthvalue_keep": lambda x, n: x.kthvalue(1, 0, keepdim=True)[0],
    "median": lambda x, n: tuple(x.median(1)),
    "median_keep": lambda x, n: x.median(0, keepdim=True)[0],
    "median_whole": lambda x, n: x.median(),
    "msort": lambda x, n: torch.msort(x),
    "sort": lambda x, n: tuple(torch.sort(x, dim=1, stable=True)),
    "sort_descending": lambda x, n: tuple(torch.sort(n, dim=-1, descending=True, stable=True)),
    "sort_first": lambda x, n: tuple(torch.sort(n, dim=0, stable=True)),
    "sort_bool": lambda x, n: tuple(torch.sort(n > 0, dim=1, stable=True)),
    "sort_u8": lambda x, n: tuple(torch.sort((n * 40).to(torch.uint8), dim=1, stable=True)),
    "topk": lambda x, n: torch.topk(x, 1)[0],
    "topk_least": lambda x, n: torch.topk(x, 1, dim=0, largest=False)[0],
    "topk_all": lambda x, n: torch.topk(x, x.shape[1])[0],
}


@pytest.fixture(scope="module")
def scans() -> Imported:
    examples = [torch.randn(4, 5), torch.arange(20).reshape(4, 5)]
    return Imported.table(SCANS, examples, [{0: "a", 1: "b"}] * 2, low=0, high=9)


@pytest.fixture(scope="module")
def sorts() -> Imported:
    examples = [torch.randn(4, 5), torch.arange(20).reshape(4, 5)]
    return Imported.table(SORTS, examples, [{0: "a", 1: "b"}] * 2, low=1, high=9)


def _with_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.rand_like(x) < 0.1, math.nan, x)


@quick
@given(a=sizes(0, 9), b=sizes(0, 9))
def test_scans(scans: Imported, a: int, b: int) -> None:
    scans.check(torch.randn(a, b), torch.randint(-4, 4, (a, b)))


@quick
@given(a=sizes(1, 9), b=sizes(1, 9), nan=st.booleans())
def test_sorts(sorts: Imported, a: int, b: int, nan: bool) -> None:
    x = torch.randn(a, b)
    sorts.check(_with_nan(x) if nan else x, torch.randint(-4, 4, (a, b)))


def test_scalars() -> None:
    functions = {
        "cumsum": lambda x: x.cumsum(0),
        "cummax": lambda x: tuple(x.cummax(0)),
        "median": lambda x: x.median(),
        "sort": lambda x: tuple(x.sort()),
        "topk": lambda x: tuple(x.topk(1)),
    }
    Imported.table(functions, [torch.tensor(3.0)], [{}]).check(torch.tensor(-2.0))


def _head(model: Imported) -> str:
    [sort] = [op for op in sir.walk(model.imported.module.operation) if op.name == "shapejit.sort"]
    return str(sir.shape_of(sort.results[0])[-1])


def test_long_heads_are_slices_of_whole_sorts() -> None:
    x = torch.randn(3, 5000)
    shapes = [{1: "b"}]
    short = Imported.table({"y": lambda x: x.topk(2048)[0]}, [x], shapes, low=3000, high=9000)
    long = Imported.table({"y": lambda x: x.topk(2049)[0]}, [x], shapes, low=3000, high=9000)
    assert _head(short) == "2048"
    assert _head(long) == "s0"
    long.check(torch.randn(3, 4000))


def test_the_median_of_nothing_is_nan() -> None:
    functions = {"median": lambda x: x.median()}
    found = Imported.table(functions, [torch.randn(4, 5)], [{0: "a", 1: "b"}], low=0, high=9)
    for shape in ((0, 5), (3, 0), (1, 1), (4, 7)):
        found.check(torch.randn(shape))
