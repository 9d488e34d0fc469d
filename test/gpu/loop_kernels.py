# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops on a GPU, launched by value and in block form."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shapejit.gpu.device import Device
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.symbolic import Expr
from unit.simulated_loops import GpuKernel

_BEHIND = 1024  # elements behind a result that must stay as they are
_ALIGNMENT = 128


class DeviceKernel:
    """A lowered kernel on a GPU.

    Args:
        lowered: the kernel.
        device: the GPU.
    """

    def __init__(self, lowered: GpuKernel, device: Device) -> None:
        self.lowered = lowered
        self.kernel = Kernel(lowered.interface, Module(lowered.assemble().data, device))

    def __call__(self, inputs: Sequence[Tensor], *symbols: int) -> list[Tensor]:
        """The results, which are poisoned before; checks that nothing behind them is written.

        Args:
            inputs: on the GPU.
            symbols: the kernel's.
        """
        memories, results = [], []
        for dtype, sizes in self.lowered.results:
            shape = [size.evaluate(symbols) for size in sizes]
            poison = math.nan if dtype.is_floating_point else 1
            count = math.prod(shape) + _BEHIND
            memory = torch.full((count,), poison, device="cuda", dtype=dtype)
            memories.append(memory)
            results.append(memory[: math.prod(shape)].view(shape))
        behind = [
            memory[each.numel() :].clone() for memory, each in zip(memories, results, strict=True)
        ]
        addresses = [each.data_ptr() for each in (*inputs, *results)]
        values = [Expr.parse(text).evaluate(symbols) for text in self.kernel.interface.values]
        self.launch(addresses[: self.kernel.operand_count], values)
        torch.cuda.synchronize()
        for memory, each, before in zip(memories, results, behind, strict=True):
            torch.testing.assert_close(
                memory[each.numel() :], before, rtol=0, atol=0, equal_nan=True
            )
        return results

    def launch(self, addresses: Sequence[int], values: Sequence[int]) -> None:
        """Launches it into torch's current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        if not self.kernel.interface.block:
            self.kernel.launch(addresses, values, stream)
            return
        size = self.kernel.interface.block_bytes
        raw = ctypes.create_string_buffer(size + _ALIGNMENT)
        start = -(-ctypes.addressof(raw) // _ALIGNMENT) * _ALIGNMENT
        scratch = torch.zeros(self.kernel.workspace_bytes, dtype=torch.uint8, device="cuda")
        self.kernel.fill_block(addresses, values, start, scratch.data_ptr() or None)
        entry = torch.frombuffer(bytearray(ctypes.string_at(start, size)), dtype=torch.uint8)
        block = torch.zeros(size + _ALIGNMENT, dtype=torch.uint8, device="cuda")
        first = -block.data_ptr() % _ALIGNMENT
        block[first : first + size].copy_(entry)
        self.kernel.launch_block(block.data_ptr() + first, stream)
