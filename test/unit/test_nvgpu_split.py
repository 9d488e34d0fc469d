# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""K shared by CTAs that are no cluster: on a simulated GPU against float64, the code, the rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from reference.hopper.memory import SimulationError
from shapejit.passes.nvgpu import split_rule
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import Units
from shapejit.passes.nvgpu.schedule import CANDIDATES, GemmSchedule
from unit.cpu_kernels import examples
from unit.simulated_gemms import Gemm, check, lowered

PAIR = "persistent_64x64x64_s2_w1_k2"
THREE = "swapped_64x16x64_s3_w1_k3"
TWO_CONSUMERS = "swapped_128x24x64_s2_w2_k2"
CLUSTER = "swapped_64x16x64_s2_w1_c2_k2"
SCHEDULES = [PAIR, THREE, TWO_CONSUMERS, CLUSTER]

ROWS = st.one_of(st.sampled_from([0, 1, 63, 64, 65]), st.integers(0, 80))
EIGHTS = st.one_of(st.sampled_from([0, 8, 64, 72]), st.integers(0, 10).map(lambda i: 8 * i))
# From nothing to some stages more than a tile has when it is shared.
DEPTHS = st.one_of(st.sampled_from([0, 8, 64, 392]), st.integers(0, 60).map(lambda i: 8 * i))


@pytest.fixture(autouse=True, scope="module")
def soon_there() -> Iterator[None]:
    """Tiles are small here and their stages short: sums that took as many cycles to hand over as on
    a GPU would take as long as hundreds of stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_rule, "_ON_THE_WAY", 100)
        patch.setattr(split_rule, "LEAST_STAGES", 1)
        lowered.cache_clear()
        yield
    lowered.cache_clear()


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(
    m=ROWS,
    n=EIGHTS,
    k=DEPTHS,
    multiprocessors=st.integers(2, 14),
    block=st.booleans(),
    ahead=st.booleans(),
    seed=st.integers(0, 1000),
)
@examples(5)
def test_any_sizes(
    schedule: str,
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    block: bool,
    ahead: bool,
    seed: int,
) -> None:
    options = {"multiprocessors": multiprocessors, "seed": seed}
    check(Gemm(), schedule, m, n, k, block=block, ahead=ahead, **options)


@pytest.mark.parametrize("multiprocessors", [6, 8, 9, 12])
def test_as_many_parts_as_there_are_ctas_for(multiprocessors: int) -> None:
    """Of three tiles: two parts, three and four."""
    schedule = "swapped_64x16x64_s3_w1_k4"
    check(Gemm(), schedule, 40, 64, 392, multiprocessors=multiprocessors, seed=multiprocessors)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_whole_tiles_after_parts(schedule: str) -> None:
    """More tiles than multiprocessors: those of the last wave are shared."""
    check(Gemm(), schedule, 64, 136, 392, multiprocessors=8, seed=1)


@pytest.mark.parametrize(
    ("gemm", "sizes"),
    [
        (Gemm("bmk", "bnk", "bmn"), (20, 64, 392, 2)),
        (Gemm("km", "kn", out="f32"), (64, 64, 392)),
        (Gemm(epilogue="bias, relu, residual"), (40, 72, 392)),
        (Gemm(epilogue="gated"), (40, 64, 392)),
        (Gemm(element="f16", out="f16", sizes=(("n", 60),)), (40, 60, 392)),
    ],
)
def test_kinds_of_products(gemm: Gemm, sizes: tuple[int, ...]) -> None:
    for schedule in (PAIR, THREE):
        check(gemm, schedule, *sizes, multiprocessors=14)


def test_tf32() -> None:
    gemm = Gemm(element="f32", out="f32")
    got = lowered(gemm, "swapped_64x16x32_s3_w1_k2_tf32")
    lengths = gemm.lengths(16, 64, 392)
    torch.manual_seed(0)
    inputs = gemm.inputs(lengths)
    result = got.run(inputs, lengths, multiprocessors=4)
    expected = gemm.reference(inputs, lengths)
    assert (result - expected).abs().max() < 2**-9 * expected.abs().max()


@pytest.mark.parametrize("schedule", [PAIR, THREE])
def test_results_do_not_vary(schedule: str) -> None:
    """A tile is summed in one order, whoever is first."""
    gemm, lengths = Gemm(out="f32"), {"m": 60, "n": 64, "k": 392, "b": 1}
    torch.manual_seed(0)
    inputs = gemm.inputs(lengths)
    code = lowered(gemm, schedule)
    results = [code.run(inputs, lengths, multiprocessors=14, seed=seed) for seed in range(4)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_nobody_waits_for_who_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels may leave room for one CTA at a time."""
    gemm, lengths = Gemm(out="f32"), {"m": 40, "n": 64, "k": 392, "b": 1}
    torch.manual_seed(0)
    inputs = gemm.inputs(lengths)
    got = lowered(gemm, THREE).run(inputs, lengths, multiprocessors=14, places=1)
    assert torch.equal(got, lowered(gemm, THREE).run(inputs, lengths, multiprocessors=14))
    # In the other order the first one waits for the others.
    forwards = Units.read
    monkeypatch.setattr(Units, "read", lambda cluster, backwards: forwards(cluster))
    wrong = lowered.__wrapped__(gemm, THREE, False)
    with pytest.raises(SimulationError, match="deadlock"):
        wrong.run(inputs, lengths, multiprocessors=14, places=1)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("persistent_128x64x64_s4_w2_k2_stream", "neither stream nor turns"),
        ("swapped_64x64x64_s4_w2_k2_turns", "neither stream nor turns"),
        ("unaligned_128x128x64_s3_w2_k2", "share no tiles"),
    ],
)
def test_schedules_that_do_not_suit(schedule: str, words: str) -> None:
    with pytest.raises(LoweringError, match=words):
        lowered(Gemm(), schedule)


@given(
    stages=st.integers(1, 2000),
    columns=st.integers(1, 32).map(lambda i: 8 * i),
    rows=st.sampled_from([64, 128, 256]),
    parts=st.integers(2, 4),
)
def test_the_rule(stages: int, columns: int, rows: int, parts: int) -> None:
    """Parts cover K, none is short, and the owner has the longest."""
    schedule = GemmSchedule("swapped", rows, columns, 64, 4, 2, split=4)
    more = split_rule.lead(schedule)
    if stages < split_rule.least_depth(schedule, parts):
        return
    given_ = (stages - more) // parts
    kept = stages - (parts - 1) * given_
    assert given_ >= split_rule.LEAST_STAGES
    assert more <= kept - given_ < more + parts


# Machine code -------------------------------------------------------------------------------------

_FULL_SIZE = [str(s) for s in CANDIDATES if s.family in ("persistent", "swapped") and s.split > 1]
_CODE = [
    *((Gemm(), schedule) for schedule in _FULL_SIZE),
    (Gemm(), "persistent_128x256x64_s4_w2_k2"),
    (Gemm(epilogue="bias, relu, residual"), "swapped_256x112x64_s4_w2_k3"),
    (Gemm("km", "kn", epilogue="gated"), "swapped_128x128x64_s4_w2_k2"),
]


@sass.needs_nvdisasm
@pytest.mark.parametrize(("gemm", "schedule"), _CODE)
def test_machine_code(gemm: Gemm, schedule: str) -> None:
    """Assembled without a warning of serialised products; no spills; no register read unset."""
    cubin = lowered(gemm, schedule).assemble()
    [function] = sass.disassemble(cubin.data).values()
    assert function.count("HGMMA") >= 8
    assert not function.local_memory
    assert not function.read_never_written
