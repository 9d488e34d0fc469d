# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Consumers that take turns: each has tiles of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from shapejit.passes.nvgpu.errors import LoweringError
from unit.cpu_kernels import examples
from unit.simulated_gemms import Gemm, check, lowered

PLAIN = "persistent_64x64x64_s3_w2_turns"
TWO_BLOCKS = "persistent_128x64x64_s2_w2_turns"
SWAPPED = "swapped_64x16x64_s5_w2_turns"
SCHEDULES = [PLAIN, TWO_BLOCKS, SWAPPED]

ROWS = st.one_of(st.sampled_from([0, 1, 64, 65, 129]), st.integers(0, 140))
EIGHTS = st.one_of(st.sampled_from([0, 8, 64, 136]), st.integers(0, 18).map(lambda i: 8 * i))
# More stages than the ring has, so that the phase of a skipped stage may be that of another lap.
DEPTHS = st.one_of(st.sampled_from([0, 8, 64, 1000]), st.integers(0, 100).map(lambda i: 8 * i))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(
    m=ROWS,
    n=EIGHTS,
    k=DEPTHS,
    multiprocessors=st.integers(1, 4),
    block=st.booleans(),
    seed=st.integers(0, 1000),
)
@examples(8)
def test_any_sizes(
    schedule: str, m: int, n: int, k: int, multiprocessors: int, block: bool, seed: int
) -> None:
    check(Gemm(), schedule, m, n, k, multiprocessors=multiprocessors, block=block, seed=seed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("multiprocessors", [1, 2, 3])
def test_odd_and_even_numbers_of_tiles(schedule: str, multiprocessors: int) -> None:
    """Whoever has the last tile gives no turn, and every CTA ends."""
    for tiles in (1, 2, 3):
        check(Gemm(), schedule, 64 * tiles, 64, 136, multiprocessors=multiprocessors)


@pytest.mark.parametrize("schedule", [PLAIN, SWAPPED])
def test_batches_and_epilogues(schedule: str) -> None:
    check(Gemm("bmk", "bnk", "bmn"), schedule, 70, 72, 136, 3, multiprocessors=2)
    check(Gemm(epilogue="bias, relu, residual"), schedule, 70, 72, 136, multiprocessors=2)
    check(Gemm(epilogue="gated", out="f32"), schedule, 70, 72, 136, multiprocessors=2)
    check(Gemm("km", "kn"), schedule, 72, 72, 136, multiprocessors=2)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("persistent_64x64x64_s3_w1_turns", "that is for two consumers"),
        ("persistent_64x64x64_s3_w2_stream_turns", "that is for two consumers"),
        ("persistent_64x64x64_s3_w2_c2_turns", "that is for two consumers"),
        ("persistent_128x256x64_s3_w2_turns", "needs 256 registers"),
    ],
)
def test_schedules_that_do_not_suit(schedule: str, words: str) -> None:
    with pytest.raises(LoweringError, match=words):
        lowered(Gemm(), schedule)


@sass.needs_nvdisasm
@pytest.mark.parametrize(
    "schedule",
    [
        "persistent_128x128x64_s6_w2_turns",
        "persistent_64x256x64_s4_w2_turns",
        "swapped_128x112x64_s6_w2_turns",
        "swapped_128x176x64_s5_w2_turns",
    ],
)
def test_machine_code(schedule: str) -> None:
    cubin = lowered(Gemm(), schedule).assemble()
    [function] = sass.disassemble(cubin.data).values()
    assert function.count("HGMMA") >= 8
    assert not function.local_memory
    assert not function.read_never_written
