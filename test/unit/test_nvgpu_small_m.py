# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family small_m: on a simulated GPU against float64, and its machine code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch

from reference import sass
from reference.hopper.memory import SimulationError
from shapejit.gpu.interface import TensorMap
from shapejit.passes.nvgpu import small_m
from shapejit.passes.nvgpu.cluster import Exchange, Parts
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.ring import Ring
from shapejit.passes.nvgpu.schedule import CANDIDATES
from shapejit.passes.nvgpu.tma import Descriptor
from unit.cpu_kernels import examples
from unit.simulated_gemms import Gemm, check, lowered

# Short rings, so that they wrap within few elements of K.
ALONE = "small_m_64x16x64_s3_w1"
SPLIT = "small_m_64x16x64_s3_w1_k2"
SPLIT_4 = "small_m_64x16x64_s2_w1_k4"  # of whose CTAs only two own columns
OVERLAP = "small_m_64x40x64_s2_w1_k4"  # three owners of 16 columns
ONE_OWNER = "small_m_64x8x64_s2_w1_k4"
SPLIT_3 = "small_m_64x24x64_s2_w1_k3"
SPLIT_8 = "small_m_64x64x64_s2_w1_k8"  # as many owners as it can be
SHARED = "small_m_64x16x64_s3_w1_r2"
SHARED_SPLIT = "small_m_64x16x64_s2_w1_r2_k2"
TWO_WARPGROUPS = "small_m_128x16x64_s2_w2_k2"

ROWS = st.one_of(st.sampled_from([0, 1, 2, 15, 16, 17, 33]), st.integers(0, 40))
EIGHTS = st.one_of(st.sampled_from([0, 8, 64, 72, 128]), st.integers(0, 20).map(lambda i: 8 * i))
DEPTHS = st.one_of(st.sampled_from([0, 8, 64, 128, 136]), st.integers(0, 50).map(lambda i: 8 * i))


@pytest.mark.parametrize(
    "schedule",
    [ALONE, SPLIT, SPLIT_3, SPLIT_4, OVERLAP, ONE_OWNER, SHARED, SHARED_SPLIT, TWO_WARPGROUPS],
)
@given(m=ROWS, n=EIGHTS, k=DEPTHS, block=st.booleans(), seed=st.integers(0, 1000))
@examples(10)
def test_any_sizes(schedule: str, m: int, n: int, k: int, block: bool, seed: int) -> None:
    check(Gemm(), schedule, m, n, k, block=block, seed=seed)


@pytest.mark.parametrize("schedule", [ALONE, SPLIT, SPLIT_8, SHARED])
def test_more_tiles_than_ctas(schedule: str) -> None:
    """The ring and the exchange run on from tile to tile."""
    multiprocessors = 8 if schedule == SPLIT_8 else 2
    for seed in range(3):
        check(Gemm(), schedule, 50, 136, 136, multiprocessors=multiprocessors, seed=seed)


@pytest.mark.parametrize("schedule", [ALONE, SPLIT_4, SHARED])
@given(m=ROWS, n=EIGHTS, k=DEPTHS, seed=st.integers(0, 1000))
@examples(5)
def test_weights_loaded_ahead(schedule: str, m: int, n: int, k: int, seed: int) -> None:
    check(Gemm(), schedule, m, n, k, ahead=True, multiprocessors=2, seed=seed)


@pytest.mark.parametrize("schedule", [ALONE, SPLIT])
@pytest.mark.parametrize(("lhs", "rhs"), [("km", "nk"), ("mk", "kn"), ("km", "kn")])
@given(m=EIGHTS, n=EIGHTS, k=DEPTHS)
@examples(4)
def test_transposed_operands(schedule: str, lhs: str, rhs: str, m: int, n: int, k: int) -> None:
    check(Gemm(lhs, rhs), schedule, m, n, k)


def test_weights_of_one_panel_are_shared_along_k() -> None:
    check(Gemm(rhs="kn"), SHARED, 40, 136, 200)


