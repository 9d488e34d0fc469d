# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels that may start before the one ahead of them ends."""

from __future__ import annotations

from typing import Any

import mlir.ir as ir
import pytest
import torch

from reference.hopper.launch import kernel_function, simulate
from shapejit import ir as sir
from shapejit.passes.nvgpu.lowering import lower_variant
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import HOPPER
from unit.simulated_gemms import Gemm

SCHEDULES = [
    "persistent_64x64x64_s3_w1",
    "persistent_64x64x64_s3_w1_stream",
    "persistent_64x64x64_s2_w1_c2",
    "swapped_64x16x64_s3_w1_stream",
]


def lower(gemm: Gemm, schedule: str, **options: bool) -> tuple[Any, Any, Any]:
    """The module (which must outlive the function), the function, and its interface."""
    module = ir.Module.parse(gemm.text)
    kernel = sir.kernels(module)["k"]
    interface = lower_variant(kernel, GemmSchedule.parse(schedule), HOPPER, **options)
    [code] = (op for op in sir.operations(module.body) if op.name == "gpu.module")
    module.operation.verify()
    return module, kernel_function(code), interface


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sizes", [(130, 72, 600), (8, 8, 64), (8, 8, 0), (0, 8, 64)])
def test_weights_loaded_ahead(schedule: str, sizes: tuple[int, int, int]) -> None:
    """The first stages have their weights first and the rest later; all later ones are whole."""
    gemm = Gemm()
    m, n, k = sizes
    lengths = {"m": m, "n": n, "k": k, "b": 1}
    torch.manual_seed(0)
    inputs = gemm.inputs(lengths)
    with ir.Context(), ir.Location.unknown():
        options = {"programmatic": True, "constant_weights": True}
        _module, function, interface = lower(gemm, schedule, **options)
        result = torch.empty(m, n, dtype=torch.bfloat16)
        got = simulate(function, interface, inputs, result, [m, n, k, 1, k], multiprocessors=4)
    assert interface.programmatic
    assert torch.allclose(got.double(), gemm.reference(inputs, lengths), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_is_read_before_the_wait(schedule: str) -> None:
    """By default a load never comes before the wait, in any thread's order of the text."""
    with ir.Context(), ir.Location.unknown():
        _module, function, _ = lower(
            Gemm(epilogue="bias, relu, residual"), schedule, programmatic=True
        )
        roles = str(function).split("nvvm.setmaxregister")[1:]
    assert len(roles) == 2
    for role in roles:
        wait = role.index("nvvm.griddepcontrol")
        for access in ("nvgpu.tma.async.load", "ld.global", "llvm.load", "nvgpu.tma.async.store"):
            assert access not in role[:wait]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_only_weights_are_read_before_the_wait(schedule: str) -> None:
    gemm = Gemm(sizes=(("m", 128), ("n", 128)))  # without tiles at edges: one load an operand
    with ir.Context(), ir.Location.unknown():
        options = {"programmatic": True, "constant_weights": True}
        _module, function, _ = lower(gemm, schedule, **options)
        producer = str(function).split("nvvm.setmaxregister")[1]
    before, after = producer.split("nvvm.griddepcontrol", 1)
    assert before.count("nvgpu.tma.async.load") == 1
    assert after.count("nvgpu.tma.async.load") == 2


def test_kernels_that_do_not_overlap_have_no_waits() -> None:
    with ir.Context(), ir.Location.unknown():
        _module, function, interface = lower(Gemm(), SCHEDULES[0], constant_weights=True)
        assert "griddepcontrol" not in str(function)
    assert not interface.programmatic
