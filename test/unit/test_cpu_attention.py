# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention on the CPU against float64 torch, at random sizes, 0 and 1 included."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unit.cpu_kernels import DTYPES, CpuKernel, access, assert_close, examples, tensor

BATCHES = st.integers(0, 3)
LENGTHS = st.one_of(
    st.sampled_from([0, 1, 2, 6, 12, 13, 17, 127, 128, 129, 256, 257]), st.integers(0, 300)
)


@dataclass(frozen=True)
class Variant:
    """Attention over [s0, heads, s1, s2, d, dv]; q, k, v and result hold heads in their last dim.

    Attributes:
        heads, groups: heads of q, and of k and v.
        d, dv: head sizes.
        mask: element type of the mask, if any.
        mask_shape: its sizes over batch, heads, m, n; 1 is broadcast.
        causal: offset over s1 and s2, if causal.
        element: element type of the tensors.
    """

    heads: int
    d: int
    dv: int
    groups: int | None = None
    mask: str | None = None
    mask_shape: str = "s0, 1, 1, s2"
    causal: str | None = None
    element: str = "f32"

    @property
    def kv_heads(self) -> int:
        return self.groups or self.heads


@functools.cache
def kernel_of(variant: Variant, vector_bytes: int | None = None) -> CpuKernel:
    heads, d, dv, groups = variant.heads, variant.d, variant.dv, variant.kv_heads
    share = f"d1 floordiv {heads // groups}" if groups != heads else "d1"
    q = tensor(variant.element, "s0", "s1", heads * d)
    k = tensor(variant.element, "s0", "s2", groups * d)
    v = tensor(variant.element, "s0", "s2", groups * dv)
    y = tensor(variant.element, "s0", "s1", heads * dv)
    argument, operand = "", ""
    if variant.mask:
        sizes = variant.mask_shape.split(", ")
        mask = tensor(variant.mask, *(int(s) if s.isdigit() else s for s in sizes))
        at = ", ".join("0" if size == "1" else f"d{i}" for i, size in enumerate(sizes))
        argument, operand = f", %mask: {mask}", f"mask(%mask at {access(4, at)} : {mask})"
    causal = (
        f", causal = affine_map<()[s0, s1, s2] -> ({variant.causal})>" if variant.causal else ""
    )
    return CpuKernel(
        f"""
        shapejit.kernel @k symbols 3 (%q: {q}, %k: {k}, %v: {v}{argument}) {{
          %0 = shapejit.attention over [s0, {heads}, s1, s2, {d}, {dv}]
              q(%q at {access(4, f"d0, d2, d1 * {d} + d3")} : {q})
              k(%k at {access(4, f"d0, d2, ({share}) * {d} + d3")} : {k})
              v(%v at {access(4, f"d0, d2, ({share}) * {dv} + d3")} : {v})
              {operand} {{scale = {d**-0.5} : f64{causal}}}
              -> {access(4, f"d0, d2, d1 * {dv} + d3")} : {y}
          shapejit.yield %0 : {y}
        }}""",
        vector_bytes=vector_bytes,
    )


def reference(
    variant: Variant, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, offset: int | None
) -> Tensor:
    """Softmax attention in the dtype of the operands; a query that sees no key gives 0."""
    q = q.unflatten(-1, (variant.heads, variant.d)).transpose(1, 2)
    k = k.unflatten(-1, (variant.kv_heads, variant.d)).transpose(1, 2)
    v = v.unflatten(-1, (variant.kv_heads, variant.dv)).transpose(1, 2)
    share = variant.heads // variant.kv_heads
    scores = q @ k.repeat_interleave(share, 1).transpose(2, 3) * variant.d**-0.5
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.to(scores.dtype)
    if offset is not None:
        m, n = scores.shape[2:]
        seen = torch.arange(n) <= torch.arange(m)[:, None] + offset
        scores = scores.masked_fill(~seen, -math.inf)
    weights = torch.softmax(scores, -1)
    weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    return (weights @ v.repeat_interleave(share, 1)).transpose(1, 2).flatten(2)


