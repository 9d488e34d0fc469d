# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a workload is: a model, the sizes of its requests, and inputs of a request."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TRACES = Path(__file__).parent / "traces.json"

Request = tuple[int, ...]
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Axis:
    """A size of requests that varies; ``divisor`` divides it."""

    name: str
    low: int
    high: int
    divisor: int = 1


@dataclass(frozen=True)
class Workload:
    """A model, its trace and what a system may know of both ahead of time.

    Attributes:
        axes: what the sizes of a request are.
        build: the module in evaluation mode, float32 on the CPU.
        draw: inputs of a request on the CPU, in a floating-point type if they are no integers.
        dims: for each input, the axis of each dim that varies.
        padding: how a padded batch stays right. "mask": the model's last argument, or one that it
            takes besides, is a mask, 1 at a token. "causal": what follows a token has no effect.
            None: padding changes the result.
        draw_request: a request of the trace's kind.
        channels_last: the layout of model and inputs.
        new_sizes: how many sizes that the trace does not have shapejit is called at.
        floor_shapes: of how many shapes exact-shape graphs are made; None for all.
        memory_of_largest: whether to compare shapejit's memory with that of a process which serves
            the largest request only.
    """

    name: str
    axes: tuple[Axis, ...]
    build: Callable[[], nn.Module]
    draw: Callable[[Request, torch.dtype], Inputs]
    dims: tuple[dict[int, int], ...]
    padding: str | None
    draw_request: Callable[[random.Random], Request]
    requests: tuple[Request, ...]
    channels_last: bool = False
    new_sizes: int = 24
    floor_shapes: int | None = None
    memory_of_largest: bool = False

    def model(self, device: str, dtype: torch.dtype) -> nn.Module:
        """The model on a device, its weights rounded to a type."""
        torch.manual_seed(0)
        model = self.build().to(dtype).to(device)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.eval()

    def inputs(self, request: Request, dtype: torch.dtype) -> Inputs:
        """The inputs of a request on the CPU: the same values every time."""
        drawn = self.draw(request, dtype)
        if self.channels_last:
            drawn = tuple(x.to(memory_format=torch.channels_last) for x in drawn)
        return drawn

    def new_requests(self, count: int, seed: int) -> list[Request]:
        """Distinct requests, none of which the trace has."""
        rng = random.Random(seed)
        found: dict[Request, None] = {}
        while len(found) < count:
            request = self.draw_request(rng)
            if request not in self.requests:
                found[request] = None
        return list(found)


def seeded(request: Request) -> torch.Generator:
    """A generator of random numbers, the same for a request every time."""
    return torch.Generator().manual_seed(sum(size * 1009**i for i, size in enumerate(request)))


def trace(name: str) -> tuple[Request, ...]:
    """The requests of a trace in order of arrival."""
    return tuple(tuple(request) for request in json.loads(TRACES.read_text())[name])


def dynamic_shapes(workload: Workload) -> Any:
    """The workload's dims as `torch.export` and `shapejit.compile` take them."""

    def dim(axis: Axis) -> Any:
        if axis.divisor == 1:
            return torch.export.Dim(axis.name, min=axis.low, max=axis.high)
        low, high = axis.low // axis.divisor, axis.high // axis.divisor
        return axis.divisor * torch.export.Dim(f"{axis.name}_units", min=low, max=high)

    dims = [dim(axis) for axis in workload.axes]
    return tuple({d: dims[axis] for d, axis in varying.items()} for varying in workload.dims)


def example(workload: Workload) -> Request:
    """A request to compile with: in range, with sizes that differ and are not 0 or 1."""
    units = (3, 17, 19)
    return tuple(
        min(max(unit * axis.divisor, axis.low + number * axis.divisor), axis.high)
        for number, (axis, unit) in enumerate(zip(workload.axes, units, strict=False), start=1)
    )
