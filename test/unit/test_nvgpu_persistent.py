# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The families persistent and swapped: on a simulated GPU against float64, and their code."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from shapejit.gpu.interface import TensorMap
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.schedule import CANDIDATES
from unit.cpu_kernels import examples
from unit.simulated_gemms import Gemm, check, lowered

# Small tiles and short rings, so that few elements make many tiles and laps.
WHOLE = "persistent_64x64x64_s2_w1"
STREAM = "persistent_64x64x64_s2_w1_stream"
TWO_CONSUMERS = "persistent_128x64x64_s2_w2_stream"
SWAPPED = "swapped_64x16x64_s3_w1"
SWAPPED_STREAM = "swapped_128x24x64_s2_w1_stream"
CLUSTER = "persistent_64x64x64_s2_w1_c2"
CLUSTER_STREAM = "swapped_64x16x64_s2_w1_c2_stream"
SCHEDULES = [
    WHOLE,
    STREAM,
    TWO_CONSUMERS,
    SWAPPED,
    SWAPPED_STREAM,
    CLUSTER,
    CLUSTER_STREAM,
]

ROWS = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 129]), st.integers(0, 140))
EIGHTS = st.one_of(st.sampled_from([0, 8, 64, 72, 136]), st.integers(0, 18).map(lambda i: 8 * i))
DEPTHS = st.one_of(st.sampled_from([0, 8, 64, 136]), st.integers(0, 40).map(lambda i: 8 * i))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(m=ROWS, n=EIGHTS, k=DEPTHS, block=st.booleans(), seed=st.integers(0, 1000))
@examples(6)
def test_any_sizes(schedule: str, m: int, n: int, k: int, block: bool, seed: int) -> None:
    check(Gemm(), schedule, m, n, k, block=block, seed=seed)


@pytest.mark.parametrize("schedule", [STREAM, TWO_CONSUMERS, SWAPPED_STREAM, CLUSTER_STREAM])
def test_tiles_shared_along_k(schedule: str) -> None:
    """Many stages and few tiles: every tile is in several hands, and the flags end up lowered."""
    for seed, multiprocessors in enumerate((3, 6, 14)):
        check(Gemm(), schedule, 70, 72, 2000, multiprocessors=multiprocessors, seed=seed)


@pytest.mark.parametrize("schedule", [WHOLE, SWAPPED])
@pytest.mark.parametrize(("lhs", "rhs"), [("km", "nk"), ("mk", "kn"), ("km", "kn")])
@given(m=EIGHTS, n=EIGHTS, k=DEPTHS)
@examples(3)
def test_transposed_operands(schedule: str, lhs: str, rhs: str, m: int, n: int, k: int) -> None:
    check(Gemm(lhs, rhs), schedule, m, n, k)


@pytest.mark.parametrize("schedule", [STREAM, SWAPPED])
@pytest.mark.parametrize(("lhs", "rhs"), [("bmk", "bnk"), ("bmk", "nk"), ("mk", "bkn")])
@given(m=ROWS, n=EIGHTS, k=DEPTHS, b=st.integers(0, 3))
@examples(3)
def test_batches(schedule: str, lhs: str, rhs: str, m: int, n: int, k: int, b: int) -> None:
    check(Gemm(lhs, rhs, "bmn"), schedule, m, n, k, b)


@pytest.mark.parametrize("schedule", [WHOLE, SWAPPED])
def test_strided_operands(schedule: str) -> None:
    """Rows longer than what is read of them, and the middle one of three matrices."""
    check(Gemm(padded=True), schedule, 70, 72, 72, padding=16)
    check(Gemm("xmk", "xnk"), schedule, 70, 72, 72)


@pytest.mark.parametrize("schedule", [WHOLE, SWAPPED, STREAM])
@pytest.mark.parametrize("epilogue", ["bias, relu, residual", "row and column scale", "gated"])
@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_epilogues(schedule: str, epilogue: str, out: str) -> None:
    check(Gemm(epilogue=epilogue, out=out), schedule, 70, 72, 200)
    check(Gemm(epilogue=epilogue, out=out), schedule, 5, 8, 0)


@pytest.mark.parametrize("schedule", [WHOLE, SWAPPED])
def test_f16(schedule: str) -> None:
    check(Gemm(element="f16", out="f16"), schedule, 70, 72, 72)


@pytest.mark.parametrize("schedule", [WHOLE, SWAPPED])
@pytest.mark.parametrize("n", [1, 10, 12])
def test_rows_that_tma_cannot_store(schedule: str, n: int) -> None:
    check(Gemm(sizes=(("n", n),)), schedule, 70, n, 72)


@pytest.mark.parametrize("schedule", [WHOLE, SWAPPED])
@pytest.mark.parametrize("letter", ["m", "n", "k"])
def test_sizes_known_to_be_1(schedule: str, letter: str) -> None:
    sizes = {"m": 24, "n": 24, "k": 24, letter: 1}
    # A single element of K leaves the other dim as the contiguous one.
    layouts = ("km", "kn") if letter == "k" else ("mk", "nk")
    check(Gemm(*layouts, sizes=((letter, 1),)), schedule, **sizes)


def test_three_consumers() -> None:
    check(Gemm(), "persistent_192x64x64_s2_w3", 200, 72, 136)


def test_half_depth() -> None:
    """Lines of 64 bytes, with their own swizzle pattern."""
    check(Gemm(), "persistent_64x64x32_s3_w1", 70, 72, 136)


