# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels that divide the keys of few queries, on a GPU: at every kind of size, in both
forms, repeatable, one launch after the other; and batches that differ in length."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from gpu.attention_kernels import check, loaded  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from shapejit.passes.nvgpu.attention.decode_choice import (  # noqa: E402
    MANY_TILES,
    SCHEDULES,
)
from unit.simulated_attention import Attention  # noqa: E402
from unit.simulated_spans import SpanAttention  # noqa: E402

DECODE = Attention(32, 8, d=128, layout="bhm", causal="s2 - s1")
VARIANTS = {
    "four heads on one": DECODE,
    "eight heads on one": Attention(8, 1, d=64, layout="bhm", causal="s2 - s1"),
    "heads of their own": Attention(12, d=64, layout="bhm"),
    "padding mask": Attention(8, 2, d=32, mask="i1"),
    "a mask of each head": Attention(8, 2, d=64, mask="i1", mask_shape="s0, 8, 1, s2"),
    "float mask": Attention(8, 4, d=64, mask="f32", mask_shape="1, 1, s1, s2"),
    "f16": Attention(8, 2, d=128, element="f16", layout="bhm"),
    "heads of 256": Attention(8, 2, d=256, layout="bhm"),
    "rows that start anywhere": Attention(3, d=7, dv=5),
    "first queries see nothing": Attention(4, 2, d=64, causal="-3"),
}
SIZES = [
    (1, 1, 1), (0, 1, 4), (2, 0, 3), (2, 3, 0), (1, 1, 128), (3, 1, 333), (1, 16, 1000),
    (7, 5, 129), (2, 1, 8191), (1, 2, 32768), (33, 1, 2049), (2, 65, 700),
]  # fmt: skip


REPEATS = 3  # shares meet in an order that differs from launch to launch


def schedule_of(attention: Attention, *, many: bool = False) -> str:
    size = max(attention.d, attention.value)
    table = MANY_TILES if many else SCHEDULES
    return next(str(schedule) for most, schedule in table.items() if size <= most)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(device: Device, name: str, block: bool, many: bool) -> None:
    attention = VARIANTS[name]
    kernel = loaded(device, attention, schedule_of(attention, many=many), block)
    assert not kernel.kernel.local_bytes, "spills"
    generator = random.Random(name)
    sizes = list(SIZES)
    for _ in range(12):
        most = generator.choice([100, 1000, 5000])
        sizes.append(
            (generator.randint(1, 9), generator.randint(1, 20), generator.randint(1, most))
        )
    wrong = [check(kernel, attention, each, REPEATS) for each in sizes]
    assert not list(filter(None, wrong))


SPANS = {
    "lengths": SpanAttention(8, 2, d=64, lengths="i32"),
    "ragged": SpanAttention(8, 2, d=64, starts="i32", causal="0", from_end=True),
    "ragged with lengths": SpanAttention(4, 4, d=128, starts="i64", lengths="i64"),
}


@pytest.mark.parametrize("schedule", ["split", "tiles_64x64_w2_c1", "tiles_128x64_c1"])
@pytest.mark.parametrize("name", SPANS)
def test_batches_that_differ(device: Device, name: str, schedule: str) -> None:
    attention = SPANS[name]
    chosen = schedule_of(attention) if schedule == "split" else schedule
    wrong = []
    for block in (False, True):
        kernel = loaded(device, attention, chosen, block)
        for sizes in ((1, 1, 1), (4, 1, 500), (9, 70, 333), (30, 3, 2000), (3, 0, 5), (3, 5, 0)):
            wrong.append(check(kernel, attention, sizes, REPEATS))
    assert not list(filter(None, wrong))


def test_both_forms_give_the_same_bits(device: Device) -> None:
    plain, block = (loaded(device, DECODE, str(SCHEDULES[128]), form) for form in (False, True))
    for sizes in ((1, 1, 100), (1, 1, 5000), (5, 3, 777)):
        torch.manual_seed(0)
        inputs = [each.cuda() for each in DECODE.inputs(*sizes)]
        one, other = plain(inputs, *sizes), block(inputs, *sizes)
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_captured(device: Device) -> None:
    """All launches of the graph with one scratch memory."""
    key, value = (torch.randn(2, 8, 3000, 64, device="cuda").bfloat16() for _ in range(2))
    query = torch.randn(2, 8, 1, 64, device="cuda").bfloat16()
    kernel = loaded(device, Attention(8, d=64, layout="bhm"), str(SCHEDULES[64]), False)
    kernel.check_chain(query, key, value, lengths=(2, 1, 3000))
