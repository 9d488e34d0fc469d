# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Operands of products on a GPU, one schedule of a product, and how far a result is off."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shapejit.ops.gemm import kernels_of
from shapejit.ops.gemm_operands import Operands, result_shape
from shapejit.passes.nvgpu.schedule import GemmSchedule

_BEHIND = 4096  # poisoned elements behind a result


def noise(*sizes: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    """Normal numbers, the same ones for the same sizes and seed."""
    generator = torch.Generator("cuda").manual_seed(seed + sum(sizes))
    return torch.randn(*sizes, device="cuda", generator=generator).to(dtype)


def poisoned(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """A result full of NaN, and what lies behind it in memory."""
    count = math.prod(sizes)
    memory = torch.full((count + _BEHIND,), float("nan"), device="cuda", dtype=dtype)
    return memory[:count].view(*sizes), memory[count:]


def relative_error(result: Tensor, reference: Tensor) -> float:
    """Of the result's norm; 0 for a result without elements."""
    if not reference.numel():
        return 0.0
    return ((result.double() - reference).norm() / reference.norm().clamp(min=1e-30)).item()


def launch(schedule: GemmSchedule, operands: Operands, out: Tensor) -> None:
    """Runs the kernel of one schedule, whatever the dispatch would choose."""
    layout, kernels = kernels_of(operands, result_shape(operands), out.data_ptr())
    loaded = kernels.load(schedule)
    values = [value.evaluate(layout.symbols) for value in loaded.values]
    addresses = [tensor.data_ptr() for tensor in (*operands.tensors, out)]
    assert loaded.kernel is not None
    loaded.kernel.launch(addresses, values, torch.cuda.current_stream().cuda_stream)
