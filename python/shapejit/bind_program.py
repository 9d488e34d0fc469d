# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs what a program computes from weights alone: its bind part (`shapejit-hoist-weights`).

The bind part is a program of its own, whose inputs are weights. `shapejit.weights.Weights` runs it
when a program is bound to weights and when one of them has changed; what it gives is read by calls
as weights are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from shapejit.artefacts import BindPart, HoistedSpec
from shapejit.execution import Execution


class BindProgram:
    """The bind part of a program, ready to run.

    Not thread-safe: whoever runs it sees to it that runs come one after the other.

    Args:
        part: what the compiler gave.
        execution: of `part.program`.

    Attributes:
        weights: numbers of the weights that it reads, in order.
        hoisted: what it computes, in order.
        runs: how often it ran.
    """

    def __init__(self, part: BindPart, execution: Execution) -> None:
        self.weights = part.weights
        self.hoisted: tuple[HoistedSpec, ...] = part.hoisted
        self.runs = 0
        self._execution = execution
        ranks = sum(part.program.output_ranks)
        self._plan_type = ctypes.c_int64 * (2 + ranks)
        self._symbols = (ctypes.c_int64 * 1)()  # it has none

    @property
    def code_bytes(self) -> int:
        """Its machine code in the memory of a GPU."""
        return self._execution.code_bytes

    def run(self, readable: Sequence[Tensor], old: Sequence[Tensor | None]) -> list[Tensor]:
        """Computes the hoisted tensors; on a GPU, in the current stream.

        Args:
            readable: the weights of `weights`, as kernels read them.
            old: for each result a tensor to write it to, or None for a new one.

        Raises:
            RuntimeError: there is not enough memory.
            CudaError: a launch failed.
        """
        execution = self._execution
        results = [
            self._new(spec) if tensor is None else tensor
            for spec, tensor in zip(self.hoisted, old, strict=True)
        ]
        tensors = [*readable, *results]
        addresses = (tensor.data_ptr() or execution.for_empty for tensor in tensors)
        table = (ctypes.c_void_p * len(tensors))(*addresses)
        plan = self._plan_type()
        execution.plan(self._symbols, plan)
        execution.run(self._symbols, table, plan[0], execution.place())
        # It runs rarely, so calls may have the memory.
        execution.release()
        self.runs += 1
        return results

    def _new(self, spec: HoistedSpec) -> Tensor:
        dtype = getattr(torch, spec.dtype)
        return torch.empty(spec.shape, dtype=dtype, device=self._execution.device)


__all__ = ["BindProgram"]
