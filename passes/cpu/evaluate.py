# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loops of a kernel as data, and the values of the tensors between them.

An `Evaluator` gives the value of any tensor of a kernel at given indices: loaded if it is in
memory, an SSA value if it is a scalar of the current row, else recomputed from the loop that makes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from shapejit.passes.cpu.errors import LoweringError
from shapejit.passes.cpu.indexing import Indexer, Size, Value
from shapejit.passes.cpu.kernel import Tensor
from shapejit.passes.cpu.memory import Buffer, row_major
from shapejit.passes.cpu.scalars import Type
from shapejit.symbolic import Expr

Key: TypeAlias = Hashable
"""Identifies a tensor of the kernel."""

Indices: TypeAlias = tuple[Expr, ...]


class BodyContext(Protocol):
    """What a loop's body can ask for, besides its arguments."""

    def index(self, dim: int) -> Value:
        """The current index in a dim of the loop."""

    def size(self, expr: Expr) -> Value:
        """The value of a size over the kernel's symbols."""

    def extract(self, tensor: Key, indices: Sequence[Value]) -> Value:
        """An element of a tensor of the kernel at computed indices."""


Body: TypeAlias = Callable[[BodyContext, Sequence[Value]], Sequence[Value]]


@dataclass(frozen=True)
class Read:
    """An input of a loop: the tensor and the element's indices over the loop's dims."""

    tensor: Key
    indices: Indices


@dataclass(frozen=True)
class Write:
    """A result of a loop.

    Attributes:
        tensor: its key.
        indices: where an element goes, over the loop's dims: a permutation of them, or what is left
            of one without the dims that are reduced.
        element: its element type.
        kind: None, or how the elements that go to one place are combined (add, mul, max, ..).
        into: sizes of the tensor that a scatter updates; its indices are then any, over the loop's
            dims and after them the positions, which are all of its reads but the first. The body
            gives the first one.
    """

    tensor: Key
    indices: Indices
    element: Type
    kind: str | None = None
    into: tuple[Expr, ...] | None = None


@dataclass(frozen=True, eq=False)
class Loop:
    """A scalar body over a space.

    Attributes:
        space: sizes of d0, d1, ..
        reads: the body's arguments.
        writes: what the body yields.
        body: emits the scalars.
        costly: whether a row cache is cheaper than to evaluate the body again.
        captures: tensors that the body reads with `BodyContext.extract`.
        splits: for a dim, the indices before which the body does one thing and from which on it
            does another, in order: where a join of channels goes on to its next part.
    """

    space: tuple[Expr, ...]
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    body: Body
    costly: bool = True
    captures: tuple[Key, ...] = ()
    splits: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def reduces(self) -> bool:
        return any(write.kind is not None for write in self.writes)


@dataclass(frozen=True)
class LoopKernel:
    """A kernel made of loops, in program order.

    Attributes:
        loops: every loop reads inputs of the kernel and results of loops before it.
        inputs: tensors in memory at the start, with their buffers.
        outputs: tensors that the kernel must write, each with its buffer; one may occur twice.
    """

    loops: tuple[Loop, ...]
    inputs: Mapping[Key, tuple[Tensor, Buffer]]
    outputs: tuple[tuple[Key, Buffer], ...]

    def live(self) -> LoopKernel:
        """The kernel without loops of which nothing is needed."""
        needed = {key for key, _ in self.outputs}
        kept: list[Loop] = []
        for loop in reversed(self.loops):
            if any(write.tensor in needed for write in loop.writes):
                kept.append(loop)
                needed.update(read.tensor for read in loop.reads)
                needed.update(loop.captures)
        return LoopKernel(tuple(reversed(kept)), self.inputs, self.outputs)

    def result_shape(self, loop: Loop, write: Write) -> tuple[Expr, ...]:
        """Sizes of a result of a loop."""
        return tuple(index.substitute(dims=_sizes(loop.space)) for index in write.indices)


def _sizes(space: Sequence[Expr]) -> dict[int, Expr]:
    return dict(enumerate(space))


