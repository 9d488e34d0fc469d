# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule of attention serves which sizes."""

from __future__ import annotations

import itertools
import random

import mlir.ir as ir
import pytest

from shapejit import ir as sir
from shapejit.passes.buckets.device import H200
from shapejit.passes.nvgpu.attention import choice, decode_choice, flash_choice
from shapejit.passes.nvgpu.attention.choice import Bounds, Bucket
from shapejit.passes.nvgpu.attention.lowering import check, choose, serves
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.symbolic import Expr
from unit.simulated_attention import Attention

PROBLEMS = {
    "MiniLM": (Attention(12, layout="packed", mask="i1"), {0: (1, 32), 1: (3, 256)}),
    "MiniLM, any sizes": (Attention(12, layout="packed", mask="i1"), {0: (0, None), 1: (0, None)}),
    "heads of 64": (Attention(12, d=64), {0: (1, 8), 1: (1, 512), 2: (1, 512)}),
    "heads of 128": (
        Attention(8, 2, d=128, causal="s2 - s1"),
        {0: (1, 4), 1: (1, 4096), 2: (1, 4096)},
    ),
    "values longer than keys": (Attention(2, d=32, dv=96), {0: (1, 4), 1: (1, 64), 2: (1, None)}),
}


def chosen(attention: Attention, bounds: dict[int, Bounds]) -> tuple[list[Expr], list[Bucket]]:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(attention.text)
        kernel = sir.kernels(module)["k"]
        assert serves(kernel)
        check(kernel)
        return choose(kernel, bounds, H200)


def holds(bucket: Bucket, values: list[int]) -> bool:
    lower, upper, _, _ = bucket
    return all(
        low <= value and (high is None or value <= high)
        for low, high, value in zip(lower, upper, values, strict=True)
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_size_has_one_bucket(name: str) -> None:
    attention, bounds = PROBLEMS[name]
    axes, buckets = chosen(attention, bounds)
    assert (axes, buckets) == chosen(attention, bounds)
    generator = random.Random(name)
    edges = [[low, high if high is not None else 100_000] for low, high in bounds.values()]
    symbols = [list(corner) for corner in itertools.product(*edges)]
    symbols += [[generator.randint(*edge) for edge in edges] for _ in range(300)]
    for values in symbols:
        at = [axis.evaluate(values) for axis in axes]
        assert sum(holds(bucket, at) for bucket in buckets) == 1


@pytest.mark.parametrize("name", PROBLEMS)
def test_variants_are_few_and_known(name: str) -> None:
    attention, bounds = PROBLEMS[name]
    axes, buckets = chosen(attention, bounds)
    known = {str(each) for tiers in choice.TIERS.values() for each in tiers}
    for tables in (flash_choice.TIERS, flash_choice.MASKED_TIERS):
        known |= {str(each) for tiers in tables.values() for each in tiers}
    known |= set(map(str, decode_choice.SCHEDULES.values()))
    known |= set(map(str, decode_choice.MANY_TILES.values()))
    assert {variant for _, _, variant, _ in buckets} <= known
    assert bool(axes) == (len(buckets) > 1)
    assert len(axes) <= 3
    assert len(buckets) <= 12


def test_rows_are_the_axis() -> None:
    """As those of the products before and after it; breakpoints are where places run out."""
    axes, buckets = chosen(*PROBLEMS["MiniLM"])
    assert axes == [Expr.parse("s0 * s1")]
    assert [variant for _, _, variant, _ in buckets] == list(map(str, choice.TIERS[32]))
    assert buckets[0][0] == (3,)
    assert buckets[-1][1] == (32 * 256,)
    for (_, upper, _, _), (lower, _, _, _) in itertools.pairwise(buckets):
        assert lower[0] == (upper[0] or 0) + 1
    tiles = [(upper[0] or 0) * 12 // 64 for _, upper, _, _ in buckets[:-1]]
    assert tiles == [choice.places(schedule, H200) for schedule in choice.TIERS[32][:-1]]


def test_a_kernel_whose_sizes_need_no_choice() -> None:
    attention, _ = PROBLEMS["MiniLM"]
    for bounds, tier in (
        ({0: (1, 1), 1: (1, 512)}, 0),
        ({0: (4, 4), 1: (400, 512)}, 1),
        ({0: (64, 128), 1: (128, 1024)}, 2),
    ):
        axes, [(lower, upper, variant, _)] = chosen(attention, bounds)
        assert (axes, lower, upper, variant) == ([], (), (), str(choice.TIERS[32][tier]))


def test_names_of_schedules() -> None:
    for tiers in choice.TIERS.values():
        for schedule in tiers:
            assert AttentionSchedule.parse(str(schedule)) == schedule
    for name in (
        "",
        "tiles_64x64",
        "tiles_100x64_c1",
        "tiles_64x48_c1",
        "tiles_256x64_s5_g2_c1",
        "tiles_64x64_s2_c1",
    ):
        with pytest.raises(ValueError, match="names no attention schedule"):
            AttentionSchedule.parse(name)


def test_kernels_that_are_refused() -> None:
    attention = Attention(d=320)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(attention.text)
        kernel = sir.kernels(module)["k"]
        with pytest.raises(LoweringError, match="head size of 320"):
            check(kernel)
