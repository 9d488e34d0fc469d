# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors of the caller's that receive a program's results: ``program(x, out=y)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shapejit.changes import overlaps
from shapejit.errors import ErrorId
from shapejit.native_calls import has_memory


class GivenOutputs:
    """Checks tensors that are to receive results.

    Args:
        dtypes: torch's names of the dtypes of the tensors in the result, in order.
        device: where they have to be.
        alignment: bytes that their addresses have to be multiples of.
    """

    def __init__(self, dtypes: Sequence[str], device: torch.device, alignment: int) -> None:
        self._dtypes = [getattr(torch, dtype) for dtype in dtypes]
        self._device = device
        self._alignment = alignment

    def checked(
        self, out: Any, sizes: Sequence[Sequence[int]], read: Sequence[Tensor]
    ) -> list[Tensor]:
        """The tensors of `out`, which native code may write.

        Args:
            out: a tensor, or a sequence with one for each tensor of the result.
            sizes: of the results, in order.
            read: tensors that the call reads.

        Raises:
            ArgumentError: they do not fit (SJ-ARG-011).
        """
        tensors = [out] if isinstance(out, Tensor) else out
        if not isinstance(tensors, (list, tuple)) or len(tensors) != len(sizes):
            count = f"{len(sizes)} tensor{'' if len(sizes) == 1 else 's'}"
            found = len(tensors) if isinstance(tensors, (list, tuple)) else type(out).__name__
            raise ErrorId.SJ_ARG_011.error(argument="out", value=found, rule=f"it must be {count}")
        for number, (tensor, dtype, size) in enumerate(
            zip(tensors, self._dtypes, sizes, strict=True)
        ):
            name = "out" if isinstance(out, Tensor) else f"out[{number}]"
            self._check(name, tensor, dtype, tuple(size))
        shared = overlaps([*tensors, *read], range(len(tensors)))
        if shared:
            rule = "it must share no memory with another tensor of the call"
            name = "out" if isinstance(out, Tensor) else f"out[{shared[0][0]}]"
            raise ErrorId.SJ_ARG_011.error(argument=name, value="not apart", rule=rule)
        return list(tensors)

    def _check(self, name: str, tensor: Any, dtype: torch.dtype, size: tuple[int, ...]) -> None:
        if not isinstance(tensor, Tensor):
            self._refuse(name, f"a {type(tensor).__name__}", "it must be a tensor")
        found = (tensor.dtype, tuple(tensor.shape), tensor.device)
        if found != (dtype, size, self._device):
            rule = f"the result is {dtype} {list(size)} on {self._device}"
            self._refuse(name, f"{found[0]} {list(found[1])} on {found[2]}", rule)
        if tensor.layout is not torch.strided or not tensor.is_contiguous() or tensor.is_neg():
            self._refuse(name, "not contiguous", "results are written row by row")
        if not has_memory(tensor):
            kind = type(tensor).__name__
            self._refuse(name, f"a {kind} without memory", "results are written into memory")
        if tensor.data_ptr() % self._alignment:
            rule = f"its address must be a multiple of {self._alignment}"
            self._refuse(name, f"at {tensor.data_ptr():#x}", rule)
        if tensor.requires_grad and torch.is_grad_enabled():
            self._refuse(name, "a tensor that requires grad", "programs compute no gradients")

    def _refuse(self, name: str, value: str, rule: str) -> None:
        raise ErrorId.SJ_ARG_011.error(argument=name, value=value, rule=rule)


__all__ = ["GivenOutputs"]
