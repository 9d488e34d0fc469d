# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scans and sorts on a simulated GPU, down to machine code, and the choice of their variants."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shapejit.passes.nvgpu.errors import LoweringError
from unit.cpu_kernels import DTYPES, assert_close, examples
from unit.row_kernels import random_rows, scan, sort, top
from unit.simulated_loops import GpuKernel

_CLUSTER = 8  # multiprocessors, for clusters of up to as many CTAs


@functools.cache
def _scan(kind: str, element: str, variant: str, indexed: bool = False) -> GpuKernel:
    return GpuKernel(scan(kind, element, indexed=indexed), variant)


@functools.cache
def _sort(element: str, variant: str, descending: bool, head: str = "s1") -> GpuKernel:
    return GpuKernel(sort(element, descending=descending, head=head), variant)


# Scans --------------------------------------------------------------------------------------------

_WARP, _CTA, _CROSS = "loops_v4_w1_k0_t64_c1", "loops_v2_w2_k0_t64_c1", "loops_v4_w2_k0_t64_c1_x4"


@pytest.mark.parametrize("variant", [_WARP, _CTA, _CROSS, f"{_CTA}_wide"])
@examples(5)
@given(rows=st.integers(0, 4), length=st.sampled_from([0, 1, 4, 31, 200, 513, 1024]))
def test_sums(variant: str, rows: int, length: int) -> None:
    x = torch.rand(rows, length) - 0.4
    [y] = _scan("add", "f32", variant)([x], rows, length, multiprocessors=_CLUSTER)
    assert_close(y, x.double().cumsum(1), x.cumsum(1))


