# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products whose K is shared by CTAs that are no cluster, on a GPU: right, repeatable, in streams
side by side."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from gpu.products import launch, noise, poisoned, relative_error  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from shapejit.ops.gemm_operands import Operands  # noqa: E402
from shapejit.passes.nvgpu.schedule import GemmSchedule  # noqa: E402

SCHEDULES = [
    "swapped_64x56x64_s12_w1_k4",
    "swapped_128x80x64_s8_w2_k3",
    "swapped_128x144x64_s6_w2_k3",
    "swapped_256x152x64_s4_w2_k2",
    "persistent_128x256x64_s4_w2_k2",
]
# Parts alone; whole tiles and parts; whole tiles alone; K too short to share.
SHAPES = [
    (282, 2560, 10240), (400, 2048, 5632), (1400, 4096, 4096), (4097, 4096, 1024), (64, 512, 512),
]  # fmt: skip


def linear(m: int, n: int, k: int) -> Operands:
    return Operands(noise(m, k), noise(n, k, seed=1).mT, None, None, None, None, None)


@pytest.mark.parametrize("text", SCHEDULES)
def test_right_and_repeatable(device: Device, text: str) -> None:
    schedule = GemmSchedule.parse(text)
    for shape in SHAPES:
        operands = linear(*shape)
        reference = operands.a.double() @ operands.b.double()
        first, behind = poisoned(*shape[:2])
        launch(schedule, operands, first)
        torch.cuda.synchronize()
        assert relative_error(first, reference) < 5e-3, shape
        assert behind.isnan().all()
        for _ in range(20):
            again, _ = poisoned(*shape[:2])
            launch(schedule, operands, again)
            assert torch.equal(again, first), shape


@pytest.mark.parametrize("text", SCHEDULES)
def test_streams_side_by_side(device: Device, text: str) -> None:
    """Each stream has scratch memory of its own, and kernels only wait for what has a place."""
    schedule, cells = GemmSchedule.parse(text), [linear(*shape) for shape in SHAPES[:2]]
    expected = []
    for operands, shape in zip(cells, SHAPES, strict=False):
        out, _ = poisoned(*shape[:2])
        launch(schedule, operands, out)
        expected.append(out)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(priority=-number) for number in range(4)]
    found = []
    for round_ in range(10):
        for number, stream in enumerate(streams):
            which = (round_ + number) % 2
            with torch.cuda.stream(stream):
                out, _ = poisoned(*SHAPES[which][:2])
                launch(schedule, cells[which], out)
            found.append((which, out))
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected[which]) for which, out in found)
