# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The family unaligned: on a simulated GPU against float64, and its machine code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch

from reference import sass
from reference.hopper.memory import SimulationError
from shapejit.passes.nvgpu import unaligned
from shapejit.passes.nvgpu.errors import LoweringError
from unit.cpu_kernels import examples
from unit.simulated_gemms import Gemm, check, lowered

SMALL = "unaligned_64x64x64_s3_w1"
LARGE = "unaligned_128x128x64_s3_w2"

SIZES = st.one_of(st.sampled_from([0, 1, 2, 63, 64, 65]), st.integers(0, 70))
DEPTHS = st.one_of(st.sampled_from([0, 1, 2, 4, 63, 64, 65]), st.integers(0, 280))
# Bytes by which the addresses of lhs, rhs and result miss a multiple of 256.
SHIFTS = st.lists(st.integers(0, 8).map(lambda i: 2 * i), min_size=3, max_size=3)


@pytest.mark.parametrize("schedule", [SMALL, LARGE])
@given(m=SIZES, n=SIZES, k=DEPTHS, shifts=SHIFTS, block=st.booleans(), seed=st.integers(0, 1000))
@examples(10)
def test_any_sizes_and_addresses(
    schedule: str, m: int, n: int, k: int, shifts: Sequence[int], block: bool, seed: int
) -> None:
    check(Gemm(), schedule, m, n, k, shifts=shifts, block=block, multiprocessors=1, seed=seed)


LAYOUTS = [
    ("km", "nk"),
    ("mk", "kn"),
    ("km", "kn"),
    ("mkx", "nkx"),  # no neighbours at all
    ("kxm", "nk"),
    ("k", "nk"),  # every row is the same
    ("mk", "n"),  # every column of the operand is the same
]


@pytest.mark.parametrize("schedule", [SMALL, LARGE])
@pytest.mark.parametrize(("lhs", "rhs"), LAYOUTS)
@given(m=SIZES, n=SIZES, k=DEPTHS, shifts=SHIFTS)
@examples(3)
def test_any_layout(
    schedule: str, lhs: str, rhs: str, m: int, n: int, k: int, shifts: Sequence[int]
) -> None:
    check(Gemm(lhs, rhs), schedule, m, n, k, shifts=shifts)


@pytest.mark.parametrize(
    ("m", "n", "k", "shift"), [(65, 33, 132, 0), (65, 33, 130, 4), (65, 33, 131, 2)]
)
@pytest.mark.parametrize(("lhs", "rhs"), [("mk", "nk"), ("km", "kn")])
def test_every_width_of_words(lhs: str, rhs: str, m: int, n: int, k: int, shift: int) -> None:
    """Chunks at once, as two words, and element by element, in either layout."""
    if lhs == "km":
        m, n, k = k, k + 4, m
    check(Gemm(lhs, rhs), SMALL, m, n, k, shifts=[shift, shift, 0])


@pytest.mark.parametrize(("lhs", "rhs"), [("bmk", "bnk"), ("mbk", "nk"), ("mk", "bkn")])
@given(m=SIZES, n=SIZES, k=DEPTHS, b=st.integers(0, 3))
@examples(3)
def test_batched(lhs: str, rhs: str, m: int, n: int, k: int, b: int) -> None:
    check(Gemm(lhs, rhs, "bmn"), SMALL, m, n, k, b)


@given(m=SIZES, k=DEPTHS, padding=st.integers(0, 9))
@examples(5)
def test_rows_longer_than_what_is_read(m: int, k: int, padding: int) -> None:
    check(Gemm(padded=True), SMALL, m, 33, k, padding=padding)


@pytest.mark.parametrize("schedule", [SMALL, LARGE])
@pytest.mark.parametrize("epilogue", ["bias, relu, residual", "row and column scale"])
@given(m=SIZES, n=SIZES, k=st.sampled_from([0, 1, 65]), shift=st.sampled_from([0, 2]))
@examples(4)
def test_epilogues(schedule: str, epilogue: str, m: int, n: int, k: int, shift: int) -> None:
    shifts = [0, 0, 2 * shift, 2 * shift, 2 * shift]
    if epilogue == "bias, relu, residual":
        shifts = [shift] * 5
    check(Gemm(epilogue=epilogue), schedule, m, n, k, shifts=shifts)


