# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which scores count: keys beyond the end or the causal limit, and masks.

A thread has scores of two rows, 8 apart, and of pairs of columns, 8 apart (see `wgmma.Fragment`).
What is not seen gets a score of minus infinity.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from shapejit.passes.nvgpu import ptx as base_ptx
from shapejit.passes.nvgpu.attention import ptx
from shapejit.passes.nvgpu.attention.problem import (
    BATCH,
    COLUMN,
    HEAD,
    ROW,
    AttentionProblem,
    is_bool,
)
from shapejit.passes.nvgpu.attention.softmax import number, row_of
from shapejit.passes.nvgpu.attention.spans import Span
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Value,
    add,
    and_,
    compare,
    f32,
    i32,
    mul,
    or_,
    select,
    shr,
    smax,
    smin,
    sub,
    umin,
    value,
    wide,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import (
    IndexAlgebra,
    bytes_of,
    from_storage,
    storage_type,
)
from shapejit.passes.nvgpu.problem import Access
from shapejit.passes.nvgpu.wgmma import Fragment

_WORD = 32  # keys that a warp's ballot tells of


def column_of(register: int) -> int:
    """The column of a register, from the thread's first one on."""
    return 8 * (register >> 2) + (register & 1)


@dataclass(frozen=True)
class Queries:
    """The 64 queries of a warpgroup: all i32, uniform but for the fragment.

    Attributes:
        batch, head: which.
        first: number of the first query.
        fragment: where the thread is in a block of scores.
    """

    batch: Num
    head: Num
    first: Num
    fragment: Fragment

    def row(self, row: int) -> Num:
        """The number of one of the thread's two queries."""
        return add(add(self.first, self.fragment.row), 8 * row)

    def head_of(self, row: int) -> Num:
        """The head of one of the thread's two queries."""
        return self.head


class Limits:
    """How many of the keys, from the first one on, queries may see at most.

    Args:
        function: the kernel.
        problem: with or without causal offset.
    """

    def __init__(self, function: KernelFunction, problem: AttentionProblem) -> None:
        self._queries, self.keys = function.size(problem.space[2]), function.size(problem.space[3])
        self._offset = None if problem.causal is None else function.size(problem.causal)
        self._from_end = problem.from_end
        #: Whether there may be fewer keys than the problem's size says.
        self.varies = problem.has_spans
        if self._from_end and not self.varies:
            self._count_from_end()

    def _count_from_end(self, end: Num | None = None) -> None:
        assert self._offset is not None
        last = self.keys if end is None else end
        self._offset = add(self._offset, sub(last, self._queries))

    def within(self, span: Span) -> Limits:
        """The limits in a batch and head that have a span."""
        if not self.varies:
            return self
        made = copy.copy(self)
        made._queries, made.keys = span.queries, span.keys
        if made._from_end:
            made._count_from_end(span.end)
        return made

    @property
    def is_causal(self) -> bool:
        return self._offset is not None

    def of_query(self, query: Num) -> Num:
        """The keys that a query may see."""
        if self._offset is None:
            return self.keys
        return smin(smax(add(add(query, self._offset), 1), 0), self.keys)

    def of_any(self, first: Num, count: int) -> Num:
        """The keys that any of so many queries may see."""
        last = sub(umin(add(first, count), self._queries), 1)
        return self.of_query(last)

    def hide(self, scores: Sequence[Value], queries: Queries, first: Num, keys: int) -> list[Value]:
        """Hides what is beyond the limits in a block of keys from ``first`` on, if there is any."""
        all_seen = self.of_query(queries.first)
        needed = compare("sgt", add(first, keys), all_seen)
        branches = Branches(needed, [f32()] * len(scores))
        with branches.then() as given:
            ptx.keep_branch()
            given.extend(self.apply(scores, queries, first))
        with branches.otherwise() as given:
            given.extend(scores)
        return branches.results

    def apply(self, scores: Sequence[Value], queries: Queries, first: Num) -> list[Value]:
        """Hides what is beyond the limits in a block of keys from ``first`` on."""
        start = add(first, queries.fragment.column)
        limits = [sub(self.of_query(queries.row(row)), start) for row in range(2)]
        return [
            select(
                compare("sgt", limits[row_of(register)], column_of(register)),
                score,
                number(-math.inf),
            )
            for register, score in enumerate(scores)
        ]