@pytest.mark.parametrize(("lhs", "rhs"), [("bmk", "bnk"), ("bmk", "nk"), ("mk", "bkn")])
@given(m=ROWS, n=EIGHTS, k=DEPTHS, b=st.integers(0, 3))
@examples(5)
def test_batched(lhs: str, rhs: str, m: int, n: int, k: int, b: int) -> None:
    check(Gemm(lhs, rhs, "bmn"), SPLIT, m, n, k, b)


@given(m=ROWS, k=DEPTHS, padding=st.sampled_from([0, 8, 64]))
@examples(6)
def test_rows_longer_than_what_is_read(m: int, k: int, padding: int) -> None:
    check(Gemm(padded=True), SPLIT, m, 72, k, padding=padding)


@pytest.mark.parametrize("schedule", [ALONE, SPLIT, SHARED, TWO_WARPGROUPS])
@pytest.mark.parametrize("epilogue", ["bias, gelu, residual", "row and column scale", "gated"])
@given(m=ROWS, n=EIGHTS, k=st.sampled_from([0, 8, 72, 200]))
@examples(4)
def test_epilogues(schedule: str, epilogue: str, m: int, n: int, k: int) -> None:
    check(Gemm(epilogue=epilogue), schedule, m, n, k)


@pytest.mark.parametrize("schedule", [ALONE, SPLIT])
@pytest.mark.parametrize(
    "gemm",
    [
        Gemm(element="f16", out="f16", epilogue="bias, relu, residual"),
        Gemm(out="f32"),
        Gemm(element="f16", out="f32", epilogue="gated"),
    ],
)
def test_element_types(schedule: str, gemm: Gemm) -> None:
    check(gemm, schedule, 19, 72, 136)


def test_results_that_tma_cannot_store() -> None:
    check(Gemm(sizes=(("n", 71),)), SPLIT, 19, 71, 136)


@pytest.mark.parametrize("schedule", [SPLIT, SPLIT_3, SPLIT_4, OVERLAP, SHARED_SPLIT])
def test_sums_do_not_depend_on_the_order_of_events(schedule: str) -> None:
    first, *others = (check(Gemm(out="f32"), schedule, 19, 72, 328, seed=seed) for seed in range(4))
    for other in others:
        assert torch.equal(first, other)


# What holds it together ---------------------------------------------------------------------------


@pytest.fixture
def fresh() -> Iterator[None]:
    """Kernels lowered in a test with a fault in the emitters are no one else's."""
    lowered.cache_clear()
    yield
    lowered.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("owner", "name", "schedule", "block", "reason"),
    [
        (Exchange, "_await_free", SPLIT, False, "may happen at any time"),
        (Exchange, "finish", SPLIT, False, "of a CTA that has exited"),
        (Exchange, "_release", SPLIT, False, "deadlock"),
        (small_m, "await_starts", SHARED, False, "no mbarrier was initialised"),
        (Descriptor, "acquire", SPLIT, True, "without the acquire fence"),
        (Ring, "release", ALONE, False, "deadlock"),
    ],
)
def test_nothing_can_be_left_out(
    owner: object, name: str, schedule: str, block: bool, reason: str, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, lambda *_: None)
    with pytest.raises(SimulationError, match=reason):
        for seed in range(10):
            check(Gemm(), schedule, 40, 136, 328, block=block, multiprocessors=2, seed=seed)


