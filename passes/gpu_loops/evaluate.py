# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Values of a kernel's tensors at the current point.

An `Evaluator` gives the value of any tensor of a kernel at given indices: loaded if it is in
memory, an SSA value if it is a scalar of the current row, else computed by the body of the loop
that makes it. Everything is found once in a scope. So the passes over a row, emitted one after the
other for the same elements, share what they load and compute: that keeps a row in registers.

An emitter that takes several neighbouring elements at once says so by `Evaluator.vector`. What lies
side by side in memory, at a multiple of the vector's length, is then loaded at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith, llvm

from shapejit.passes.gpu_loops import access
from shapejit.passes.gpu_loops.bodies import emit_body
from shapejit.passes.gpu_loops.indexing import Indexer
from shapejit.passes.gpu_loops.problem import Indices, Key, Loop, LoopProblem, Memory, Read
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    i32,
    i64,
    mul,
    sub,
    udiv,
    umin,
    urem,
    value,
)
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.passes.nvgpu.problem import is_half
from shapejit.symbolic import Expr, product


@dataclass(frozen=True)
class Vector:
    """Neighbouring elements that are computed together.

    Attributes:
        length: how many.
        lane: number of the variable that counts them in index expressions. It has no value of its
            own; what depends on it is one of the vector.
        element: which of them is evaluated.
        condition: i1 that says whether they are there at all; None if they are.
    """

    length: int
    lane: int
    element: int = 0
    condition: Value | None = None

    def at_element(self, expr: Expr) -> Expr:
        """An index expression at the element."""
        return expr.substitute(dims={self.lane: self.element})

    def start(self, offset: Expr) -> Expr | None:
        """The offset of the first element, if all are side by side and aligned; else None."""
        if self.length == 1 or offset.stride(self.lane) != 1:
            return None
        first = offset.substitute(dims={self.lane: 0})
        aligned = all(coefficient % self.length == 0 for _, coefficient in first.terms)
        return first if aligned else None


