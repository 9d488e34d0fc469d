# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors that have elements, but not in memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode


class Wrapper(Tensor):
    """Stands for another tensor, as distributed ones do."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        made: Wrapper = make(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
        raise AssertionError(f"{function} is called")


def _fake(tensor: Tensor) -> Tensor:
    made: Tensor = FakeTensorMode().from_tensor(tensor)
    return made


def _emptied(tensor: Tensor) -> Tensor:
    """As training in shards empties weights."""
    tensor.untyped_storage().resize_(0)
    return tensor


def _part(tensor: Tensor) -> Tensor:
    """One that does not begin where its storage does."""
    return torch.cat([tensor[:1], tensor])[1:]


#: From a dense tensor to one of the same sizes, dtype and device, by kind.
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "fake": _fake,
    "part of fake": lambda tensor: _fake(_part(tensor)),
    "wrapper": Wrapper,
    "emptied": lambda tensor: _emptied(tensor.clone()),
    "part of emptied": lambda tensor: _emptied(_part(tensor)),
    "zeros": lambda tensor: torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype),
}