@pytest.mark.parametrize(
    ("columns", "split", "each", "owners"),
    [(16, 2, 1, 2), (16, 4, 1, 2), (40, 4, 2, 3), (64, 2, 4, 2), (104, 4, 4, 4), (8, 2, 1, 1)],
)
def test_parts_cover_the_tile(columns: int, split: int, each: int, owners: int) -> None:
    parts = Parts.of(columns, split)
    assert (parts.each, parts.owners) == (each, owners)
    covered = {parts.first(owner) + i for owner in range(owners) for i in range(each)}
    assert covered == set(range(columns // 8))


# Machine code -------------------------------------------------------------------------------------


@sass.needs_nvdisasm
@pytest.mark.parametrize(
    ("schedule", "block"),
    [
        *((str(schedule), False) for schedule in CANDIDATES if schedule.family == "small_m"),
        ("small_m_64x16x64_s9_w1_k4", True),
        ("small_m_64x32x64_s16_w1_r2", True),
    ],
)
def test_machine_code(schedule: str, block: bool) -> None:
    kernel = lowered(Gemm(epilogue="bias, gelu, residual"), schedule, block)
    cubin = kernel.assemble()
    [name] = cubin.resources
    assert cubin.resources[name].spill_store_bytes == 0
    code = sass.disassemble(cubin.data)[name]
    assert not code.local_memory
    assert not code.read_never_written
    # The four products of a stage, peeled and in the loop.
    assert code.count("HGMMA") == 8
    assert code.count("UTMALDG") >= 2
    assert bool(code.count("UTMALDG.2D.MULTICAST")) == ("_r2" in schedule)


def test_two_ctas_where_they_fit() -> None:
    assert lowered(Gemm(), "small_m_64x16x64_s9_w1").interface.grid.ctas_per_sm == 2
    assert lowered(Gemm(), "small_m_64x64x64_s12_w1_r2").interface.grid.ctas_per_sm == 1


def test_rings_in_a_graph_leave_room_for_the_next_kernel() -> None:
    """As few stages as K has, half of a multiprocessor's shared memory; the same grid."""
    schedule, stage = "small_m_64x16x64_s16_w1", (64 + 16) * 64 * 2
    alone = lowered(Gemm(), schedule, block=True).interface
    beside = lowered(Gemm(), schedule, block=True, ahead=True).interface
    assert beside.grid.ctas_per_sm == alone.grid.ctas_per_sm == 1
    assert 2 * (beside.shared_bytes + 2048) <= 228 * 1024 < 2 * (beside.shared_bytes + stage + 2048)
    short = lowered(Gemm(sizes=(("k", 384),)), schedule, block=True, ahead=True).interface
    assert alone.shared_bytes - short.shared_bytes == (16 - 384 // 64) * stage
    split = lowered(Gemm(sizes=(("k", 1024),)), schedule + "_k4", block=True, ahead=True).interface
    assert split.shared_bytes < short.shared_bytes
    wide = [
        lowered(Gemm(), "small_m_128x96x64_s7_w2", block=True, ahead=ahead).interface.shared_bytes
        for ahead in (False, True)
    ]
    assert wide[0] == wide[1]  # three stages would be too few


@pytest.mark.parametrize("k", [24, 64, 136, 384])
def test_rings_as_short_as_k(k: int) -> None:
    for schedule in ("small_m_64x16x64_s6_w1", "small_m_64x16x64_s6_w1_k2"):
        gemm = Gemm(sizes=(("k", k),))
        check(gemm, schedule, 40, 192, k, block=True, ahead=True, multiprocessors=2)


@pytest.mark.parametrize(
    ("n", "mark", "promotion"),
    [(4096, "", 256), (8192, "", 128), (None, "", 256), (None, "_once", 128), (4096, "_once", 256)],
)
def test_many_tiles_of_weights_are_streamed(n: int | None, mark: str, promotion: int) -> None:
    """What is known of n counts, and else what the schedule says."""
    interface = lowered(Gemm(sizes=(("n", n),) if n else ()), ALONE + mark).interface
    lhs, weights, result = range(3)
    maps = [map_ for map_ in interface.parameters if isinstance(map_, TensorMap)]
    assert {map_.promotion for map_ in maps if map_.operand == weights} == {promotion}
    assert {map_.promotion for map_ in maps if map_.operand in (lhs, result)} == {256}


# Rejected -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("small_m_128x16x64_s3_w1", "64 rows a warpgroup"),
        ("small_m_64x16x64_s3_w1_c2", "neither columns nor a wave"),
        ("small_m_64x16x64_s3_w1_stream", "neither columns nor a wave"),
        ("small_m_64x20x64_s3_w1", "multiples of 8"),
        ("small_m_64x64x64_s20_w1", "fewer stages"),
    ],
)
def test_schedules_that_do_not_suit(schedule: str, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered(Gemm(), schedule)