class Evaluator:
    """Values of a kernel's tensors.

    Args:
        problem: the loops.
        function: the kernel under construction.
        indexer: of the function.
    """

    def __init__(self, problem: LoopProblem, function: KernelFunction, indexer: Indexer) -> None:
        self.problem, self.indexer = problem, indexer
        self._function = function
        self._scalars: dict[Key, Value] = {}
        self._known: list[dict[Hashable, Any]] = [{}]
        self._places: dict[tuple[Loop, Indices], list[list[Expr]]] = {}
        self._vector: Vector | None = None
        self._floor = 0
        #: Operands whose vectors are aligned.
        self.aligned: frozenset[int] = frozenset()

    # Scopes ---------------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Values found within are forgotten at the end: they do not dominate what follows."""
        self._known.append({})
        scalars = dict(self._scalars)
        try:
            yield
        finally:
            self._known.pop()
            self._scalars = scalars

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A scope that no load leaves: what it takes for granted was asked just before."""
        saved, self._floor = self._floor, self.indexer.depth
        try:
            with self.scope():
                yield
        finally:
            self._floor = saved

    @contextmanager
    def vector(self, vector: Vector | None) -> Iterator[None]:
        """Within, one element of a vector is evaluated, or what belongs to no vector."""
        saved, self._vector = self._vector, vector
        try:
            yield
        finally:
            self._vector = saved

    def once(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """``build()``, or what it gave in this scope or one around it."""
        for known in self._known:
            if key in known:
                return known[key]
        made = build()
        self._known[-1][key] = made
        return made

    # Values ---------------------------------------------------------------------------------------

    def keep_scalar(self, tensor: Key, scalar: Value) -> None:
        """From now on, in this scope, the tensor has this value at the current row."""
        self._scalars[tensor] = scalar

    def value(self, tensor: Key, indices: Sequence[Expr]) -> Value:
        """The tensor's element at indices over the indexer's variables, in its compute type.

        Raises:
            LoweringError: it is a reduction of the same kernel, of another row.
        """
        if tensor in self._scalars:
            return self._scalars[tensor]
        if tensor in self.problem.inputs:
            return self._load(self.problem.inputs[tensor], indices)
        loop, position = self.problem.makers[tensor]
        write = loop.writes[position]
        assert write.kind is None, "phases refuse reads of reductions at other rows"
        dims = [Expr.const(0)] * len(loop.space)
        for index, target in zip(indices, write.indices, strict=True):
            dim = target.dim_index
            assert dim is not None, "a result that is not reduced is written at a permutation"
            dims[dim] = index
        return self.results(loop, tuple(dims))[position]

    def results(self, loop: Loop, dims: Indices) -> list[Value]:
        """What the body of a loop yields at the given indices of the loop."""
        dims = tuple(map(self.indexer.simplify, dims))
        if any(map(self._is_of_vector, dims)):
            assert self._vector is not None
            key: Hashable = (loop, dims, self._vector.element)
            return self._once_values(key, lambda: self._results(loop, dims))
        # All vectors share it.
        with self.vector(None):
            return self._once_values((loop, dims), lambda: self._results(loop, dims))

    def _once_values(self, key: Hashable, build: Callable[[], list[Value]]) -> list[Value]:
        found: list[Value] = self.once(key, build)
        return found

    def _is_of_vector(self, expr: Expr) -> bool:
        return self._vector is not None and self._vector.lane in expr.dims()

    def _results(self, loop: Loop, dims: Indices) -> list[Value]:
        arguments = self.arguments(loop, dims)
        if loop.block is None:
            return arguments
        context = _BodyContext(self, loop, dims)
        return emit_body(loop.block, arguments, context, short=self.problem.short)

    def arguments(self, loop: Loop, dims: Indices) -> list[Value]:
        """The values of a loop's inputs."""
        # The same for all elements of a vector.
        places = self._places.get((loop, dims))
        if places is None:
            replaced = dict(enumerate(dims))
            places = [[i.substitute(dims=replaced) for i in read.indices] for read in loop.reads]
            self._places[loop, dims] = places
        return [self.value(read.tensor, at) for read, at in zip(loop.reads, places, strict=True)]

    def prefetch(self, reads: Sequence[Read], dims: Indices) -> None:
        """Starts the loads of those of a loop's inputs that are in memory."""
        replaced = dict(enumerate(map(self.indexer.simplify, dims)))
        for read in reads:
            if read.tensor in self.problem.inputs:
                self.value(read.tensor, [index.substitute(dims=replaced) for index in read.indices])

    def fetch(self, memory: Memory, offset: Expr, count: Expr, condition: Value) -> None:
        """Has neighbouring elements brought to the second-level cache, as far as they are whole
        blocks of 16 bytes: see `access.fetch`.

        Args:
            memory: at an address that is a multiple of 16.
            offset: of the first one, simplified.
            count: of elements.
            condition: i1.
        """
        width = bytes_of(memory.element)
        block = access.MAX_BYTES // width
        start, limit = self.indexer.ssa(offset), self.indexer.ssa(count)
        ahead = umin(urem(sub(block, urem(start, block)), block), limit)
        bytes_ = mul(mul(udiv(sub(limit, ahead), block), block), width)
        if bytes_.type != i32():
            bytes_ = arith.trunci(i32(), bytes_)
        address, further = self.address(memory, offset)
        ahead = value(mul(ahead, width))
        address = add(address, ahead if ahead.type == i64() else arith.extui(i64(), ahead))
        there = arith.andi(condition, compare("ne", bytes_, 0))
        access.fetch(address, further, bytes_, there)

    def hold(self, memory: Memory, offset: Expr, count: int, address: Value) -> None:
        """In this scope, a vector is loaded from shared memory, where there is a copy of it.

        Args:
            memory: that it is of.
            offset: of its first element, simplified.
            count: its length.
            address: of the copy, i32.
        """
        self.once(("held", memory.operand, offset, count), lambda: address)

    # Index values of bodies -----------------------------------------------------------------------

    def index_value(self, expr: Expr) -> Value:
        """An expression as of index type; `extract` finds the expression again."""
        number, key = expr, ("index", expr, -1)
        if self._is_of_vector(expr):
            assert self._vector is not None
            number, key = self._vector.at_element(expr), ("index", expr, self._vector.element)

        def build() -> Value:
            return arith.index_cast(ir.IndexType.get(), self.indexer.ssa(number))

        made = self.once(key, build)
        self.once(("expr", made), lambda: expr)
        return made

    def extract(self, tensor: Key, indices: Sequence[Value]) -> Value:
        """The element of an argument of the kernel at SSA indices; 0 if the tensor is empty.

        Bodies limit their indices to the tensor's, which leaves index 0 of a tensor without
        elements, where a concatenation reads one of several and does not take its value.
        """
        memory = self.problem.inputs[tensor]
        return self._load(memory, list(map(self._expr, indices)), self._has_elements(memory))

    def _has_elements(self, memory: Memory) -> Value | None:
        """Whether a tensor has elements, i1; None if that is known from its sizes."""
        unknown = [size for size in memory.shape if not size.constant]
        if not unknown:
            return None
        # Simplified: where symbols are multiples of something, it is another expression.
        count = self.indexer.simplify(product(unknown))

        def build() -> Value:
            return compare("ne", self.indexer.ssa(count), 0)

        found: Value = self.indexer.at_level(0, ("has elements", count), build)
        return found

    def _expr(self, index: Value) -> Expr:
        def register() -> Expr:
            number = arith.index_cast(self.indexer.type, index)
            return self.indexer.variable(number, computed=True)

        found: Expr = self.once(("expr", index), register)
        return found

    # Memory ---------------------------------------------------------------------------------------

    def address(self, memory: Memory, offset: Expr) -> tuple[Value, int]:
        """The address of an element, i64, and bytes further."""
        rest = Expr.from_terms({m: c for m, c in offset.terms if m})
        if not self.indexer.ranges.is_nonnegative(rest):
            rest = offset
        level = self.indexer.level_of(rest)
        start = self.indexer.at_level(
            level, ("address", memory.operand, rest), lambda: self._address(memory, rest)
        )
        further = (offset - rest).constant
        assert further is not None
        return start, further * bytes_of(memory.element)

    def _address(self, memory: Memory, offset: Expr) -> Value:
        base = llvm.ptrtoint(i64(), self._function.address(memory.operand))
        number: Num = self.indexer.value(offset)
        if not isinstance(number, int) and number.type != i64():
            number = arith.extui(i64(), number)
        return add(base, mul(number, bytes_of(memory.element)))

    def _load(
        self, memory: Memory, indices: Sequence[Expr], condition: Value | None = None
    ) -> Value:
        offset, vector = self.indexer.simplify(memory.offset(indices)), self._vector
        # A condition is one of this point, so the load stays here too.
        level = self._load_level(offset, memory, indices) if condition is None else None
        if vector is None:
            return self._load_at(memory, offset, 1, condition, level)[0]
        # What a body computed of a vector that is not there may be no index.
        if self._is_of_vector(offset) or self._is_computed(offset):
            condition = self._both(condition, vector.condition)
        if (first := self._start(memory, offset)) is not None:
            loaded = self._load_at(memory, first, vector.length, condition, level)
            return loaded[vector.element]
        own = self.indexer.simplify(vector.at_element(offset))
        return self._load_at(memory, own, 1, condition, level)[0]

    def _both(self, lhs: Value | None, rhs: Value | None) -> Value | None:
        if lhs is None or rhs is None:
            return rhs if lhs is None else lhs
        found: Value = self.once(("both", lhs, rhs), lambda: arith.andi(lhs, rhs))
        return found

    def _load_at(
        self, memory: Memory, offset: Expr, count: int, condition: Value | None, level: int | None
    ) -> list[Value]:
        place = (memory.operand, offset, count)

        def build() -> list[Value]:
            address, further = self._held(place) or self.address(memory, offset)
            return access.load(address, further, memory.element, count, condition)

        key = ("load", *place, condition)
        if level is None:
            return self._once_values(key, build)
        found: list[Value] = self.indexer.at_level(level, key, build)
        return found

    def _held(self, place: tuple[int, Expr, int]) -> tuple[Value, int] | None:
        """The address of a vector's copy in shared memory, if there is one."""
        key = ("held", *place)
        return next(((known[key], 0) for known in self._known if key in known), None)

    def _start(self, memory: Memory, offset: Expr) -> Expr | None:
        """The offset of the vector that an element is of, if it can be moved at once."""
        if self._vector is None or memory.operand not in self.aligned:
            return None
        return self._vector.start(offset)

    def _is_computed(self, offset: Expr) -> bool:
        return any(self.indexer.is_computed(dim) for dim in offset.dims())

    def _load_level(self, offset: Expr, memory: Memory, indices: Sequence[Expr]) -> int | None:
        """The level for a load that can be moved out of loops; None for the current point.

        The loops that it leaves may have no iterations: an index that is a variable of the others
        is then still one of the tensor, but a constant may be none, if the tensor is empty.
        """
        level = max(self.indexer.level_of(offset), self._floor)
        if level >= self.indexer.depth or self._is_computed(offset):
            return None
        is_there = all(
            size.constant or self.indexer.simplify(index).dims()
            for size, index in zip(memory.shape, indices, strict=True)
        )
        return level if is_there else None

    # Results --------------------------------------------------------------------------------------

    def store(self, memory: Memory, indices: Sequence[Expr], values: Sequence[Value]) -> None:
        """Stores the elements of a vector; their indices are over its lane, if it has several.

        What is not side by side is stored one by one.
        """
        values = [self._source(each, memory) for each in values]
        vector = self._vector
        offset = self.indexer.simplify(memory.offset(indices))
        condition = None if vector is None else vector.condition
        if (first := self._start(memory, offset)) is not None:
            self._store_at(memory, first, values, condition)
            return
        for element, each in enumerate(values):
            own = offset
            if vector is not None:
                own = self.indexer.simplify(offset.substitute(dims={vector.lane: element}))
            self._store_at(memory, own, [each], condition)

    def remember_source(self, rounded: Value, source: Value) -> None:
        """See `bodies.BodyContext`."""
        self.once(("source", rounded), lambda: source)

    def _source(self, value_: Value, memory: Memory) -> Value:
        """What a value is the rounding of, if it is stored as what it was rounded to."""
        if not is_half(memory.element):
            return value_
        key = ("source", value_)
        return next((known[key] for known in self._known if key in known), value_)

    def _store_at(
        self, memory: Memory, offset: Expr, values: Sequence[Value], condition: Value | None
    ) -> None:
        address, further = self.address(memory, offset)
        access.store(address, further, values, memory.element, condition)


@dataclass(frozen=True)
class _BodyContext:
    evaluator: Evaluator
    loop: Loop
    dims: Indices

    def index(self, dim: int) -> Value:
        return self.evaluator.index_value(self.dims[self.loop.dims[dim]])

    def size(self, expr: Expr) -> Value:
        return self.evaluator.index_value(expr)

    def extract(self, tensor: Key, indices: Sequence[Value]) -> Value:
        return self.evaluator.extract(tensor, indices)

    def once(self, key: Hashable, build: Callable[[], list[Value]]) -> list[Value]:
        found: list[Value] = self.evaluator.once(key, build)
        return found

    def remember_source(self, rounded: Value, source: Value) -> None:
        self.evaluator.remember_source(rounded, source)


def are_aligned(addresses: Sequence[Value], bytes_: int) -> Value:
    """Whether all addresses (i64) are multiples of a power of 2."""
    together = addresses[0]
    for address in addresses[1:]:
        together = arith.ori(together, address)
    rest = arith.andi(together, value(bytes_ - 1, i64()))
    return arith.cmpi(arith.CmpIPredicate.eq, rest, value(0, i64()))
