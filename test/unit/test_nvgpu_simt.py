# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family simt, float32 on the CUDA cores: on a simulated GPU against float64, machine code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch

from reference import sass
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.schedule import SIMT_CANDIDATES, GemmSchedule
from shapejit.passes.nvgpu.simt import cost, emitter, reduction
from shapejit.passes.nvgpu.simt.tiling import Tiling
from unit.cpu_kernels import examples
from unit.ptx_samples import needs_ptxas
from unit.simulated_gemms import Gemm, check, lowered

PLAIN = "simt_64x64x16_s3_w1"
SMALL = "simt_8x64x32_s3_w1_p4"
SHARED = "simt_32x32x32_s3_w1_k2_p4"
SCHEDULES = (PLAIN, SMALL, SHARED)

SIZES = st.one_of(st.sampled_from([0, 1, 31, 64, 65]), st.integers(1, 40))
DEPTHS = st.one_of(st.sampled_from([0, 1, 16, 17]), st.integers(0, 70))
SHIFTS = st.sampled_from([0, 4, 8])


def gemm(lhs: str = "mk", rhs: str = "nk", result: str = "mn", **more: Any) -> Gemm:
    return Gemm(lhs, rhs, result, **{"element": "f32", "out": "f32", **more})


# Numerics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("lhs", "rhs"), [("mk", "nk"), ("mk", "kn"), ("km", "nk"), ("km", "kn")])
@given(m=SIZES, n=SIZES, k=DEPTHS, shift=SHIFTS)
@examples(1)
def test_layouts_sizes_and_addresses(
    schedule: str, lhs: str, rhs: str, m: int, n: int, k: int, shift: int
) -> None:
    check(gemm(lhs, rhs), schedule, m, n, k, shifts=[shift, 8 - shift, shift])


@pytest.mark.parametrize(("lhs", "rhs"), [("mkx", "nk"), ("mk", "knx"), ("xmk", "kxn")])
def test_strides_other_than_one(lhs: str, rhs: str) -> None:
    check(gemm(lhs, rhs), PLAIN, 35, 66, 37)


@pytest.mark.parametrize(("lhs", "rhs"), [("bmk", "bnk"), ("mbk", "nk"), ("mk", "bkn")])
@given(m=SIZES, k=DEPTHS, b=st.integers(0, 3))
@examples(1)
def test_batched(lhs: str, rhs: str, m: int, k: int, b: int) -> None:
    check(gemm(lhs, rhs, "bmn"), PLAIN, m, 36, k, b)


def test_rows_longer_than_what_is_read() -> None:
    for padding in (0, 3, 4):
        check(gemm(padded=True), PLAIN, 33, 36, 41, padding=padding)


@pytest.mark.parametrize("schedule", [PLAIN, SHARED])
@pytest.mark.parametrize(
    "epilogue",
    ["bias, gelu, residual", "row and column scale", "f32 residual"],
)
@pytest.mark.parametrize("n", [36, 37])
def test_epilogues(schedule: str, epilogue: str, n: int) -> None:
    check(gemm(epilogue=epilogue), schedule, 41, n, 20)


def test_extras_at_odd_addresses() -> None:
    check(gemm(epilogue="bias, relu, residual"), PLAIN, 35, 40, 20, shifts=[0, 0, 2, 6, 4])


@pytest.mark.parametrize("schedule", [SMALL, "simt_32x64x32_s3_w1_p2"])
def test_gated_pairs(schedule: str) -> None:
    check(gemm(epilogue="gated"), schedule, 9, 70, 40)


@pytest.mark.parametrize("out", ["bf16", "f16"])
def test_results_of_16_bits(out: str) -> None:
    for n in (36, 37):
        check(gemm(out=out, epilogue="row and column scale"), PLAIN, 35, n, 20)


def test_constant_sizes() -> None:
    check(gemm(sizes=(("n", 64), ("k", 64))), PLAIN, 35, 64, 64)
    check(gemm(sizes=(("k", 0),)), PLAIN, 35, 40, 0)


@pytest.mark.parametrize("schedule", [PLAIN, SHARED])
@pytest.mark.parametrize("ahead", [False, True])
def test_block_form_and_more_tiles_than_ctas(schedule: str, ahead: bool) -> None:
    check(gemm(), schedule, 70, 70, 40, block=True, ahead=ahead, multiprocessors=1)


def test_equal_bits_whoever_is_first() -> None:
    found = [check(gemm(), SHARED, 20, 36, 70, seed=seed) for seed in range(2)]
    assert all((each == found[0]).all() for each in found)


# What holds it together ---------------------------------------------------------------------------