@given(m=SIZES, n=SIZES, k=DEPTHS)
@examples(3)
def test_gated_pairs(m: int, n: int, k: int) -> None:
    check(Gemm(epilogue="gated"), SMALL, m, n, k)


@pytest.mark.parametrize(
    "gemm",
    [Gemm(element="f16", out="f16"), Gemm(out="f32"), Gemm(sizes=(("n", 64), ("k", 64)))],
)
def test_element_types_and_constant_sizes(gemm: Gemm) -> None:
    check(gemm, SMALL, 67, 64, 64, shifts=[2, 6, 4])


@pytest.mark.parametrize("block", [False, True])
def test_more_tiles_than_ctas(block: bool) -> None:
    for seed in range(2):
        check(Gemm(), SMALL, 150, 70, 131, block=block, multiprocessors=1, seed=seed)


# What holds it together ---------------------------------------------------------------------------


@pytest.fixture
def fresh() -> Iterator[None]:
    """Kernels lowered in a test with a fault in the emitter are no one else's."""
    lowered.cache_clear()
    yield
    lowered.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_tensor_cores_read_only_what_was_fenced(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(unaligned, "publish_to_tma", lambda: None)
    with pytest.raises(SimulationError, match="written without a fence"):
        check(Gemm(), SMALL, 65, 33, 131)


@pytest.mark.usefixtures("fresh")
def test_two_stages_would_not_do(monkeypatch: MonkeyPatch) -> None:
    """One warpgroup would write a stage that the other one still multiplies."""
    monkeypatch.setattr(unaligned, "_LEAST_STAGES", 2)
    with pytest.raises(AssertionError, match="too far off"):
        for seed in range(10):
            check(Gemm(), "unaligned_128x64x64_s2_w2", 128, 64, 400, seed=seed)


# Machine code -------------------------------------------------------------------------------------


@sass.needs_nvdisasm
@pytest.mark.parametrize(
    ("schedule", "lhs", "rhs", "block"),
    [
        (SMALL, "mk", "nk", False),
        (SMALL, "mkx", "nkx", True),
        (LARGE, "mk", "nk", True),
        (LARGE, "km", "kn", False),
        (LARGE, "mkx", "nkx", False),
    ],
)
def test_machine_code(schedule: str, lhs: str, rhs: str, block: bool) -> None:
    kernel = lowered(Gemm(lhs, rhs, epilogue="bias, gelu, residual"), schedule, block)
    cubin = kernel.assemble()
    [name] = cubin.resources
    assert cubin.resources[name].spill_store_bytes == 0
    code = sass.disassemble(cubin.data)[name]
    assert not code.local_memory
    assert not code.read_never_written
    assert code.count("HGMMA") == 8
    assert code.count("UTMALDG") == 0
    # Wide words where there are neighbours, single elements in any case.
    # None from the path of memory that is constant: a kernel that starts early reads what is
    # written while it runs.
    assert bool(code.count("LDG.E.64")) == ("x" not in lhs)
    assert code.count("LDG.E.U16") > 0
    assert not any("CONSTANT" in each.opcode for each in code.select("LDG"))


# Rejected -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("unaligned_64x64x64_s3_w1_c2", "share no tiles"),
        ("unaligned_64x64x64_s3_w1_stream", "share no tiles"),
        ("unaligned_64x64x64_s2_w1", "3 stages or more"),
        ("unaligned_64x64x32_s3_w1", "64 deep"),
        ("unaligned_128x64x64_s3_w1", "64 rows a warpgroup"),
        ("unaligned_128x72x64_s3_w2", "multiple of 16 rows and columns"),
    ],
)
def test_schedules_that_do_not_suit(schedule: str, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered(Gemm(), schedule)
