# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One attention kernel on a device: calls with poisoned results, and what is wrong with them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from shapejit.gpu.device import Device
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.symbolic import Expr
from unit.simulated_attention import Attention, LoweredAttention

_POISONED = 4096  # elements behind a result
_COUNTERS_BYTES = 4096  # a scratch memory begins with counters, which every launch leaves at zero
_CHAIN = 20
_REPLAYS = 3


class Loaded:
    """A kernel on the device, and calls of it with results that are poisoned before."""

    def __init__(self, device: Device, attention: Attention, variant: str, block: bool) -> None:
        self._attention = attention
        code = LoweredAttention(attention, variant, block, block)
        self.kernel = Kernel(code.interface, Module(code.assemble().data, device))
        bytes_ = max(self.kernel.workspace_bytes, 16)
        self._workspace = torch.zeros(bytes_, dtype=torch.uint8, device="cuda")

    def values(self, b: int, m: int, n: int) -> list[int]:
        """What a launch is given beside its addresses."""
        symbols = self._attention.symbols(b, m, n)
        return [Expr.parse(value).evaluate(symbols) for value in self.kernel.interface.values]

    def __call__(self, inputs: Sequence[Tensor], b: int, m: int, n: int) -> Tensor:
        """The result; nothing is written behind it, and counters are left at zero."""
        empty = self._attention.result(b, m)
        poison = torch.full((empty.numel() + _POISONED,), float("nan"), dtype=empty.dtype)
        memory = poison.cuda()
        addresses = [tensor.data_ptr() for tensor in (*inputs, memory)]
        self._launch(addresses, self.values(b, m, n))
        assert memory[empty.numel() :].isnan().all(), "wrote behind the result"
        assert not self._workspace[:_COUNTERS_BYTES].any(), "a counter is not back at zero"
        return memory[: empty.numel()].view(empty.shape)

    def _launch(self, addresses: list[int], values: list[int]) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        workspace = self._workspace.data_ptr() if self.kernel.workspace_bytes else None
        interface = self.kernel.interface
        if interface.block:
            entry = torch.zeros(interface.block_bytes, dtype=torch.uint8).pin_memory()
            self.kernel.fill_block(addresses, values, entry.data_ptr(), workspace)
            self.kernel.launch_block((resident := entry.cuda()).data_ptr(), stream)
            torch.cuda.synchronize()
            del resident
        else:
            self.kernel.launch(addresses, values, stream, workspace)
            torch.cuda.synchronize()

    def check_chain(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]
    ) -> None:
        """Captures launches in a CUDA graph, each reading what the one before wrote.

        Args:
            query: of the shape of a result.
            lengths: (batch, queries, keys).
        """
        values = self.values(*lengths)

        def chain() -> Tensor:
            last = query
            for _ in range(_CHAIN):
                out = torch.empty_like(last)
                addresses = [each.data_ptr() for each in (last, key, value, out)]
                self.kernel.launch(addresses, values, torch.cuda.current_stream().cuda_stream)
                last = out
            return last

        expected = chain()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = chain()
        for _ in range(_REPLAYS):
            result.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(result, expected)


@functools.cache
def loaded(device: Device, attention: Attention, variant: str, block: bool) -> Loaded:
    return Loaded(device, attention, variant, block)


def check(
    kernel: Loaded, attention: Attention, sizes: tuple[int, int, int], repeats: int = 2
) -> str:
    """What is wrong at a size; nothing if all is well. Compared with float64."""
    b, m, n = sizes
    if attention.layout == "packed":
        n = m
    torch.manual_seed(b * 1000003 + m * 1009 + n)
    inputs = [each.cuda() for each in attention.inputs(b, m, n)]
    first, *others = (kernel(inputs, b, m, n) for _ in range(repeats))
    if not all(torch.equal(first.view(torch.int16), each.view(torch.int16)) for each in others):
        return f"{sizes} varies"
    expected = attention.reference(inputs, b, m, n)
    if not expected.numel():
        return ""
    worst = ((first.double() - expected).abs() - attention.allowed(inputs, expected)).max().item()
    return "" if worst <= 0 else f"{sizes} is {worst} too far off"
