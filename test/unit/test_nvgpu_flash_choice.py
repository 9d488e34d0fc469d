# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which sizes of attention are served by flash kernels, and by which of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit import ir as sir
from shapejit.passes.buckets.device import H200
from shapejit.passes.nvgpu.attention.flash_choice import (
    MASKED_TIERS,
    SHORT,
    TIERS,
    Bounds,
    candidates,
    flash_buckets,
    predicted,
    serves,
)
from shapejit.passes.nvgpu.attention.lowering import stake
from shapejit.passes.nvgpu.attention.problem import AttentionProblem, attention_problem
from shapejit.passes.nvgpu.families import STAKE
from shapejit.symbolic import Expr
from unit.cpu_kernels import examples
from unit.simulated_attention import Attention
from unit.test_nvgpu_attention_choice import chosen, holds

ir = pytest.importorskip("mlir.ir")

LONG = {0: (1, 16), 1: (65, 8192), 2: (1, 8192)}


def problem_of(attention: Attention) -> AttentionProblem:
    module = ir.Module.parse(attention.text)
    return attention_problem(sir.kernels(module)["k"])


def variant_at(attention: Attention, bounds: dict[int, Bounds], b: int, m: int, n: int) -> str:
    axes, buckets = chosen(attention, bounds)
    at = [axis.evaluate([b, m, n]) for axis in axes]
    [variant] = [
        variant for lower, upper, variant, _ in buckets if holds((lower, upper, "", ""), at)
    ]
    return variant


@pytest.mark.parametrize("d", [64, 96, 128])
@pytest.mark.parametrize("causal", [None, "0"])
def test_long_sequences_are_for_flash_kernels(d: int, causal: str | None) -> None:
    attention = Attention(16, d=d, causal=causal)
    for b, m, n in (
        (1, 100, 257),
        (1, 512, 512),
        (4, 1024, 1000),
        (16, 8192, 8192),
        (16, 256, 200),
    ):
        assert variant_at(attention, LONG, b, m, n).startswith("flash_")
    for b, m, n in ((1, 65, 64), (1, 100, 256)):
        assert variant_at(attention, LONG, b, m, n).startswith("tiles_")


def test_heads_of_32_keep_tiles_longer() -> None:
    attention = Attention(12, d=32)
    assert variant_at(attention, LONG, 16, 1024, 1024).startswith("tiles_128x64")
    assert variant_at(attention, LONG, 1, 1024, 1025).startswith("flash_")


def test_few_tiles_are_small_and_many_are_large() -> None:
    """64 queries a tile while every multiprocessor has at most one, 192 when it has many."""
    for d in (64, 128):
        attention = Attention(16, d=d)
        assert variant_at(attention, LONG, 1, 512, 512).startswith("flash_64x")
        assert variant_at(attention, LONG, 16, 8192, 8192).startswith("flash_192x")
    causal = Attention(16, d=128, causal="0")
    assert variant_at(causal, LONG, 16, 8192, 8192) == "flash_128x128_s5_c1"


@pytest.mark.parametrize(
    "attention",
    [
        Attention(2, d=20),  # rows 40 elements, but heads 20 apart
        Attention(2, d=64, layout="bhdm"),
        Attention(2, d=32, dv=96),
    ],
)
def test_what_tma_cannot_read_keeps_tiles(attention: Attention) -> None:
    with ir.Context(), ir.Location.unknown():
        assert not serves(problem_of(attention))
    _, buckets = chosen(attention, LONG)
    assert not any(variant.startswith("flash") for _, _, variant, _ in buckets)


def test_masks_of_elements_have_schedules_of_their_own() -> None:
    masked = Attention(16, d=64, mask="f32", mask_shape="s0, 1, s1, s2")
    _, buckets = chosen(masked, LONG)
    flash = {variant for _, _, variant, _ in buckets if variant.startswith("flash")}
    assert flash == set(map(str, MASKED_TIERS[64]))
    keys = Attention(16, d=64, mask="i1")
    assert variant_at(keys, LONG, 16, 8192, 8192).startswith("flash_192x")


def test_sizes_that_are_known_need_no_axis() -> None:
    attention = Attention(16, d=128, layout="packed")
    axes, [(lower, upper, variant, _)] = chosen(attention, {0: (4, 4), 1: (2048, 2048)})
    assert (axes, lower, upper) == ([], (), ())
    assert variant.startswith("flash_")
    axes, buckets = chosen(attention, {0: (1, 16), 1: (1, SHORT[128])})
    assert axes == [Expr.parse("s0*s1")]
    assert [variant.split("_")[0] for _, _, variant, _ in buckets][:2] == ["tiles", "tiles"]


@given(
    rows=st.tuples(st.integers(0, 3000), st.one_of(st.none(), st.integers(0, 50_000))),
    keys=st.tuples(st.integers(0, 300), st.one_of(st.none(), st.integers(0, 20_000))),
    heads=st.integers(1, 40),
    d=st.sampled_from([64, 128, 256]),
    data=st.data(),
)
@examples(40)
def test_buckets_cover_their_rectangle(
    rows: Bounds, keys: Bounds, heads: int, d: int, data: st.DataObject
) -> None:
    """Once, whatever it is, and with schedules for the head size."""
    rows, keys = ((low, None if extent is None else low + extent) for low, extent in (rows, keys))
    with ir.Context(), ir.Location.unknown():
        problem = problem_of(Attention(heads, d=d))
        buckets = flash_buckets(problem, heads, rows, keys, H200)
    assert {variant for _, _, variant, _ in buckets} <= set(map(str, TIERS[d]))
    for _ in range(5):
        at = [
            data.draw(st.integers(low, 1 << 21 if high is None else high))
            for low, high in (rows, keys)
        ]
        assert sum(holds(bucket, at) for bucket in buckets) == 1


@pytest.mark.parametrize("causal", [None, "0"])
@pytest.mark.parametrize("d", [32, 64, 128])
def test_the_model_grows_with_the_work(d: int, causal: str | None) -> None:
    with ir.Context(), ir.Location.unknown():
        problem = problem_of(Attention(16, d=d, causal=causal))
    keys = np.array([1, 64, 100, 333, 1024, 8192], float)
    rows = np.array([16, 100, 5000, 16 * 8192, 16 * 16 * 8192], float)
    times = predicted(problem, rows[:, None], keys[None, :], H200)
    assert times.shape == (5, 6, len(candidates(problem)))
    assert (np.diff(times, axis=0) >= 0).all()
    assert (np.diff(times, axis=1) >= 0).all()
    # At the largest size, what no tile or block costs is nothing beside the products: 400 to 800
    # TFLOP/s were measured.
    flops = 4 * rows[-1] * keys[-1] * max(d, 64) * (0.5 if causal else 1.0)
    assert (4e14 < flops / times[-1, -1].min() * 1e6 < 8e14).all()


def test_long_sequences_are_worth_more_than_short_ones() -> None:
    """What is at stake where regions are limited: more for more keys, and little for tiles."""
    attention = Attention(16, d=128, layout="packed")
    bounds: dict[int, Bounds] = {0: (1, 4), 1: (1, 4096)}
    axes, buckets = chosen(attention, bounds)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(attention.text)
        kernel = sir.kernels(module)["k"]
        found = {
            variant.split("_")[0]: stake(kernel, bounds, H200, axes, (lower, upper, variant, ""))
            for lower, upper, variant, _ in buckets
        }
    assert found["tiles"] == STAKE
    assert found["flash"] > 5 * STAKE
