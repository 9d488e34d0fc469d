# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where a system runs, and its clocks: a GPU, or for trying the benchmark out the CPU."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MIB = 2**20


@dataclass(frozen=True)
class Times:
    """Of one call, in microseconds.

    Attributes:
        wall: until the result is there.
        call: until the call returned.
        cpu: processor time that the calling thread used until then.
    """

    wall: float
    call: float
    cpu: float


class Place:
    """A device of torch by its type, "cuda" or "cpu".

    The memory in use is that of the whole GPU, from the moment when a context has been made: so
    it holds everything that a system takes, whoever allocates it, and nothing else may run there.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_gpu = kind == "cuda"
        if self.is_gpu:
            torch.cuda.init()
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
        self._before = self._in_use()

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.is_gpu else platform.machine()

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def pinned(self, tensor: Tensor) -> Tensor:
        """A tensor on the CPU, where the GPU copies it from by itself; the same one on a CPU."""
        return tensor.pin_memory() if self.is_gpu else tensor

    def memory(self) -> float:
        """MiB in use since the context was made; 0 on a CPU."""
        return round((self._in_use() - self._before) / MIB, 1)

    def reserved(self) -> float:
        """MiB that torch's allocator holds; 0 on a CPU."""
        return round(torch.cuda.memory_reserved() / MIB, 1) if self.is_gpu else 0.0

    def _in_use(self) -> int:
        if not self.is_gpu:
            return 0
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def time(self, system: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, Times]:
        """Calls once with nothing else queued: the result, and how long it took."""
        self.synchronize()
        cpu = time.thread_time_ns()
        start = time.perf_counter_ns()
        result = system(*inputs)
        returned = time.perf_counter_ns()
        cpu = time.thread_time_ns() - cpu
        self.synchronize()
        end = time.perf_counter_ns()
        return result, Times((end - start) / 1e3, (returned - start) / 1e3, cpu / 1e3)
