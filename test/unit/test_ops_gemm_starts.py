# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whether kernels of `shapejit.ops.gemm` start early: one code, launched as the schedule says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from shapejit.ops import gemm_kernels
from shapejit.ops.gemm_layout import gemm_layout
from shapejit.ops.gemm_operands import Operands, product, result_shape
from shapejit.ops.kernels import CodeMemory
from shapejit.passes.nvgpu.schedule import GemmSchedule
from unit.fake_cuda import Fake
from unit.test_ops_gemm_calls import Builds

LATE = GemmSchedule.parse("swapped_128x80x64_s8_w2_k3")
EARLY = dataclasses.replace(LATE, early=True)


def test_the_mark_is_part_of_the_name() -> None:
    assert str(EARLY) == f"{LATE}_early"
    assert GemmSchedule.parse(str(EARLY)) == EARLY


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    return Fake(Path(tmp_path_factory.mktemp("fake")))


def test_both_ways_are_launched_with_one_code(fake: Fake) -> None:
    x, w = torch.zeros(582, 4096).bfloat16(), torch.zeros(1024, 4096).bfloat16().mT
    operands = Operands(x, w, None, None, None, None, None)
    layout = gemm_layout(product(operands, result_shape(operands), 0))
    device, memory = fake.driver.device(0), CodeMemory()
    builds = Builds()
    kernels = gemm_kernels.KindKernels(layout.kind, device, memory, builds)
    for schedule in (LATE, EARLY):
        loaded = kernels.load(schedule)
        assert loaded.schedule == schedule
        assert loaded.kernel is not None
        loaded.kernel.launch([256] * loaded.kernel.operand_count, [582])
        assert bool(fake.last.programmatic) == schedule.early
    assert set(builds.asked) == {str(LATE)}
    units = [gemm_kernels._unit(layout.kind, device, each) for each in (LATE, EARLY)]
    assert units[0].key.digest == units[1].key.digest
    fake.check()