@pytest.fixture
def fresh() -> Iterator[None]:
    """Kernels lowered in a test with a fault in the emitter are no one else's."""
    lowered.cache_clear()
    yield
    lowered.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_copies_are_awaited(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(emitter, "await_copies", lambda pending: None)
    with pytest.raises(AssertionError):
        for seed in range(5):
            check(gemm(), PLAIN, 40, 36, 100, seed=seed)


@pytest.mark.usefixtures("fresh")
def test_partial_sums_are_awaited(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(reduction.KernelFunction, "synchronize", lambda self: None)
    with pytest.raises(AssertionError):
        for seed in range(5):
            check(gemm(), SHARED, 40, 36, 100, seed=seed)


# Machine code -------------------------------------------------------------------------------------


@sass.needs_nvdisasm
@pytest.mark.parametrize(
    ("schedule", "lhs", "rhs", "block"),
    [
        ("simt_64x64x16_s3_w1", "mk", "kn", True),
        ("simt_8x64x32_s6_w1_k4_p4", "mkx", "nk", False),
    ],
)
def test_machine_code(schedule: str, lhs: str, rhs: str, block: bool) -> None:
    kernel = lowered(gemm(lhs, rhs, epilogue="bias, gelu, residual"), schedule, block, block)
    cubin = kernel.assemble()
    [name] = cubin.resources
    assert cubin.resources[name].spill_store_bytes == 0
    code = sass.disassemble(cubin.data)[name]
    assert not code.local_memory
    assert not code.read_never_written
    tiling = Tiling.of(GemmSchedule.parse(schedule))
    steps = tiling.steps
    # One fused multiply-add a product; the epilogue has some of its own.
    adds = [i for i in code.instructions if i.opcode == "FFMA"]
    assert len(adds) >= 4 * tiling.sums * steps
    # Every load from shared memory in the inner loop is of 16 bytes.
    first, last = (code.instructions.index(adds[i]) for i in (0, 4 * tiling.sums * steps - 1))
    inner = [i for i in code.instructions[first:last] if i.mnemonic == "LDS"]
    assert all(i.opcode.startswith("LDS.128") for i in inner)
    assert code.count("LDS.128") >= (tiling.thread_rows + tiling.thread_columns) * steps
    # Between its multiply-adds there is little else.
    others = sum(i.mnemonic not in ("FFMA", "LDS") for i in code.instructions[first:last])
    assert others < 0.1 * 4 * tiling.sums * steps
    assert code.count("LDGSTS.E.128") or code.count("LDGSTS.E.BYPASS.128")


@needs_ptxas
def test_the_largest_tile_has_registers_for_all() -> None:
    """Operands of both layouts, of which K-major ones need more."""
    kernel = lowered(gemm(epilogue="bias, gelu, residual"), "simt_128x64x32_s3_w1", True, True)
    [resources] = kernel.assemble().resources.values()
    assert resources.spill_store_bytes == 0
    assert resources.registers <= 168  # three CTAs a multiprocessor


@pytest.mark.parametrize("schedule", SIMT_CANDIDATES, ids=str)
def test_a_multiprocessor_holds_every_candidate(schedule: GemmSchedule) -> None:
    tiling = Tiling.of(schedule)
    shared = schedule.stages * cost.stage_bytes(tiling, 1)
    shared += cost.partial_bytes(tiling, 1, schedule.split)
    assert cost.resident_ctas(tiling, 1, shared, 228 * 1024) >= 1
    # Every sum is some thread's, once.
    assert tiling.down * tiling.across == tiling.group
    assert tiling.lanes[0] * tiling.lanes[1] == 32


# Rejected -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("simt_64x64x32_s3_w1_c2", "share K, no tiles"),
        ("simt_64x64x32_s3_w1_stream", "no such mark"),
        ("simt_64x64x64_s3_w1", "8, 16, 32 deep"),
        ("simt_96x64x32_s3_w1", "powers of 2"),
        ("simt_128x128x32_s3_w1", "16, 32 or 64 sums"),
        ("simt_64x64x32_s1_w1", "2 stages or more"),
        ("simt_128x64x32_s12_w1", "more stages than shared memory"),
        ("simt_64x64x8_s3_w1_p4", "four elements of K"),
        ("persistent_64x64x64_s3_w1", "the other schedules for bf16 and f16"),
    ],
)
def test_schedules_that_do_not_suit(schedule: str, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered(gemm(), schedule)


def test_halves_have_families_of_their_own() -> None:
    with pytest.raises(LoweringError, match="simt, tf32 and tf32x3 are for f32"):
        lowered(Gemm(), PLAIN)


def test_two_weights_need_sums_for_both() -> None:
    with pytest.raises(LoweringError, match="more sums than registers"):
        lowered(gemm(epilogue="gated"), "simt_128x64x32_s3_w1")
