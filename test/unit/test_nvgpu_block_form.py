# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels whose parameters lie in a block in device memory: what they must do to be right."""

from __future__ import annotations

import pytest

from reference.hopper.memory import SimulationError
from shapejit.gpu.interface import Size, TensorMap, Workspace
from shapejit.passes.nvgpu.tma import Descriptor
from unit.simulated_gemms import Gemm, LoweredGemm, check, lowered

SCHEDULES = [
    "persistent_64x64x64_s2_w1_stream",
    "persistent_64x64x64_s2_w1_c2",
    "swapped_64x16x64_s3_w1",
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_block_form(schedule: str) -> None:
    check(Gemm(), schedule, 130, 72, 200, block=True)
    check(Gemm(epilogue="bias, relu, residual"), schedule, 70, 72, 200, block=True)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_maps_must_be_acquired(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fence a map that was rewritten may be read as it was before: not right."""
    monkeypatch.setattr(Descriptor, "acquire", lambda self: None)
    gemm, lengths = Gemm(), {"m": 70, "n": 72, "k": 72, "b": 1}
    code = LoweredGemm(gemm, schedule, block=True, ahead=False)
    with pytest.raises(SimulationError, match="acquire"):
        code.run(gemm.inputs(lengths), lengths)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_layout_of_an_entry(schedule: str) -> None:
    """Every parameter at a multiple of its size, none over another, all within the entry."""
    interface = lowered(Gemm(epilogue="bias, relu, residual"), schedule, True).interface
    assert interface.block
    taken: set[int] = set()
    for parameter in interface.parameters:
        match parameter:
            case TensorMap():
                size = 128
            case Size(bytes=size):
                pass
            case _:
                size = 8
        assert parameter.offset % size == 0
        places = set(range(parameter.offset, parameter.offset + size))
        assert not taken & places
        taken |= places
    assert max(taken) < interface.block_bytes
    assert interface.block_bytes % 128 == 0


def test_both_forms_ask_for_the_same() -> None:
    by_value, block = (lowered(Gemm(), SCHEDULES[0], each).interface for each in (False, True))
    assert [type(each) for each in by_value.parameters] == [type(each) for each in block.parameters]
    assert by_value.values == block.values
    assert by_value.grid == block.grid


def test_workspace_has_a_part_for_each_consumer() -> None:
    """64 x 64 sums of 4 bytes a consumer, and as many flags as a GPU has CTAs."""
    interface = lowered(Gemm(), SCHEDULES[0]).interface
    [workspace] = (each for each in interface.parameters if isinstance(each, Workspace))
    assert workspace.bytes_per_cta == 64 * 64 * 4
    assert workspace.zeroed >= 132 * 3 * 4
