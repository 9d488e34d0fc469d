# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of float32 on tensor cores, which round factors to tf32: on a simulated GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference import sass
from shapejit.ops import gemm_kernels
from shapejit.ops.gemm_operands import Operands
from shapejit.passes.buckets.problem import GemmTraits
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.schedule import (
    ALL_CANDIDATES,
    CANDIDATES,
    TF32_CANDIDATES,
    GemmSchedule,
    candidates_for,
)
from unit import test_ops_gemm as ops
from unit.simulated_gemms import Gemm, lowered

GEMM = Gemm(element="f32", out="f32")


def rounded(number: Tensor) -> Tensor:
    """The nearest number with 11 of the 24 bits of a float32's significand, of two the even one."""
    significand, exponent = torch.frexp(number.double())
    return torch.ldexp(torch.round(significand * 2.0**11) * 2.0**-11, exponent).float()


@pytest.mark.parametrize(
    "schedule",
    [
        "persistent_64x64x32_s3_w1_tf32",
        "swapped_128x64x32_s3_w2_tf32",
        "small_m_64x16x32_s4_w1_k2_tf32",
    ],
)
@pytest.mark.parametrize(("m", "n", "k"), [(65, 72, 72), (3, 128, 36), (17, 36, 0)])
def test_factors_are_rounded_and_nothing_else(schedule: str, m: int, n: int, k: int) -> None:
    lengths = GEMM.lengths(m, n, k)
    torch.manual_seed(m + n + k)
    inputs = GEMM.inputs(lengths)
    got = lowered(GEMM, schedule, True, True).run(inputs, lengths).double()
    expected = GEMM.reference([rounded(each) for each in inputs], lengths)
    assert (got - expected).abs().max() <= 2.0**-20 * expected.abs().max()
    if k:
        exact = GEMM.reference(inputs, lengths)
        assert (got - exact).abs().max() > 2.0**-14 * exact.abs().max()


@sass.needs_nvdisasm
def test_machine_code() -> None:
    kernel = lowered(GEMM, "small_m_64x16x32_s9_w1_tf32", True)
    cubin = kernel.assemble()
    [name] = cubin.resources
    code = sass.disassemble(cubin.data)[name]
    assert not code.read_never_written
    assert code.count("HGMMA") == 8  # four of a stage, peeled and in the loop
    assert all("TF32" in each.opcode for each in code.select("HGMMA"))


# Choice -------------------------------------------------------------------------------------------


def test_stages_have_as_many_bytes_as_those_of_16_bits() -> None:
    for half, tf32 in zip(CANDIDATES, TF32_CANDIDATES, strict=True):
        assert 4 * tf32.depth == 2 * half.depth
        assert GemmSchedule.parse(str(tf32)) == tf32


def test_only_for_neighbours_along_k() -> None:
    for traits, some in (
        (GemmTraits(element_bytes=4), True),
        (GemmTraits(element_bytes=4, rhs_k_major=False), False),
        (GemmTraits(element_bytes=4, lhs_k_major=False), False),
        (GemmTraits(element_bytes=2), False),
    ):
        found = candidates_for(traits, ALL_CANDIDATES, maps=True, rounds=True)
        assert any(each.tf32 for each in found) == some
    assert not any(each.tf32 for each in candidates_for(GemmTraits(4, 4), ALL_CANDIDATES))


@pytest.mark.parametrize(("width", "tf32"), [(4096, True), (4099, False)])
def test_ops_gemm_uses_tensor_cores_where_it_may(width: int, tf32: bool) -> None:
    a, b = torch.zeros(64, width), torch.zeros(4096, width)
    for allowed in (False, True):
        operands = Operands(a, b.mT, None, None, None, None, None, allowed)
        layout = ops.layout_of(operands)
        kernels = gemm_kernels.KindKernels(layout.kind, None, None, None)  # type: ignore[arg-type]
        assert kernels.choose_rows(layout, 64).tf32 == (allowed and tf32)


# Rejected -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gemm", "schedule", "reason"),
    [
        (GEMM, "persistent_64x64x64_s3_w1", "simt, tf32 and tf32x3 are for f32"),
        (Gemm(), "persistent_64x64x32_s3_w1_tf32", "simt, tf32 and tf32x3 are for f32"),
        (GEMM, "persistent_64x64x64_s3_w1_tf32", "tiles are 16 or 32 deep"),
        (
            Gemm("mk", "kn", element="f32", out="f32"),
            "persistent_64x64x32_s3_w1_tf32",
            "use a schedule of the family simt",
        ),
    ],
)
def test_schedules_that_do_not_suit(gemm: Gemm, schedule: str, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered(gemm, schedule)
