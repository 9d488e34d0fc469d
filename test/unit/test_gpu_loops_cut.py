# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows whose length is no multiple of a vector's, cut where addresses are multiples."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unit import gpu_loop_samples as samples
from unit.cpu_kernels import access, examples, tensor
from unit.gpu_loop_samples import Sample, assert_near, values
from unit.simulated_loops import GpuKernel

SOFTMAX = samples.softmax("bf16")


@functools.cache
def _lowered(text: str, variant: str) -> GpuKernel:
    return GpuKernel(text, variant)


def check(
    element: str, sample: Sample, variant: str, m: int, n: int, shifts: tuple[int, ...] = ()
) -> None:
    inputs = sample.inputs(m, n)
    kernel = _lowered(sample.text, variant)
    got = kernel(inputs, m, n, shifts=shifts, multiprocessors=8)
    assert_near(element, got, sample.expected(*inputs))


WAYS = {
    "a warp": "loops_v8_w1_k2_t64_c1",
    "wide indices": "loops_v8_w1_k2_t64_c1_wide",
    "two warps": "loops_v4_w2_k2_t64_c1",
    "a cluster": "loops_v8_w2_k1_t64_c1_x2",
    "read again": "loops_v8_w2_k0_t64_c1",
    "a cluster, read again": "loops_v4_w2_k0_t64_c1_x2",
}


@pytest.mark.parametrize("way", WAYS)
@given(m=st.integers(0, 4), n=st.integers(0, 600))
@examples(4)
def test_rows_of_any_length(way: str, m: int, n: int) -> None:
    check("bf16", SOFTMAX, WAYS[way], m, n)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 15, 16, 17])
def test_rows_shorter_than_head_and_tail(n: int) -> None:
    check("bf16", SOFTMAX, WAYS["a warp"], 11, n)


@pytest.mark.parametrize("shifts", [(2, 0), (0, 2), (16, 16), (6, 6)])
def test_addresses_that_are_no_multiples(shifts: tuple[int, int]) -> None:
    check("bf16", SOFTMAX, WAYS["a warp"], 5, 77, shifts)


@pytest.mark.parametrize(("element", "vector"), [("bf16", 8), ("f32", 4), ("f64", 2)])
@pytest.mark.parametrize("width", [201])
def test_what_all_rows_share(element: str, vector: int, width: int) -> None:
    """Weights have no vectors there: they start at other places than the row."""
    sample = samples.layer_norm(element, width, residual=True)
    check(element, sample, f"loops_v{vector}_w1_k4_t64_c1", 9, 0)


def total(*sizes: str) -> str:
    """The sum of all elements, as one row."""
    x, y, rank = tensor("i8", *sizes), tensor("i32"), len(sizes)
    dims = ", ".join(f"d{i}" for i in range(rank))
    return f"""
        shapejit.kernel @k symbols {rank} (%x: {x}) {{
          %y = shapejit.loop over [{", ".join(sizes)}] ins(%x at {access(rank, dims)} : {x})
              outs(add {access(rank, "")} : {y}) {{
          ^bb0(%v: i8):
            %w = arith.extsi %v : i8 to i32
            shapejit.yield %w : i32
          }}
          shapejit.yield %y : {y}
        }}"""


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 5), (7, 129), (0, 3)])
def test_columns_of_two_dims_are_not_cut(m: int, n: int) -> None:
    x = values("i8", m, n)
    [y] = _lowered(total("s0", "s1"), "loops_v16_w2_k0_t64_c1")([x], m, n)
    assert y.item() == x.to(torch.int32).sum().item()


def test_a_single_row() -> None:
    """There is no row dim: the only row starts at a multiple, and has a tail."""
    for n in (1, 15, 16, 1001):
        v = values("i8", n)
        [got] = _lowered(total("s0"), "loops_v16_w2_k2_t64_c1")([v], n)
        assert got.item() == v.to(torch.int32).sum().item()


@pytest.mark.parametrize(
    ("variant", "vectors"), [("loops_v8_w4_k1_t128_c12_next", 1), ("loops_v8_w1_k4_t256_c3", 4)]
)
def test_vectors_are_loaded(variant: str, vectors: int) -> None:
    """Of rows of 1001 elements, by vectors and one more load; not element by element."""
    code = GpuKernel(samples.softmax("bf16", 1001).text, variant).ptx().ptx
    # The last way reads rows of any length and address one by one, and so it does in each pass.
    assert code.count("ld.global.v4.b32") == vectors


def test_rows_of_odd_lengths_are_cut() -> None:
    text = samples.softmax("bf16", 1001).text
    [variant] = set(GpuKernel(text, sizes={0: (5000, 5000), 1: (0, 0)}).variants)
    assert variant == "loops_v8_w4_k1_t128_c12_next"
