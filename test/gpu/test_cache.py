# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention over what a cache holds, on a GPU: right at every position, and no slower for room."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

from torch import Tensor, nn  # noqa: E402
from torch.export import Dim  # noqa: E402

import shapejit  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_gpu(device: Device) -> Iterator[None]:
    with torch.no_grad():
        yield


class Cache(nn.Module):
    """New keys go into a cache, and queries see those up to their own.

    Args:
        length: tokens that the cache has room for.
        batch: sequences.
    """

    def __init__(self, length: int, batch: int = 1) -> None:
        super().__init__()
        for name in ("keys", "values"):
            empty = torch.full((batch, 2, length, 128), 1e4, dtype=torch.bfloat16)
            self.register_buffer(name, empty)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[2], device=x.device) + self.count
        self.keys.index_copy_(2, positions, x[:, ::4] * 0.5)
        self.values.index_copy_(2, positions, x[:, ::4] - 1)
        self.count.add_(x.shape[2])
        mask = torch.arange(self.keys.shape[2], device=x.device) <= positions[:, None]
        found: Tensor = nn.functional.scaled_dot_product_attention(
            x, self.keys, self.values, mask, enable_gqa=True
        )
        return found


def compiled(model: Cache, most: int) -> shapejit.Program:
    batch = model.keys.shape[0]
    x = torch.zeros(batch, 8, 3, 128, dtype=torch.bfloat16, device="cuda")
    return shapejit.compile(model, (x,), dynamic_shapes=({2: Dim("new", min=1, max=most)},))


@pytest.mark.parametrize("batch", [1, 3])
def test_every_position(device: Device, batch: int) -> None:
    """Prompts and steps, from the first key to the last one."""
    length = 700
    eager = Cache(length, batch).cuda().eval()
    program = compiled(copy.deepcopy(eager), 512)
    for count in (1, 1, 300, 1, 8, 130, 1, 200, 57, 1):
        x = torch.randn(batch, 8, count, 128, device="cuda").bfloat16()
        got, expected = program(x), eager(x)
        assert bool(got.isfinite().all())
        torch.testing.assert_close(got.float(), expected.float(), rtol=2e-2, atol=2e-2)
    assert int(eager.count) == length


def milliseconds(call: Callable[[], object]) -> float:
    """The time of a call on the GPU: the median of several runs of many."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    for _ in range(7):
        start.record()
        for _ in range(20):
            call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 20)
    return sorted(found)[3]


def test_room_costs_no_time(device: Device) -> None:
    """A step of a cache with room for 64 times as much takes about as long."""
    x = torch.randn(1, 8, 1, 128, device="cuda").bfloat16()
    times = []
    for length in (1024, 65536):
        model = Cache(length).cuda().eval()
        program = compiled(model, 64)

        def step(model: Cache = model, program: shapejit.Program = program) -> None:
            model.count.fill_(500)
            program(x)

        step()
        times.append(milliseconds(step))
    assert times[1] < 1.5 * times[0], f"{times[0]:.4f} and {times[1]:.4f} ms"
