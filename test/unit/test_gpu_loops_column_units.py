# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Long columns whose pieces any CTA takes, on a simulated GPU."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.hopper.memory import SimulationError
from shapejit.passes.gpu_loops import column_units
from shapejit.passes.nvgpu.errors import LoweringError
from unit import gpu_loop_samples as samples
from unit.cpu_kernels import access, assert_close, examples, tensor
from unit.gpu_loop_samples import assert_near, sums, values
from unit.simulated_loops import GpuKernel

WAYS = {
    "a warp's lanes": "loops_v2_w1_k5_t64_c1_units",
    "groups of lanes": "loops_v2_w1_k7_t64_c1_l8_units",
    "a lane": "loops_v4_w1_k7_t64_c1_l1_units",
    "wide indices": "loops_v4_w1_k9_t128_c2_l16_units_wide",
    "groups of lanes without units": "loops_v4_w1_k0_t128_c2_l8",
}


@functools.cache
def _lowered(text: str, variant: str, block: bool = False) -> GpuKernel:
    return GpuKernel(text, variant, block=block, programmatic=block)


@pytest.mark.parametrize("way", WAYS)
@given(m=st.integers(0, 400), n=st.integers(0, 200), places=st.integers(1, 5))
@examples(6)
def test_sums(way: str, m: int, n: int, places: int) -> None:
    """However few CTAs run; of more blocks than units too."""
    x = torch.rand(m, n)
    [y] = _lowered(sums(0), WAYS[way])([x], m, n, multiprocessors=places)
    assert_close(y, x.double().sum(0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("m", "n"), [(0, 5), (1, 1), (1, 64), (300, 16), (777, 8), (65, 101)])
def test_sizes_at_the_ends_of_ranges(way: str, m: int, n: int) -> None:
    x = torch.rand(m, n)
    for shifts in ((0, 0), (4, 0)):
        [y] = _lowered(sums(0), WAYS[way])([x], m, n, shifts=shifts, multiprocessors=3)
        assert_close(y, x.double().sum(0))


@pytest.mark.parametrize(("element", "vector"), [("bf16", 8), ("f16", 8), ("f32", 4)])
@pytest.mark.parametrize("width", [1, 48, 51])
def test_several_outer_rows_and_what_columns_share(element: str, vector: int, width: int) -> None:
    sample = samples.column_sum(element, width)
    inputs = sample.inputs(3, 333)
    kernel = _lowered(sample.text, f"loops_v{vector}_w1_k16_t128_c1_l8_units", block=True)
    assert_near("f32", kernel(inputs, 3, 333, 0), sample.expected(*inputs))


def two_reductions() -> str:
    """The greatest and the sum of columns of i64, over two dims."""
    x, y = tensor("i64", "s0", "s1", "s2"), tensor("i64", "s2")
    at, out = access(3, "d0, d1, d2"), access(3, "d2")
    return f"""
        shapejit.kernel @k symbols 3 (%x: {x}) {{
          %y, %z = shapejit.loop over [s0, s1, s2] ins(%x at {at} : {x})
              outs(max {out} : {y}, add {out} : {y}) {{
          ^bb0(%v: i64):
            shapejit.yield %v, %v : i64, i64
          }}
          shapejit.yield %y, %z : {y}, {y}
        }}"""


@pytest.mark.parametrize(("a", "b", "n"), [(1, 1, 1), (7, 45, 30), (40, 3, 64)])
def test_two_reductions_of_wide_elements_over_two_dims(a: int, b: int, n: int) -> None:
    x = values("i64", a, b, n)
    greatest, total = _lowered(two_reductions(), "loops_v2_w1_k6_t64_c1_l8_units")([x], a, b, n)
    assert torch.equal(greatest, x.amax((0, 1)))
    assert torch.equal(total, x.sum((0, 1)))


def test_results_do_not_depend_on_who_takes_what() -> None:
    x = torch.rand(999, 40)
    runs = [
        _lowered(sums(0), WAYS["groups of lanes"])([x], 999, 40, multiprocessors=places, seed=seed)[
            0
        ]
        for places, seed in ((1, 0), (2, 1), (3, 2), (8, 3))
    ]
    assert all(torch.equal(runs[0], other) for other in runs[1:])


def test_counters_must_be_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_units.ptx, "lower_flag", lambda _: None)
    kernel = GpuKernel(sums(0), WAYS["groups of lanes"])
    with pytest.raises(SimulationError, match="not left at zero"):
        kernel([torch.rand(300, 16)], 300, 16)


@pytest.mark.parametrize(
    ("text", "variant", "message"),
    [
        (sums(0), "loops_v2_w1_k0_t64_c1_units", "columns have up to 4096 units"),
        (sums(0), "loops_v2_w1_k4097_t64_c1_units", "columns have up to 4096 units"),
        (sums(0), "loops_v2_w2_k4_t64_c1_x2_units", "clusters share rows, not columns"),
        (sums(0), "loops_v2_w2_k0_t64_c1_x4", "clusters share rows, not columns"),
        (sums(1), "loops_v2_w1_k4_t64_c1_units", "only the rows of a scan are cut into such"),
    ],
)
def test_schedules_that_columns_do_not_have(text: str, variant: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        GpuKernel(text, variant)