def check(variant: Variant, b: int, m: int, n: int, vector_bytes: int | None = None) -> None:
    dtype = DTYPES[variant.element]
    q = torch.randn(b, m, variant.heads * variant.d, dtype=dtype)
    k = torch.randn(b, n, variant.kv_heads * variant.d, dtype=dtype)
    v = torch.randn(b, n, variant.kv_heads * variant.dv, dtype=dtype)
    inputs, mask = [q, k, v], None
    if variant.mask:
        names = {"s0": b, "s1": m, "s2": n}
        sizes = [names.get(s) or int(s) if s.isdigit() else names[s] for s in _sizes(variant)]
        mask = torch.rand(sizes) > 0.4
        if variant.mask != "i1":
            floats = torch.randn(sizes, dtype=DTYPES[variant.mask])
            mask = floats.masked_fill(mask, -math.inf)
        inputs.append(mask)
    offset = {"s2 - s1": n - m, "0": 0, "-3": -3, None: None}[variant.causal]
    [y] = kernel_of(variant, vector_bytes)(inputs, b, m, n)
    double = mask if mask is None or mask.dtype == torch.bool else mask.double()
    expected = reference(variant, q.double(), k.double(), v.double(), double, offset)
    assert_close(y, expected, reference(variant, q, k, v, mask, offset))


def _sizes(variant: Variant) -> list[str]:
    return variant.mask_shape.split(", ")


VARIANTS = {
    "plain": Variant(12, 32, 32),
    "padding mask": Variant(3, 32, 32, mask="i1"),
    "full bool mask": Variant(2, 16, 16, mask="i1", mask_shape="s0, 2, s1, s2"),
    "float mask": Variant(2, 64, 64, mask="f32", mask_shape="1, 1, s1, s2"),
    "causal": Variant(2, 64, 64, causal="0"),
    "causal with a cache": Variant(2, 16, 16, causal="s2 - s1"),
    "first queries see nothing": Variant(2, 16, 16, causal="-3"),
    "causal and mask": Variant(2, 8, 8, mask="i1", causal="s2 - s1"),
    "grouped queries": Variant(8, 16, 16, groups=2, causal="0"),
    "odd head sizes": Variant(3, 5, 7, mask="i1"),
    "head size one": Variant(2, 1, 1),
    "largest head size": Variant(1, 256, 256),
    "beyond the largest": Variant(1, 257, 300, mask="i1", causal="0"),
    "f64": Variant(2, 24, 40, mask="f64", element="f64"),
    "bf16": Variant(2, 32, 32, mask="i1", element="bf16"),
    "f16 with an f32 mask": Variant(2, 32, 32, mask="f32", element="f16"),
}


@pytest.mark.parametrize("name", VARIANTS)
@examples(15)
@given(b=BATCHES, m=LENGTHS, n=LENGTHS)
def test_variants(name: str, b: int, m: int, n: int) -> None:
    torch.manual_seed(m * 1000 + n)
    check(VARIANTS[name], b, m, n)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@examples(5)
@given(m=LENGTHS, n=LENGTHS)
def test_vector_widths(vector_bytes: int, m: int, n: int) -> None:
    """Also vectors that the CPU lacks, which LLVM splits."""
    check(VARIANTS["causal and mask"], 2, m, n, vector_bytes)


def test_one_query_against_a_long_cache() -> None:
    check(VARIANTS["causal with a cache"], 2, 1, 4001)


def test_large_scores_do_not_overflow() -> None:
    q = torch.full((1, 20, 24), 60.0)
    k = torch.randn(1, 300, 24) * 60
    v = torch.randn(1, 300, 24)
    variant = Variant(1, 24, 24)
    [y] = kernel_of(variant)([q, k, v], 1, 20, 300)
    assert_close(y, reference(variant, q.double(), k.double(), v.double(), None, None))


def test_nan_stays_in_its_query() -> None:
    variant = VARIANTS["padding mask"]
    q, k, v = (torch.randn(1, 30, 96) for _ in range(3))
    q[0, 7] = torch.nan
    mask = torch.ones(1, 1, 1, 30, dtype=torch.bool)
    [y] = kernel_of(variant)([q, k, v, mask], 1, 30, 30)
    rows = y.isnan().any(-1)[0]
    assert rows[7] and rows.sum() == 1
    assert y[0, 7].isnan().all()
