# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`torch.compile`: sizes dynamic from the start, found automatically, or marked with ranges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from trace_workload import Request

from peers.base import Setting, System

_RECOMPILE_LIMIT = 16


class Compiled(System):
    """``torch.compile(model, dynamic=...)``.

    Args:
        dynamic: True makes all sizes symbolic; None compiles for the sizes of the first request
            and again when they change.
    """

    def __init__(self, setting: Setting, dynamic: bool | None) -> None:
        super().__init__(setting)
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT
        self.function: Any = torch.compile(setting.model, dynamic=dynamic)

    def __call__(self, *inputs: Tensor) -> Tensor:
        result: Tensor = self.function(*inputs)
        return result

    def details(self) -> dict[str, Any]:
        counters = torch._dynamo.utils.counters
        return {
            "graphs": counters["stats"]["unique_graphs"],
            "graph_breaks": sum(counters["graph_break"].values()),
        }


class Marked(Compiled):
    """`torch.compile` with `mark_dynamic` and the ranges of the trace.

    It compiles ahead: for a request with all sizes above 1, and one for each axis that may be 1,
    since dynamo makes constants of sizes of 1.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, dynamic=None)

    def build(self) -> dict[str, Any]:
        for request in self._examples():
            inputs = self.setting.inputs(request)
            self._mark(inputs, request)
            self(*inputs)
        self.setting.place.synchronize()
        return {"compiled_ahead": [list(request) for request in self._examples()]}

    def _examples(self) -> list[Request]:
        axes = self.setting.workload.axes
        seen = self.setting.requests
        usual = tuple(
            min(max(a.low, 2 * a.divisor, sorted(r[i] for r in seen)[len(seen) // 2]), a.high)
            for i, a in enumerate(axes)
        )
        ones = [i for i in range(len(axes)) if any(request[i] == 1 for request in seen)]
        return [usual, *((*usual[:i], 1, *usual[i + 1 :]) for i in ones)]

    def _mark(self, inputs: tuple[Tensor, ...], request: Request) -> None:
        for tensor, dims in zip(inputs, self.setting.workload.dims, strict=True):
            for dim, number in dims.items():
                axis = self.setting.workload.axes[number]
                if request[number] > 1:
                    torch._dynamo.mark_dynamic(tensor, dim, min=max(axis.low, 2), max=axis.high)
