# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scans whose rows are cut into units that any CTA takes, on a simulated GPU."""

from __future__ import annotations

import pytest
import torch

from reference.hopper.memory import SimulationError
from shapejit.passes.gpu_loops import scan_units, scans
from shapejit.passes.nvgpu.errors import LoweringError
from unit.cpu_kernels import DTYPES
from unit.row_kernels import random_rows, scan
from unit.simulated_loops import GpuKernel

#: Units of 64 and of 256 elements.
SMALL, VECTORS = "loops_v1_w2_k1_t64_c1_units", "loops_v2_w2_k2_t64_c1_units"


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit for each lane, so that small rows have several groups."""
    for module in (scan_units, scans):
        monkeypatch.setattr(module, "GROUP", 32)


def check_sums(kernel: GpuKernel, m: int, n: int, places: int = 4, seed: int = 0) -> torch.Tensor:
    x = torch.rand(m, n)
    [y] = kernel([x], m, n, multiprocessors=places, seed=seed)
    torch.testing.assert_close(y.double(), x.double().cumsum(1), rtol=1e-5, atol=1e-5)
    return y


@pytest.mark.parametrize(
    ("m", "n", "places"),
    [(1, 1, 4), (1, 64, 4), (1, 65, 1), (3, 200, 3), (1, 2200, 5), (0, 7, 2), (2, 0, 2)],
)
def test_sums(m: int, n: int, places: int) -> None:
    """However few CTAs run, none waits for one that cannot."""
    check_sums(GpuKernel(scan("add", "f32"), SMALL), m, n, places)


@pytest.mark.parametrize("n", [700, 701])
def test_vectors_and_single_elements(n: int) -> None:
    check_sums(GpuKernel(scan("add", "f32"), VECTORS, block=True, programmatic=True), 2, n)


@pytest.mark.parametrize("element", ["i64", "f64"])
def test_wide_elements(element: str) -> None:
    x = random_rows(DTYPES[element], 1, 300)
    [y] = GpuKernel(scan("add", element), VECTORS)([x], 1, 300)
    torch.testing.assert_close(y, x.cumsum(1))


def test_extrema_and_their_places() -> None:
    x = random_rows(torch.float32, 2, 300, nan=True)
    values, places = GpuKernel(scan("max", "f32", indexed=True), SMALL)([x], 2, 300)
    wanted = x.cummax(1)
    torch.testing.assert_close(values, wanted[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, wanted[1])


def test_results_do_not_depend_on_who_takes_what() -> None:
    kernel = GpuKernel(scan("add", "f32"), SMALL)
    x = torch.rand(1, 900)
    runs = [
        kernel([x], 1, 900, multiprocessors=places, seed=seed)[0]
        for places, seed in ((1, 0), (3, 1), (8, 2))
    ]
    assert all(torch.equal(runs[0], other) for other in runs[1:])


@pytest.mark.parametrize("block", [False, True])
def test_devices_of_few_multiprocessors(block: bool) -> None:
    """Rows may have as many units there, and those as much scratch memory: 150 units of one CTA."""
    check_sums(GpuKernel(scan("add", "f32"), SMALL, block=block), 1, 150 * 64, places=1)


def test_flags_must_be_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_units.ptx, "lower_flag", lambda _: None)
    kernel = GpuKernel(scan("add", "f32"), SMALL)
    with pytest.raises(SimulationError, match="not left at zero"):
        check_sums(kernel, 1, 100)


def test_states_must_be_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_units.ptx, "await_flag", lambda _: None)
    kernel = GpuKernel(scan("add", "f32"), SMALL)
    with pytest.raises(AssertionError):
        for seed in range(3):
            check_sums(kernel, 1, 900, seed=seed)


@pytest.mark.parametrize(
    "variant",
    ["loops_v1_w1_k1_t32_c1_units", "loops_v1_w2_k0_t64_c1_units", "loops_v1_w1_k1_t64_c1_units"],
)
def test_schedules_that_have_no_units(variant: str) -> None:
    with pytest.raises(LoweringError, match="a unit is that of a CTA"):
        GpuKernel(scan("add", "f32"), variant)


def test_few_very_long_rows_have_units() -> None:
    kernel = GpuKernel(scan("add", "f32"), sizes={0: (0, 500), 1: (0, 1 << 20)})
    serving = {lower: variant for lower, _, variant, _ in kernel.buckets}
    assert serving[(131073, 0)] == "loops_v4_w16_k4_t512_c2_units"
    assert serving[(131073, 5)] == "loops_v4_w32_k0_t1024_c1_x16"
    # The longest have no more units than there are flags for.
    kernel = GpuKernel(scan("add", "f64"), sizes={0: (1, 1), 1: (0, 1 << 26)})
    longest = [upper for _, (upper,), variant, _ in kernel.buckets if "units" in variant]
    assert max(longest) == scan_units.MOST_UNITS * 4 * 2 * 512