@pytest.mark.parametrize("variant", [_WARP, _CROSS])
@pytest.mark.parametrize("element", ["f32", "i8", "bf16"])
def test_extrema_and_their_places(variant: str, element: str) -> None:
    for length in (1, 300):
        x = random_rows(DTYPES[element], 3, length, nan=True)
        kernel = _scan("max", element, variant, True)
        values, places = kernel([x], 3, length, multiprocessors=_CLUSTER)
        wanted = x.cummax(1)
        torch.testing.assert_close(values, wanted[0], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(places, wanted[1])


@pytest.mark.parametrize(
    ("kind", "element"), [("mul", "f64"), ("logaddexp", "f32"), ("add", "i64")]
)
def test_other_scans(kind: str, element: str) -> None:
    x = random_rows(DTYPES[element], 2, 150)
    [y] = _scan(kind, element, _CTA)([x], 2, 150)
    functions = {"mul": x.cumprod, "logaddexp": x.logcumsumexp, "add": x.cumsum}
    torch.testing.assert_close(y, functions[kind](1), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_misaligned_rows() -> None:
    x = torch.rand(3, 200)
    kernel = _scan("add", "f32", _WARP)
    [aligned] = kernel([x], 3, 200)
    [shifted] = kernel([x], 3, 200, shifts=(4, 8))
    assert torch.equal(aligned, shifted)


def test_results_do_not_depend_on_the_order_of_events() -> None:
    x = torch.randn(2, 900)
    kernel = _scan("add", "f32", _CROSS)
    first, second = (kernel([x], 2, 900, multiprocessors=_CLUSTER, seed=seed)[0] for seed in (1, 2))
    assert torch.equal(first, second)


# Sorts --------------------------------------------------------------------------------------------


def _check(x: Tensor, values: Tensor, places: Tensor, descending: bool) -> None:
    wanted, wanted_places = torch.sort(x, dim=1, descending=descending, stable=True)
    assert torch.equal(places, wanted_places[:, : places.shape[1]])
    wanted = wanted[:, : values.shape[1]]
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("variant", "element", "descending", "lengths"),
    [
        ("loops_v1_w1_k2_t64_c1", "f32", False, (0, 1, 33, 64)),
        ("loops_v1_w1_k2_t64_c1", "f16", True, (64,)),
        ("loops_v1_w1_k8_t64_c1", "bf16", True, (100, 256)),
        ("loops_v1_w2_k8_t64_c1", "i64", True, (65, 512)),
        ("loops_v1_w2_k2_t64_c1_x4", "f32", False, (1, 130, 512)),
        ("loops_v1_w2_k2_t64_c1_x2_wide", "f64", True, (200,)),
        ("loops_v2_w2_k0_t64_c1", "i8", False, (5, 128, 700)),
        ("loops_v2_w2_k0_t64_c1_x2", "f64", False, (130, 600)),
    ],
)
def test_sorts_are_stable(
    variant: str, element: str, descending: bool, lengths: tuple[int, ...]
) -> None:
    kernel = _sort(element, variant, descending)
    for length in lengths:
        x = random_rows(DTYPES[element], 2, length, nan=True)
        values, places = kernel([x], 2, length, multiprocessors=_CLUSTER)
        _check(x, values, places, descending)


@pytest.mark.parametrize(
    ("variant", "element", "head", "lengths"),
    [
        ("loops_v1_w2_k4_t64_c1", "f32", "5", (5, 200)),
        ("loops_v2_w2_k0_t64_c1", "f32", "5", (5, 128, 900)),
        ("loops_v2_w2_k0_t64_c1_x4", "i64", "50", (50, 600)),
    ],
)
def test_heads_are_those_of_sorts(
    variant: str, element: str, head: str, lengths: tuple[int, ...]
) -> None:
    for length in lengths:
        x = random_rows(DTYPES[element], 2, length, nan=True)
        # The best come last, so that every tile is taken.
        x = torch.sort(x, dim=1)[0]
        kernel = _sort(element, variant, True, head)
        values, places = kernel([x], 2, length, multiprocessors=_CLUSTER)
        _check(x, values, places, True)


def test_heads_of_unknown_length() -> None:
    kernel = GpuKernel(top("f32"), "loops_v1_w2_k0_t64_c1")
    x = torch.randn(2, 300)
    for head in (0, 7):
        values, places = kernel([x], 2, 300, head)
        _check(x, values, places, True)


# Variants -----------------------------------------------------------------------------------------


def _variants(text: str, rows: int, length: int) -> GpuKernel:
    return GpuKernel(text, sizes={0: (0, rows), 1: (0, length)})


def test_long_rows_are_cut_over_clusters_where_they_are_few() -> None:
    kernel = _variants(scan("add", "f32"), 1000, 200000)
    assert [str(axis) for axis in kernel.axes] == ["s1", "s0"]
    serving = {lower: variant for lower, _, variant, _ in kernel.buckets}
    assert serving[(16385, 0)].endswith("_x16")
    assert serving[(16385, 34)] == "loops_v4_w32_k0_t1024_c1"
    assert serving[(0, 0)] == "loops_v4_w1_k0_t256_c4"


@pytest.mark.parametrize("text", [scan("add", "f32"), sort("f64"), sort("f32", head="50")])
def test_buckets_cover_all_sizes_once(text: str) -> None:
    kernel = _variants(text, 500, 400000)
    for length in (0, 1, 64, 65, 1024, 1025, 16384, 16385, 131072, 262145, 400000):
        for rows in (0, 1, 8, 9, 16, 33, 34, 500):
            sizes = (rows, length)
            serving = [
                variant
                for lower, upper, variant, _ in kernel.buckets
                if all(
                    low <= axis.evaluate(sizes) and (high is None or axis.evaluate(sizes) <= high)
                    for axis, low, high in zip(kernel.axes, lower, upper, strict=True)
                )
            ]
            assert len(serving) == 1, (rows, length)


def test_known_sizes_have_one_variant() -> None:
    kernel = _variants(scan("add", "f32"), 1000, 100)
    assert not kernel.axes
    assert kernel.variants == ["loops_v4_w1_k0_t256_c4"]


@pytest.mark.parametrize(
    "text", [scan("max", "bf16", indexed=True), sort("f32"), sort("f64"), sort("f32", head="50")]
)
def test_variants_assemble(text: str) -> None:
    kernel = _variants(text, 1000, 1 << 20)
    variants = sorted(set(kernel.variants))
    # One of each way: ptxas takes a second for each.
    for variant in (variants[0], variants[-1]):
        assert GpuKernel(text, variant).assemble()


def test_what_cannot_be_lowered_is_refused() -> None:
    with pytest.raises(LoweringError, match="a power of 2 is"):
        GpuKernel(sort("f32"), "loops_v1_w1_k3_t64_c1")
    with pytest.raises(LoweringError, match="heads of up to 2048"):
        GpuKernel(sort("f32", head="2049"), "loops_v1_w1_k2_t64_c1")
    with pytest.raises(LoweringError, match="up to 16 CTAs share a row"):
        GpuKernel(scan("add", "f32"), "loops_v1_w1_k0_t64_c1_x4")
