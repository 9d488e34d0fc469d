# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How many queries and keys a batch has, where batches differ.

Lengths say how many of the keys there are for a batch and head. In a ragged problem batches lie one
after the other, and a kernel finds where one starts; sizes of the space are the most that a batch
has. Both are read from memory, once a tile.

A causal limit from the end counts from the length as it is given, which may be more than there are
keys: the last queries of a cache that is full see all of it, whatever their position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mlir.dialects import arith

from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.problem import BATCH, HEAD, AttentionProblem
from shapejit.passes.nvgpu.builder import Num, Value, add, i32, mul, smax, smin, sub, value
from shapejit.passes.nvgpu.function import KernelFunction, uniform
from shapejit.passes.nvgpu.memory import IndexAlgebra
from shapejit.passes.nvgpu.problem import Access


@dataclass(frozen=True)
class Span:
    """What a batch and head have: all i32.

    Attributes:
        queries, keys: how many.
        first_query, first_key: their first ones among those of all batches; 0 if not ragged.
        end: number of the key up to which the last query sees, if a causal limit counts from the
            end: that of the keys, or of a length that says more.
    """

    queries: Num
    keys: Num
    first_query: Num = 0
    first_key: Num = 0
    end: Num | None = None


class Spans:
    """Finds them.

    Args:
        function: the kernel.
        problem: with or without lengths and starts.
    """

    def __init__(self, function: KernelFunction, problem: AttentionProblem) -> None:
        self._function, self._problem = function, problem
        self._queries, self._keys = (function.size(size) for size in problem.space[2:4])

    def of(self, batch: Num, head: Num, *, alone: bool = False) -> Span:
        """The span of a batch and head, both i32.

        Args:
            alone: whether a single thread asks, so that there are no lanes to agree with.
        """
        span = Span(self._queries, self._keys)
        if self._problem.starts is not None:
            queries, keys = self._problem.starts
            first_query, query_count = self._between(queries, batch, self._queries)
            first_key, key_count = self._between(keys, batch, self._keys)
            span = Span(query_count, key_count, first_query, first_key)
        if self._problem.lengths is not None:
            length = self._load(self._problem.lengths, {BATCH: batch, HEAD: head}, alone=alone)
            span = self._shortened(span, length)
        return span

    def _shortened(self, span: Span, length: Num) -> Span:
        """A span with so many of its keys."""
        if not self._problem.from_end:
            return replace(span, keys=_clamped(length, span.keys))
        # With a length beyond these bounds queries see what they see with the nearest bound.
        end = _clamped(length, add(span.keys, span.queries))
        return replace(span, keys=smin(end, span.keys), end=end)

    def _between(self, starts: Access, batch: Num, most: Num) -> tuple[Value, Num]:
        """Where a batch starts, and how many it has."""
        first, after = (self._load(starts, {BATCH: each}) for each in (batch, add(batch, 1)))
        return first, _clamped(sub(after, first), most)

    def _load(self, access: Access, dims: Mapping[int, Num], *, alone: bool = False) -> Value:
        """An integer, as i32 that all lanes agree on."""
        offset = access.offset.build(IndexAlgebra(self._function, dims))
        width = int(access.element.width)
        base = ptx.global_address(self._function.address(access.operand))
        address = value(add(base, mul(offset, width // 8)))
        loaded = base_ptx.load_if(access.element, address, 0)
        number = arith.trunci(i32(), loaded) if width > 32 else loaded
        return number if alone else uniform(number)


def _clamped(count: Num, most: Num) -> Num:
    """A number that memory holds, as it may be used: from 0 to the size of the space."""
    return smin(smax(count, 0), most)
