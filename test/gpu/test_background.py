# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs on a GPU that are called while the rest of their code is built."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from torch import Tensor  # noqa: E402

import shapejit  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from unit.gpu_programs import Deep, tokens  # noqa: E402

_WIDTH = 768


@pytest.fixture(autouse=True)
def _on_the_gpu(device: Device) -> Iterator[None]:
    with torch.no_grad():
        yield


def check(program: shapejit.Program, exact: Deep, x: Tensor) -> None:
    """A call against float64."""
    expected = exact(x.double())
    off = (program(x).double() - expected).norm() / expected.norm()
    assert off.item() < 0.01


def test_calls_while_code_is_built(device: Device) -> None:
    """Right before, during and after the replacement; so is a graph captured before it."""
    model = Deep(_WIDTH).cuda().eval()
    exact = copy.deepcopy(model).double()
    x = torch.randn(7, _WIDTH, device="cuda").bfloat16()
    # A range that no other test has, so that the cache does not have the whole program.
    most = 2048 + uuid.uuid4().int % 2048
    program = shapejit.compile(model, (x,), dynamic_shapes=tokens(most), background=True)
    counts = [1, 7, 64, 129, 1000, 2048]
    inputs = {count: torch.randn(count, _WIDTH, device="cuda").bfloat16() for count in counts}
    check(program, exact, inputs[64])
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = program(inputs[129])
    calls = 0
    while calls < 20 or not program.wait(0):
        check(program, exact, inputs[counts[calls % len(counts)]])
        calls += 1
    assert program.wait(300)
    stats = program.stats()
    assert stats.is_complete
    assert stats.replacements == 1, "the build failed; the log says why"
    for x in inputs.values():
        check(program, exact, x)
    captured.replay()
    expected = exact(inputs[129].double())
    assert ((y.double() - expected).norm() / expected.norm()).item() < 0.01
    graphs = program.stats().graphs
    assert graphs is not None and graphs.graphs > 0
