# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of float32 as three of tf32: on a simulated GPU against float64, and their code."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from shapejit.passes.buckets.problem import GemmTraits
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.schedule import (
    ALL_CANDIDATES,
    TF32X3_CANDIDATES,
    GemmSchedule,
    candidates_for,
)
from unit.cpu_kernels import examples
from unit.simulated_convs import lowered as lowered_conv
from unit.simulated_gemms import Gemm, check, lowered
from unit.test_nvgpu_conv_tf32 import LAYERS

FLOATS = Gemm(element="f32", out="f32")

ONE = "persistent_64x64x32_s3_w1_tf32x3"
TWO = "persistent_128x32x32_s2_w2_tf32x3"
SWAPPED = "swapped_128x24x32_s3_w2_tf32x3"
SMALL = "small_m_64x16x32_s4_w1_tf32x3"
SPLIT = "small_m_128x8x32_s3_w2_k2_tf32x3"
SCHEDULES = [ONE, TWO, SWAPPED, SMALL, SPLIT]

# The widest tiles keep one address in local memory, which is read once a tile.
_SPILLED = 32

SIZES = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 129]), st.integers(0, 140))
FOURS = st.one_of(st.sampled_from([0, 4, 64, 68, 132]), st.integers(0, 34).map(lambda i: 4 * i))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(m=SIZES, n=FOURS, k=FOURS, block=st.booleans(), seed=st.integers(0, 1000))
@examples(5)
def test_any_sizes(schedule: str, m: int, n: int, k: int, block: bool, seed: int) -> None:
    check(FLOATS, schedule, m, n, k, block=block, seed=seed)


@pytest.mark.parametrize("schedule", [ONE, TWO, "swapped_128x32x32_s2_w2_tf32x3", SPLIT])
@pytest.mark.parametrize("sizes", [(70, 36, 68), (9, 130, 100)])
def test_pairs(schedule: str, sizes: tuple[int, int, int]) -> None:
    """Two operands of a side, of rows or of columns, are parted."""
    check(Gemm(element="f32", out="f32", epilogue="gated"), schedule, *sizes)