def identity_indices(rank: int) -> Indices:
    """``(d0, d1, ..)``"""
    return tuple(map(Expr.dim, range(rank)))


@dataclass(frozen=True)
class Place:
    """Memory that holds a tensor, or the part of one that belongs to the current row.

    Attributes:
        buffer: the memory.
        shape: sizes of the dims that it spans, the last of the tensor's.
    """

    buffer: Buffer
    shape: tuple[Expr, ...]

    def offset(self, indices: Sequence[Size]) -> Expr:
        """Linear offset of the element at the tensor's indices."""
        return row_major(self.shape, list(indices)[len(indices) - len(self.shape) :])


class Evaluator:
    """Values of a kernel's tensors at the current point.

    Args:
        kernel: the loops.
        indexer: of the function under construction.
    """

    def __init__(self, kernel: LoopKernel, indexer: Indexer) -> None:
        self.indexer = indexer
        self._producers = {
            write.tensor: (loop, position)
            for loop in kernel.loops
            for position, write in enumerate(loop.writes)
        }
        self._places = {
            key: Place(buffer, tensor.shape) for key, (tensor, buffer) in kernel.inputs.items()
        }
        self._scalars: dict[Key, Value] = {}
        self._known: list[dict[object, list[Value]]] = [{}]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Values found within are forgotten at the end: they do not dominate what follows."""
        self._known.append({})
        try:
            yield
        finally:
            self._known.pop()

    def keep(self, tensor: Key, place: Place) -> None:
        """From now on the tensor is read from memory."""
        self._places[tensor] = place

    def keep_scalar(self, tensor: Key, value: Value) -> None:
        """From now on the tensor has this value, at the indices of the current row."""
        self._scalars[tensor] = value

    def value(self, tensor: Key, indices: Sequence[Expr]) -> Value:
        """The tensor's element at indices over the indexer's variables."""
        if tensor in self._scalars:
            return self._scalars[tensor]
        if tensor in self._places:
            return self._load(tensor, indices)
        loop, position = self._producers[tensor]
        write = loop.writes[position]
        if write.kind is not None:
            raise LoweringError("reads a reduction of the same kernel that is not in memory")
        dims = [Expr.const(0)] * len(loop.space)
        for index, target in zip(indices, write.indices, strict=True):
            dim = target.dim_index
            assert dim is not None, "a result that is not reduced is written at a permutation"
            dims[dim] = index
        return self.results(loop, tuple(dims))[position]

    def results(self, loop: Loop, dims: Indices) -> list[Value]:
        """What the body of a loop yields at the given indices of the loop."""
        for known in self._known:
            if (loop, dims) in known:
                return known[loop, dims]
        replaced = dict(enumerate(dims))
        arguments = [
            self.value(read.tensor, [index.substitute(dims=replaced) for index in read.indices])
            for read in loop.reads
        ]
        values = list(loop.body(_BodyContext(self, dims), arguments))
        self._known[-1][loop, dims] = values
        return values

    def extract(self, tensor: Key, indices: Sequence[Value]) -> Value:
        """The tensor's element at SSA indices; it must be in memory as a whole.

        Raises:
            LoweringError: it is not.
        """
        if tensor not in self._places:
            raise LoweringError("reads by tensor.extract what the same kernel computes")
        return self._load(tensor, [self.indexer.variable(index) for index in indices])

    def _load(self, tensor: Key, indices: Sequence[Expr]) -> Value:
        place = self._places[tensor]
        offset = self.indexer.simplify(place.offset(indices))
        for known in self._known:
            if (place, offset) in known:
                return known[place, offset][0]
        value = place.buffer.load(self.indexer.value(offset))
        self._known[-1][place, offset] = [value]
        return value


@dataclass(frozen=True)
class _BodyContext:
    evaluator: Evaluator
    dims: Indices

    def index(self, dim: int) -> Value:
        return self.evaluator.indexer.value(self.dims[dim])

    def size(self, expr: Expr) -> Value:
        return self.evaluator.indexer.value(expr)

    def extract(self, tensor: Key, indices: Sequence[Value]) -> Value:
        return self.evaluator.extract(tensor, indices)
