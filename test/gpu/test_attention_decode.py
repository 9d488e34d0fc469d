# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels that divide the keys of few queries, on a GPU: at every kind of size, in both
forms, repeatable, one launch after the other; and batches that differ in length."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from torch import Tensor  # noqa: E402

from shapejit.gpu.device import Device  # noqa: E402
from shapejit.gpu.launch import Kernel  # noqa: E402
from shapejit.gpu.module import Module  # noqa: E402
from shapejit.passes.nvgpu.attention.decode_choice import (  # noqa: E402
    MANY_TILES,
    SCHEDULES,
)
from shapejit.symbolic import Expr  # noqa: E402
from unit.simulated_attention import Attention, LoweredAttention  # noqa: E402
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


class Loaded:
    """A kernel on the device, and calls of it with results that are poisoned before."""

    def __init__(self, device: Device, attention: Attention, variant: str, block: bool) -> None:
        self._attention = attention
        code = LoweredAttention(attention, variant, block, block)
        self.kernel = Kernel(code.interface, Module(code.assemble().data, device))
        bytes_ = max(self.kernel.workspace_bytes, 16)
        self._workspace = torch.zeros(bytes_, dtype=torch.uint8, device="cuda")

    def __call__(self, inputs: Sequence[Tensor], b: int, m: int, n: int) -> Tensor:
        """The result; nothing is written behind it, and counters are left at zero."""
        empty = self._attention.result(b, m)
        poison = torch.full((empty.numel() + 4096,), float("nan"), dtype=empty.dtype)
        memory = poison.cuda()
        interface = self.kernel.interface
        symbols = self._attention.symbols(b, m, n)
        values = [Expr.parse(value).evaluate(symbols) for value in interface.values]
        addresses = [tensor.data_ptr() for tensor in (*inputs, memory)]
        stream = torch.cuda.current_stream().cuda_stream
        workspace = self._workspace.data_ptr() if self.kernel.workspace_bytes else None
        if interface.block:
            entry = torch.zeros(interface.block_bytes, dtype=torch.uint8).pin_memory()
            self.kernel.fill_block(addresses, values, entry.data_ptr(), workspace)
            self.kernel.launch_block((resident := entry.cuda()).data_ptr(), stream)
            torch.cuda.synchronize()
            del resident
        else:
            self.kernel.launch(addresses, values, stream, workspace)
            torch.cuda.synchronize()
        assert memory[empty.numel() :].isnan().all(), "wrote behind the result"
        assert not self._workspace[:4096].any(), "a counter is not back at zero"
        return memory[: empty.numel()].view(empty.shape)


@functools.cache
def loaded(device: Device, attention: Attention, variant: str, block: bool) -> Loaded:
    return Loaded(device, attention, variant, block)


def schedule_of(attention: Attention, *, many: bool = False) -> str:
    size = max(attention.d, attention.value)
    table = MANY_TILES if many else SCHEDULES
    return next(str(schedule) for most, schedule in table.items() if size <= most)


def check(kernel: Loaded, attention: Attention, sizes: tuple[int, int, int]) -> str:
    """What is wrong at a size; nothing if all is well. Compared with float64."""
    b, m, n = sizes
    torch.manual_seed(b * 1000003 + m * 1009 + n)
    inputs = attention.inputs(b, m, n)
    resident = [each.cuda() for each in inputs]
    first, *others = (kernel(resident, b, m, n) for _ in range(3))
    if not all(torch.equal(first.view(torch.int16), each.view(torch.int16)) for each in others):
        return f"{sizes} varies"
    expected = attention.reference(inputs, b, m, n)
    if not expected.numel():
        return ""
    worst = ((first.cpu().double() - expected).abs() - attention.allowed(inputs, expected)).max()
    return "" if worst.item() <= 0 else f"{sizes} is {worst.item()} too far off"


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
    wrong = [check(kernel, attention, each) for each in sizes]
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
            wrong.append(check(kernel, attention, sizes))
    assert not list(filter(None, wrong))


def test_both_forms_give_the_same_bits(device: Device) -> None:
    plain, block = (loaded(device, DECODE, str(SCHEDULES[128]), form) for form in (False, True))
    for sizes in ((1, 1, 100), (1, 1, 5000), (5, 3, 777)):
        torch.manual_seed(0)
        inputs = [each.cuda() for each in DECODE.inputs(*sizes)]
        one, other = plain(inputs, *sizes), block(inputs, *sizes)
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_captured(device: Device) -> None:
    """Launches in a CUDA graph, one after the other, each reading what the one before wrote, all
    with one scratch memory."""
    attention = Attention(8, d=64, layout="bhm")
    kernel = loaded(device, attention, str(SCHEDULES[64]), False).kernel
    key, value = (torch.randn(2, 8, 3000, 64, device="cuda").bfloat16() for _ in range(2))
    start = torch.randn(2, 8, 1, 64, device="cuda").bfloat16()
    values = [Expr.parse(text).evaluate([2, 1, 3000]) for text in kernel.interface.values]

    def chain() -> Tensor:
        query = start
        for _ in range(20):
            out = torch.empty_like(query)
            addresses = [each.data_ptr() for each in (query, key, value, out)]
            kernel.launch(addresses, values, torch.cuda.current_stream().cuda_stream)
            query = out
        return query

    expected = chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = chain()
    for _ in range(3):
        result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, expected)