@pytest.mark.parametrize(
    "schedule",
    [
        "swapped_128x16x32_s3_w2_k3_tf32x3",
        "persistent_128x32x32_s3_w2_stream_tf32x3",
        "persistent_128x32x32_s2_w2_c2_tf32x3",
        "small_m_64x16x32_s3_w1_r2_tf32x3",
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_tiles_that_ctas_share(schedule: str, seed: int) -> None:
    """Along K, or what they load of them; when the kernel ahead may still run, too."""
    check(FLOATS, schedule, 140, 36, 132, block=True, ahead=bool(seed), seed=seed)


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [ONE, SMALL])
def test_error_is_that_of_float32(schedule: str) -> None:
    """Of long sums of like signs, too, which the tensor cores' own sums would cut off."""
    lengths = FLOATS.lengths(64, 16, 4096)
    torch.manual_seed(0)
    for make in (torch.randn, torch.rand):
        lhs, rhs = make(64, 4096), make(16, 4096)
        exact = lhs.double() @ rhs.double().T
        got = lowered(FLOATS, schedule, True).run([lhs, rhs], lengths)
        error = ((got - exact).norm() / exact.norm()).item()
        plain = torch.zeros(64, 16)
        for a, b in zip(lhs.T, rhs.T, strict=True):
            plain = torch.addcmul(plain, a[:, None], b)  # as CUDA cores sum
        assert error <= 3e-7 and error <= ((plain - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("depth", [4, 32, 100])
def test_error_of_short_sums(depth: int) -> None:
    """Of what the parts leave out alone."""
    lengths = FLOATS.lengths(64, 64, depth)
    torch.manual_seed(depth)
    lhs, rhs = torch.randn(64, depth), torch.randn(64, depth)
    exact = lhs.double() @ rhs.double().T
    got = lowered(FLOATS, ONE, True).run([lhs, rhs], lengths)
    assert ((got - exact).norm() / exact.norm()).item() <= 1e-7


def test_numbers_of_all_sizes() -> None:
    """Factors up to those that rounding makes infinite, down to those whose rest is no tf32."""
    lengths = FLOATS.lengths(64, 8, 4)
    top = 3.4019e38
    lhs, rhs = torch.zeros(64, 4), torch.zeros(8, 4)
    lhs[:, 0] = torch.logspace(-30, 38, 64)
    lhs[0, 1], lhs[1, 1] = top, -top
    rhs[:, 0], rhs[:, 1] = 0.7, 0.5
    got = lowered(FLOATS, ONE, False).run([lhs, rhs], lengths)
    exact = lhs.double() @ rhs.double().T
    assert torch.isfinite(got).all()
    assert ((got - exact).abs() <= 2.0**-22 * exact.abs()).all()


@pytest.mark.parametrize("factor", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_stays_so(factor: float) -> None:
    """In the sums that it is in, and in no others."""
    lengths = FLOATS.lengths(65, 8, 36)
    torch.manual_seed(0)
    lhs, rhs = torch.randn(65, 36), torch.randn(8, 36)
    lhs[3, 35] = factor
    got = lowered(FLOATS, ONE, False).run([lhs, rhs], lengths)
    assert (~torch.isfinite(got)).sum(1).tolist() == [8 * (row == 3) for row in range(65)]


# Convolutions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, schedule: str) -> None:
    """All bits of pixels and filters count."""
    layer = LAYERS[name]
    operands = layer.operands(2, (5, 7)[: layer.rank])
    got = lowered_conv(layer, schedule, True, True).run(operands).double()
    expected = layer.reference([each.double() for each in operands])
    assert (got - expected).abs().max() <= 2.0**-20 * expected.abs().max()


# Code ---------------------------------------------------------------------------------------------


@sass.needs_nvdisasm
@pytest.mark.parametrize("schedule", sorted(set(TF32X3_CANDIDATES)), ids=str)
def test_machine_code(schedule: GemmSchedule) -> None:
    """Assembled without a warning of serialised products; no spills; no register read unset."""
    cubin = lowered(FLOATS, str(schedule), True, True).assemble()
    [(name, resources)] = cubin.resources.items()
    code = sass.disassemble(cubin.data)[name]
    assert not code.read_never_written
    assert resources.spill_store_bytes <= _SPILLED
    # Three products of each of four steps, of the last stage and in the loop.
    assert code.count("HGMMA") == 24
    assert all("TF32" in each.opcode for each in code.select("HGMMA"))


def test_without_tensor_maps_there_are_none() -> None:
    for traits, maps in (
        (GemmTraits(4, 4), False),
        (GemmTraits(4, 4, rhs_k_major=False), True),
        (GemmTraits(4, 4, lhs_k_major=False), True),
        (GemmTraits(), True),
    ):
        assert not any(s.tf32x3 for s in candidates_for(traits, ALL_CANDIDATES, maps=maps))
    exact = candidates_for(GemmTraits(4, 4), ALL_CANDIDATES, maps=True)
    assert set(TF32X3_CANDIDATES) < set(exact) and not any(s.tf32 for s in exact)
    rounded = candidates_for(GemmTraits(4, 4), ALL_CANDIDATES, maps=True, rounds=True)
    assert not any(s.tf32x3 for s in rounded)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("persistent_128x64x16_s4_w2_tf32x3", "are 32 deep"),
        ("persistent_128x64x32_s4_w2_turns_tf32x3", "takes turns"),
        ("persistent_256x128x32_s3_w2_tf32x3", "registers for the sums"),
        ("persistent_128x128x32_s7_w2_tf32x3", "bytes of shared memory"),
    ],
)
def test_schedules_that_do_not_suit(schedule: str, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered(FLOATS, schedule)
