# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a system that serves a trace is, and the plainest one: PyTorch as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from trace_place import Place
from trace_workload import Inputs, Request, Workload


class NotApplicableError(Exception):
    """A system cannot serve a workload at all; the message says why."""


@dataclass(frozen=True)
class Setting:
    """What a system is built for.

    Attributes:
        requests: those of the trace that are going to come, as an operator may know from logs.
    """

    workload: Workload
    requests: Sequence[Request]
    model: nn.Module
    place: Place
    dtype: torch.dtype
    drawn: dict[Request, Inputs] = field(default_factory=dict, repr=False)

    def inputs(self, request: Request) -> Inputs:
        """New input tensors of a request, on the device, copied from where they are kept.

        They are drawn once, so that little but the copy comes between calls, as in a server.
        """
        if request not in self.drawn:
            drawn = self.workload.inputs(request, self.dtype)
            self.drawn[request] = tuple(map(self.place.pinned, drawn))
        return tuple(
            torch.empty_like(x, device=self.place.kind).copy_(x) for x in self.drawn[request]
        )


class System(ABC):
    """One way to run a model at the shapes of a trace.

    Building is all that can be done ahead of the first request. What is left to the requests shows
    as stalls.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def build(self) -> dict[str, Any]:
        """Gets ready for any request; returns what is worth recording of that."""
        return {}

    @abstractmethod
    def __call__(self, *inputs: Tensor) -> Tensor:
        """The model's result, which no later call changes."""

    def details(self) -> dict[str, Any]:
        """What is worth recording after the trace."""
        return {}


class Eager(System):
    """PyTorch, operation by operation."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        result: Tensor = self.setting.model(*inputs)
        return result
