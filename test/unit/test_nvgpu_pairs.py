# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products with a pair of weights, such as the gated part of a Llama block: their candidates."""

from __future__ import annotations

import pytest

from reference import sass
from shapejit.passes.buckets.device import H200
from shapejit.passes.buckets.model import CostModel, fitting
from shapejit.passes.buckets.problem import GemmSizes, GemmTraits
from shapejit.passes.nvgpu.schedule import (
    ALL_CANDIDATES,
    CANDIDATES,
    PAIR_CANDIDATES,
    TF32_PAIR_CANDIDATES,
    GemmSchedule,
    candidates_for,
    worth_trying,
)
from unit.simulated_gemms import Gemm, check, lowered

GATED = Gemm(epilogue="gated")
PAIR = GemmTraits(weights=2)


@pytest.mark.parametrize("schedule", PAIR_CANDIDATES, ids=str)
def test_each_is_right(schedule: GemmSchedule) -> None:
    """More rows and columns than a tile has, and less of K than the ring."""
    check(GATED, str(schedule), 72, 136, 136, multiprocessors=2, block=True, ahead=True)


@pytest.mark.parametrize(
    "schedule", ["swapped_64x176x64_s5_w2_turns", "persistent_128x128x64_s4_w2"]
)
def test_more_tiles_than_multiprocessors(schedule: str) -> None:
    check(GATED, schedule, 300, 72, 392, multiprocessors=1)


@sass.needs_nvdisasm
@pytest.mark.parametrize("schedule", PAIR_CANDIDATES, ids=str)
def test_machine_code(schedule: GemmSchedule) -> None:
    """No sums are spilled."""
    cubin = lowered(GATED, str(schedule), True, True).assemble()
    [function] = sass.disassemble(cubin.data).values()
    assert function.count("HGMMA") >= 8
    assert not function.local_memory
    assert not function.read_never_written


def test_they_are_for_pairs_alone() -> None:
    for each in (*PAIR_CANDIDATES, *TF32_PAIR_CANDIDATES):
        assert each not in worth_trying(ALL_CANDIDATES, weights=1)
        assert each in worth_trying(ALL_CANDIDATES, weights=2)
    assert set(fitting(H200, PAIR_CANDIDATES, PAIR)) == set(PAIR_CANDIDATES)


def test_what_they_save() -> None:
    """By the cost model, over the candidates that there are for one weight as well."""
    every = candidates_for(PAIR, ALL_CANDIDATES)
    others = [each for each in fitting(H200, every, PAIR) if each in CANDIDATES]
    own = fitting(H200, every, PAIR)
    rows = [1, 24, 96, 192, 512, 1024, 2048, 4096, 8192]
    sizes = GemmSizes(rows, 5632, 2048, traits=PAIR)
    before = CostModel(H200, others, PAIR).times(sizes).min(axis=-1)
    after = CostModel(H200, own, PAIR).times(sizes).min(axis=-1)
    assert (after <= before).all()
    assert (after < 0.95 * before).sum() >= 4


def test_steps_are_like_those_of_one_weight_as_wide_as_both() -> None:
    """A pair's mainloop is that of its twin: only stores and the launch differ."""
    sizes = {"m": 8192, "k": 1 << 16}
    pair = CostModel(H200, [GemmSchedule.parse("swapped_64x176x64_s5_w2_turns")], PAIR)
    twin = CostModel(H200, [GemmSchedule.parse("swapped_128x176x64_s5_w2_turns")])
    one = pair.parts(GemmSizes(n=4096, **sizes, traits=PAIR))
    other = twin.parts(GemmSizes(n=8192, **sizes))
    assert one.tensor_cores == pytest.approx(other.tensor_cores)
    assert one.latency == pytest.approx(other.latency)
