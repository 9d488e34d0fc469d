# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention on the CPU with numbers of keys that memory holds, against float64."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unit.cpu_kernels import CpuKernel, assert_close, examples
from unit.simulated_attention import Attention
from unit.simulated_spans import SpanAttention

VARIANTS = {
    "of batches": SpanAttention(2, element="f32", lengths="i32"),
    "of a cache": SpanAttention(4, 2, element="f32", lengths="i64", shared=True),
    "causal from the end": SpanAttention(
        4, 1, element="f32", lengths="i32", shared=True, causal="0", from_end=True
    ),
    "causal from the start": SpanAttention(2, element="f32", lengths="i64", causal="-2"),
    "less one, of batches": SpanAttention(
        2, d=16, element="f32", lengths="i32", causal="-1", from_end=True
    ),
    "beyond the largest head": SpanAttention(
        1, d=257, element="f32", lengths="i32", causal="0", from_end=True
    ),
    "from the end without lengths": SpanAttention(2, element="f32", causal="1", from_end=True),
}


@functools.cache
def kernel_of(attention: Attention) -> CpuKernel:
    return CpuKernel(attention.text)


@pytest.mark.parametrize("name", VARIANTS)
@given(
    b=st.integers(0, 3),
    m=st.one_of(st.sampled_from([0, 1, 130]), st.integers(0, 40)),
    n=st.one_of(st.sampled_from([0, 1, 128, 129, 300]), st.integers(0, 300)),
)
@examples(12)
def test_lengths(name: str, b: int, m: int, n: int) -> None:
    attention = VARIANTS[name]
    torch.manual_seed(b + 7 * m + 1009 * n)
    inputs = attention.inputs(b, m, n)
    [got] = kernel_of(attention)(inputs, *attention.symbols(b, m, n))
    assert_close(got, attention.reference(inputs, b, m, n))
