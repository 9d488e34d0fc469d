# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors for results, as quickly as torch gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Allocate: TypeAlias = Callable[[Sequence[int], Sequence[int], torch.dtype], Tensor]
"""An uninitialized tensor of a size, strides and dtype."""


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of a size, as torch gives them."""
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def direct_allocator(device: torch.device) -> Allocate | None:
    """What allocates tensors on a device at a third of the cost of torch.empty, if there is that:
    what code made by torch.compile calls. It takes the current device, so it serves where there is
    no other."""
    direct: Allocate | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    alone = device.type == "cuda" and torch.cuda.device_count() == 1
    return direct if alone else None


def allocator(device: torch.device) -> Allocate:
    """What allocates tensors on a device."""
    direct = direct_allocator(device)
    if direct is not None:
        return direct

    def allocate(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    return allocate


__all__ = ["Allocate", "allocator", "contiguous", "direct_allocator"]