@pytest.mark.parametrize("schedule", ["persistent_64x24x64_s3_w1", "persistent_128x72x64_s2_w2"])
@pytest.mark.parametrize("block", [False, True])
def test_columns_that_fill_no_panels(schedule: str, block: bool) -> None:
    """Tiles of such columns are stored from registers; their neighbours' columns stay theirs."""
    for gemm, sizes in [
        (Gemm(), (70, 200, 72)),
        (Gemm(), (130, 24, 136)),
        (Gemm("km", "kn"), (72, 80, 72)),
        (Gemm(out="f32"), (1, 72, 64)),
        (Gemm(epilogue="bias, relu, residual"), (40, 96, 64)),
        (Gemm(sizes=(("n", 84),)), (40, 84, 64)),
    ]:
        check(gemm, schedule, *sizes, block=block)
    check(Gemm("bmk", "bnk", "bmn"), schedule, 30, 80, 72, 2, block=block)


# Rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("persistent_128x256x64_s5_w2", "bytes of shared memory"),
        ("persistent_128x256x64_s4_w1", "needs 256 registers"),
        ("persistent_128x64x64_s4_w4", "has 4 consumers"),
        ("persistent_96x64x64_s4_w1", "tiles of 96 rows"),
        ("swapped_128x20x64_s4_w2", "20 columns"),
        ("persistent_128x64x64_s1_w2", "needs 2 stages"),
        ("persistent_64x264x64_s2_w1", "264 long; TMA loads up to 256"),
        ("small_m_64x16x64_s1_w1_k2", "needs 2 stages"),
        ("persistent_128x64x48_s4_w2", "depth of 48"),
        ("persistent_128x64x64_s4_w2_r2", "only small_m does"),
        ("swapped_128x64x64_s4_w2_once", "only small_m is told"),
        ("swapped_128x24x64_s4_w2_c2", "24 lines among 2"),
    ],
)
def test_schedules_that_do_not_suit(schedule: str, words: str) -> None:
    with pytest.raises(LoweringError, match=words):
        lowered(Gemm(), schedule)


@pytest.mark.parametrize(
    ("gemm", "words"),
    [
        (Gemm(sizes=(("k", 12),)), "stride of 12 elements; TMA needs multiples of 8"),
        (Gemm(lhs="kmx"), "TMA needs one of 1"),
        (Gemm(lhs="k", sizes=(("k", 64),)), "stride of 0"),
    ],
)
def test_operands_that_tma_cannot_read(gemm: Gemm, words: str) -> None:
    with pytest.raises(LoweringError, match=words):
        lowered(gemm, WHOLE)


# Machine code -------------------------------------------------------------------------------------

_FULL_SIZE = [str(each) for each in CANDIDATES if each.family in ("persistent", "swapped")]
_CODE = [
    *((Gemm(), schedule) for schedule in _FULL_SIZE),
    (Gemm("km", "kn"), "persistent_128x256x64_s4_w2_stream"),
    (Gemm("km", "kn"), "swapped_256x112x64_s4_w2_stream"),
    (Gemm("bmk", "bnk", "bmn"), "persistent_128x256x64_s4_w2_stream"),
    (Gemm(element="f16", out="f16"), "persistent_128x256x64_s4_w2"),
    (Gemm(out="f32"), "swapped_128x128x64_s6_w2_stream"),
    (Gemm(epilogue="bias, relu, residual"), "persistent_128x256x64_s4_w2_stream"),
    (Gemm(epilogue="bias, relu, residual"), "swapped_256x176x64_s3_w2_stream"),
    (Gemm(epilogue="gated"), "swapped_128x128x64_s4_w2_stream"),
    (Gemm(), "persistent_128x256x64_s4_w2_c2"),
    (Gemm(), "persistent_128x88x64_s8_w2"),
    (Gemm(), "persistent_192x128x64_s4_w3"),
]


@sass.needs_nvdisasm
@pytest.mark.parametrize(("gemm", "schedule"), _CODE)
def test_machine_code(gemm: Gemm, schedule: str) -> None:
    """Assembled without a warning of serialised products; no spills; no register read unset."""
    cubin = lowered(gemm, schedule).assemble()
    [function] = sass.disassemble(cubin.data).values()
    assert function.count("HGMMA") >= 8
    assert function.count("UTMALDG") >= 2
    assert not function.local_memory
    assert not function.read_never_written


@sass.needs_nvdisasm
def test_block_form_acquires_its_maps() -> None:
    """A map that was rewritten is only seen after a fence, by each thread that uses it."""
    for block in (False, True):
        code = lowered(Gemm(), "persistent_128x256x64_s4_w2", block, ahead=block)
        [function] = sass.disassemble(code.assemble().data).values()
        maps = sum(isinstance(each, TensorMap) for each in code.interface.parameters)
        assert function.count("UTMACCTL.IV") == (maps if block else 0)


def test_same_input_same_code() -> None:
    first, second = (lowered.__wrapped__(Gemm(), STREAM, False) for _ in range(2))
    assert first.interface == second.interface
    assert first.assemble().data == second.assemble().data


def test_results_do_not_vary() -> None:
    """Shared tiles are summed in one order, whatever the order of events."""
    gemm, lengths = Gemm(out="f32"), {"m": 70, "n": 72, "k": 2000, "b": 1}
    torch.manual_seed(0)
    inputs = gemm.inputs(lengths)
    code = lowered(gemm, STREAM)
    results = [code.run(inputs, lengths, multiprocessors=6, seed=seed) for seed in range(4)]
    assert all(torch.equal(result, results[0]) for result in results)
