# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scans and sorts on the CPU: against PyTorch and by their laws, on one thread and on three."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from shapejit.passes.cpu.scans import BLOCK
from unit.cpu_kernels import DTYPES, CpuKernel, assert_close, examples
from unit.row_kernels import random_rows, scan, sort, top

_LENGTHS = st.one_of(st.sampled_from([0, 1, 7, 8, 9, 16, 17, 255]), st.integers(0, 700))


@functools.cache
def _scan(kind: str, element: str, indexed: bool = False) -> CpuKernel:
    return CpuKernel(scan(kind, element, indexed=indexed))


@functools.cache
def _sort(element: str, descending: bool, head: str = "s1") -> CpuKernel:
    return CpuKernel(sort(element, descending=descending, head=head))


# Scans --------------------------------------------------------------------------------------------


@examples(12)
@given(rows=st.integers(0, 5), length=_LENGTHS, kind=st.sampled_from(["add", "mul"]))
def test_sums_and_products(rows: int, length: int, kind: str) -> None:
    x = torch.rand(rows, length) + (0.5 if kind == "mul" else -0.5)
    [y] = _scan(kind, "f32")([x], rows, length)
    reference = x.double().cumsum(1) if kind == "add" else x.double().cumprod(1)
    own = x.cumsum(1) if kind == "add" else x.cumprod(1)
    assert_close(y, reference, own)


@pytest.mark.parametrize("rows", [1, 5])
def test_few_long_rows_are_cut_into_blocks(rows: int) -> None:
    length = 5 * BLOCK + 3
    x = torch.randn(rows, length)
    [y] = _scan("add", "f32")([x], rows, length)
    assert_close(y, x.double().cumsum(1), x.cumsum(1))
    numbers = torch.randint(-1000, 1000, (rows, length))
    [z] = _scan("add", "i64")([numbers], rows, length)
    assert torch.equal(z, numbers.cumsum(1))
    values, places = _scan("max", "f32", True)([x], rows, length)
    assert torch.equal(values, x.cummax(1)[0])
    assert torch.equal(places, x.cummax(1)[1])


def test_rows_and_blocks_give_the_same_bits() -> None:
    # One row is cut into blocks for threads, six rows are not.
    x = torch.randn(1, 3 * BLOCK + 5)
    [alone] = _scan("add", "f32")([x], *x.shape)
    [among] = _scan("add", "f32")([x.expand(6, -1)], 6, x.shape[1])
    assert torch.equal(alone[0], among[3])


@examples(10)
@given(rows=st.integers(0, 4), length=_LENGTHS, element=st.sampled_from(["f32", "i8", "bf16"]))
@example(2, 40, "f32")
def test_extrema_and_their_places(rows: int, length: int, element: str) -> None:
    x = random_rows(DTYPES[element], rows, length, nan=True)
    for kind in ("max", "min"):
        values, places = _scan(kind, element, True)([x], rows, length)
        wanted = x.cummax(1) if kind == "max" else x.cummin(1)
        torch.testing.assert_close(values, wanted[0], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(places, wanted[1])


@examples(8)
@given(rows=st.integers(0, 4), length=_LENGTHS, element=st.sampled_from(["f32", "f64"]))
def test_log_sums(rows: int, length: int, element: str) -> None:
    x = torch.randn(rows, length, dtype=DTYPES[element]) * 20
    if length > 3:
        x[:, 1] = -math.inf
        x[:, length // 2] = math.inf
    [y] = _scan("logaddexp", element)([x], rows, length)
    torch.testing.assert_close(y, x.double().logcumsumexp(1).to(y.dtype), rtol=1e-5, atol=1e-5)


def test_half_sums_are_rounded_once() -> None:
    x = torch.rand(3, 500).bfloat16()
    [y] = _scan("add", "bf16")([x], 3, 500)
    assert torch.equal(y, x.float().cumsum(1).bfloat16())


@examples(8)
@given(length=st.integers(1, 700), cut=st.integers(0, 699))
def test_a_scan_of_the_rest_carries_on(length: int, cut: int) -> None:
    cut = min(cut, length)
    x = torch.randint(-99, 99, (2, length))
    [whole] = _scan("add", "i64")([x], 2, length)
    [rest] = _scan("add", "i64")([x[:, cut:]], 2, length - cut)
    before = whole[:, cut - 1 : cut] if cut else torch.zeros(2, 1, dtype=torch.int64)
    assert torch.equal(whole[:, cut:], rest + before)


# Sorts --------------------------------------------------------------------------------------------


def _check_sort(x: Tensor, values: Tensor, places: Tensor, descending: bool) -> None:
    wanted, wanted_places = torch.sort(x, dim=1, descending=descending, stable=True)
    assert torch.equal(places, wanted_places[:, : places.shape[1]])
    wanted = wanted[:, : values.shape[1]]
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)


@examples(25)
@given(
    rows=st.integers(0, 4),
    length=_LENGTHS,
    element=st.sampled_from(["f32", "bf16", "f64", "i64", "i8"]),
    descending=st.booleans(),
)
@example(1, 5000, "f32", True)
@example(2, 2048, "i64", False)
def test_sorts_are_stable(rows: int, length: int, element: str, descending: bool) -> None:
    x = random_rows(DTYPES[element], rows, length, nan=True)
    values, places = _sort(element, descending)([x], rows, length)
    _check_sort(x, values, places, descending)
    # A permutation of the row, whose values are the elements at these places.
    assert torch.equal(places.sort(1)[0], torch.arange(length).expand(rows, -1))
    fetched = x.gather(1, places)
    torch.testing.assert_close(values, fetched, rtol=0, atol=0, equal_nan=True)


@examples(15)
@given(
    rows=st.integers(0, 4),
    length=st.integers(5, 3000),
    element=st.sampled_from(["f32", "f16", "f64", "i1"]),
    order=st.sampled_from(["random", "best first", "best last"]),
)
def test_heads_are_those_of_sorts(rows: int, length: int, element: str, order: str) -> None:
    x = random_rows(DTYPES[element], rows, length, nan=True)
    if order != "random" and element != "i1":
        x = torch.sort(x, dim=1, descending=order == "best first")[0]
    values, places = _sort(element, True, "5")([x], rows, length)
    _check_sort(x, values, places, True)


@pytest.mark.parametrize("head", [0, 1, 100, 300])
def test_heads_of_unknown_length(head: int) -> None:
    x = torch.randn(3, 300)
    values, places = CpuKernel(top("f32"))([x], 3, 300, head)
    _check_sort(x, values, places, True)
    assert values.shape == (3, head)


@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_narrow_vectors(vector_bytes: int) -> None:
    x = torch.randn(2, 700)
    values, places = CpuKernel(sort("f32"), vector_bytes=vector_bytes)([x], 2, 700)
    _check_sort(x, values, places, False)
    [y] = CpuKernel(scan("add", "f32"), vector_bytes=vector_bytes)([x], 2, 700)
    assert_close(y, x.double().cumsum(1), x.cumsum(1))
