# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Buckets made by hand: a CUDA graph for each batch size and padded length, with a mask.

The batch sizes are those of the trace, exactly; lengths are padded to the next power of two. All
graphs are captured ahead, the largest first, from one pool of memory, as serving engines do it. On
a CPU the padded calls run without graphs.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peers.base import NotApplicableError, Setting, System

_SHORTEST = 16


@dataclass(frozen=True)
class Bucket:
    """A graph, the tensors that it reads and the one that it writes."""

    graph: torch.cuda.CUDAGraph | None
    inputs: tuple[Tensor, ...]
    mask: Tensor | None
    result: Tensor | None


class Buckets(System):
    """Padded batches through one CUDA graph a bucket.

    Args:
        compiled: the graphs hold the kernels of ``torch.compile(model, dynamic=True)``, not those
            of eager PyTorch.
    """

    def __init__(self, setting: Setting, compiled: bool = False) -> None:
        super().__init__(setting)
        workload = setting.workload
        if workload.padding is None:
            raise NotApplicableError("padding changes the result, and the model takes no mask")
        # An input of the model, or made of the lengths and passed besides.
        self._mask_is_input = workload.padding == "mask" and len(workload.dims) > 1
        self._masked = workload.padding == "mask"
        self._batches = sorted({request[0] for request in setting.requests}, reverse=True)
        self._edges = self._lengths(workload.axes[1].high)
        self._buckets: dict[tuple[int, int], Bucket] = {}
        self._function: Any = setting.model
        if compiled:
            torch._dynamo.reset()
            self._function = torch.compile(setting.model, dynamic=True)

    @staticmethod
    def _lengths(most: int) -> list[int]:
        edges = [_SHORTEST]
        while edges[-1] < most:
            edges.append(edges[-1] * 2)
        return [*edges[:-1], most]

    def build(self) -> dict[str, Any]:
        pool = torch.cuda.graph_pool_handle() if self.setting.place.is_gpu else None
        for edge in reversed(self._edges):
            for batch in self._batches:
                self._buckets[batch, edge] = self._make(batch, edge, pool)
        self.setting.place.synchronize()
        return {"buckets": len(self._buckets), "batches": self._batches, "lengths": self._edges}

    def _make(self, batch: int, edge: int, pool: Any) -> Bucket:
        inputs = self.setting.inputs((batch, edge))
        mask = None
        if self._masked:
            mask = inputs[-1] if self._mask_is_input else torch.ones_like(inputs[0])
        if pool is None:
            return Bucket(None, inputs, mask, None)
        graph, result = self._capture(inputs, mask, pool)
        return Bucket(graph, inputs, mask, result)

    def _capture(
        self, inputs: tuple[Tensor, ...], mask: Tensor | None, pool: Any
    ) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._run(inputs, mask)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = self._run(inputs, mask)
        return graph, result

    def _run(self, inputs: tuple[Tensor, ...], mask: Tensor | None) -> Tensor:
        besides = () if mask is None or self._mask_is_input else (mask,)
        result: Tensor = self._function(*inputs, *besides)
        return result

    def __call__(self, *inputs: Tensor) -> Tensor:
        batch, length = inputs[0].shape[:2]
        edge = self._edges[bisect.bisect_left(self._edges, length)]
        bucket = self._buckets[batch, edge]
        for held, given in zip(bucket.inputs, inputs, strict=True):
            held[:, :length].copy_(given)
        if bucket.mask is not None:
            if not self._mask_is_input:
                bucket.mask[:, :length].fill_(1)
            bucket.mask[:, length:].fill_(0)
        if bucket.graph is None or bucket.result is None:
            result = self._run(bucket.inputs, bucket.mask)
        else:
            bucket.graph.replay()
            result = bucket.result
        # Hidden states hold rows of padding; pooled ones do not.
        return (result[:, :length] if result.dim() == 3 else result).clone()