class KeyMask:
    """A mask of bools that is the same for all queries of a batch and head.

    A warp reads it by its lanes and shares it as words of 32 keys, a block ahead. All warps find
    the same, so that they can leave blocks out of which no key is seen.

    Args:
        function: the kernel.
        access: the mask.
        keys: how many there are.
        count: keys of a warpgroup's block.
        lane: number of the lane.
    """

    def __init__(
        self, function: KernelFunction, access: Access, keys: Num, count: int, lane: Value
    ) -> None:
        self._function, self._access, self._keys, self._lane = function, access, keys, lane
        self.words = -(-count // _WORD)
        self._base = ptx.global_address(function.address(access.operand))
        self._stride = function.size(access.stride(COLUMN) or 0, 8)

    def load(self, batch: Num, head: Num, first: Num) -> list[Value]:
        """Starts to load what `shared` takes, of a block of keys from ``first`` on; i32."""
        dims = {BATCH: batch, HEAD: head, ROW: 0, COLUMN: 0}
        offset = self._access.offset.build(IndexAlgebra(self._function, dims))
        start = add(self._base, offset)
        loaded = []
        for word in range(self.words):
            key = add(add(first, self._lane), _WORD * word)
            address = add(start, mul(wide(key), self._stride))
            inside = compare("ult", key, self._keys)
            byte = base_ptx.load_if(ir.IntegerType.get_signless(8), address, 0, inside)
            loaded.append(arith.extui(i32(), byte))
        return loaded

    def shared(self, loaded: Sequence[Value]) -> list[Value]:
        """A bit a key, in words that all lanes have."""
        return [ptx.ballot(each) for each in loaded]

    @staticmethod
    def sees_any(words: Sequence[Value]) -> Value:
        """Whether any key of a block is seen."""
        found = words[0]
        for word in words[1:]:
            found = or_(found, word)
        return compare("ne", found, 0)

    @staticmethod
    def hide(scores: Sequence[Value], words: Sequence[Value], fragment: Fragment) -> list[Value]:
        """Hides the keys that the words do not have."""
        every = words[0]
        for word in words[1:]:
            every = and_(every, word)
        branches = Branches(compare("ne", every, -1), [f32()] * len(scores))
        with branches.then() as given:
            ptx.keep_branch()
            own = [shr(word, fragment.column) for word in words]
            for register, score in enumerate(scores):
                word, bit = divmod(column_of(register), _WORD)
                seen = compare("ne", and_(own[word], 1 << bit), 0)
                given.append(select(seen, score, number(-math.inf)))
        with branches.otherwise() as given:
            given.extend(scores)
        return branches.results


class ElementMask:
    """Any mask, read element by element.

    Args:
        function: the kernel.
        problem: with a mask.
    """

    def __init__(self, function: KernelFunction, problem: AttentionProblem) -> None:
        assert problem.mask is not None
        self._function, self._access = function, problem.mask
        self._rows, self._columns = (function.size(size) for size in problem.space[2:4])
        self._base = ptx.global_address(function.address(problem.mask.operand))

    def apply(
        self,
        scores: Sequence[Value],
        queries: Queries,
        first: Num,
        scale: float,
        *,
        whole: bool = False,
    ) -> list[Value]:
        """Hides, or scales scores and adds to them, in a block of keys from ``first`` on.

        Args:
            whole: whether there is a key for each score.
        """
        element = self._access.element
        start = add(first, queries.fragment.column)
        # Rows beyond the last one are not stored: any mask will do for them.
        rows = [umin(queries.row(row), sub(self._rows, 1)) for row in range(2)]
        load = self._loader(queries, rows, start)
        made = []
        for register, score in enumerate(scores):
            column = column_of(register)
            inside = None if whole else compare("ult", add(start, column), self._columns)
            mask = from_storage(load(row_of(register), column, inside), element)
            if is_bool(element):
                made.append(select(mask, score, number(-math.inf)))
            else:
                made.append(base_ptx.fused(score, number(scale), mask))
        return made

    def _loader(
        self, queries: Queries, rows: Sequence[Num], start: Num
    ) -> Callable[[int, int, Value | None], Value]:
        """What loads the element of a row's number, so many columns from the thread's first one
        on, where a condition holds."""
        stored, bytes_ = storage_type(self._access.element), bytes_of(self._access.element)
        stride = self._access.stride(COLUMN)
        if stride is None or stride.constant is None:
            return lambda row, column, inside: base_ptx.load_if(
                stored, self._address(queries, row, rows, add(start, column)), 0, inside
            )
        # A row's elements are constant distances apart, which are part of the instruction.
        step = stride.constant * bytes_
        addresses = [self._address(queries, row, rows, start) for row in range(2)]
        return lambda row, column, inside: base_ptx.load_if(
            stored, addresses[row], column * step, inside
        )

    def _address(self, queries: Queries, row: int, rows: Sequence[Num], column: Num) -> Value:
        dims = {BATCH: queries.batch, HEAD: queries.head_of(row), ROW: rows[row], COLUMN: column}
        offset = self._access.offset.build(IndexAlgebra(self._function, dims))
        return value(add(self._base, mul(offset, bytes_of(self._access.element))))
