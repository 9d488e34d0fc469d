# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a `shapejit.kernel` of loops and views to data."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.nvgpu.builder import Type
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import is_half
from shapejit.symbolic import Expr, linearize, map_exprs
from shapejit.symbolic.expr import product

Key: TypeAlias = Hashable
"""Identifies a tensor of the kernel."""

Indices: TypeAlias = tuple[Expr, ...]

_OPS = ("shapejit.loop", "shapejit.scatter", "shapejit.view")
_EXACT_OPS = (
    *("arith.cmpf", "arith.fptosi", "arith.fptoui", "arith.bitcast", "arith.remf"),
    *("math.ceil", "math.floor", "math.roundeven", "math.trunc"),
)


@dataclass(frozen=True)
class Memory:
    """A contiguous tensor that is an operand of the kernel.

    Attributes:
        operand: number of the kernel's argument or, after them, result.
        shape: its sizes.
        element: its element type.
    """

    operand: int
    shape: Indices
    element: Type

    def offset(self, indices: Sequence[Expr]) -> Expr:
        """Linear offset of the element at these indices."""
        return linearize(indices, self.shape)


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
            dims and after them the positions, which are all of its reads but the first.
    """

    tensor: Key
    indices: Indices
    element: Type
    kind: str | None = None
    into: Indices | None = None

    @property
    def kept(self) -> tuple[int, ...]:
        """The loop's dims that are not reduced, in order."""
        return tuple(sorted(dim for index in self.indices for dim in index.dims()))


@dataclass(frozen=True, eq=False)
class Loop:
    """A scalar body over a space.

    Attributes:
        space: sizes of d0, d1, ..
        reads: the body's arguments.
        writes: what the body yields.
        block: the body; None for a copy of the only input, or a scatter of the first one.
        dims: where each dim of the body's own ``shapejit.index`` is among the dims of the space.
        captures: tensors that the body reads with ``tensor.extract``.
    """

    space: Indices
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    block: Any
    dims: tuple[int, ...]
    captures: tuple[Key, ...] = ()

    @property
    def reduces(self) -> bool:
        return any(write.kind is not None for write in self.writes)

    def permuted(self, order: Sequence[int]) -> Loop:
        """The loop with dim ``order[i]`` in place i."""
        place = {dim: number for number, dim in enumerate(order)}
        dims = {dim: Expr.dim(number) for dim, number in place.items()}

        def moved(indices: Indices) -> Indices:
            return tuple(index.substitute(dims=dims) for index in indices)

        return replace(
            self,
            space=tuple(self.space[dim] for dim in order),
            reads=tuple(replace(read, indices=moved(read.indices)) for read in self.reads),
            writes=tuple(replace(write, indices=moved(write.indices)) for write in self.writes),
            dims=tuple(place[dim] for dim in self.dims),
        )


@dataclass(frozen=True)
class LoopProblem:
    """A kernel made of loops, in program order.

    Attributes:
        loops: every loop reads inputs of the kernel and results of loops before it.
        inputs: the kernel's arguments.
        outputs: what the kernel must write, by key; a tensor that it yields twice has two.
    """

    loops: tuple[Loop, ...]
    inputs: Mapping[Key, Memory]
    outputs: Mapping[Key, tuple[Memory, ...]]
    makers: Mapping[Key, tuple[Loop, int]] = field(init=False)
    short: bool = field(init=False)
    """Whether f32 need not be right to the last bit: all results have 16 bits, and no body looks at
    single bits of its values, as rounding to integers or comparing does."""

    def __post_init__(self) -> None:
        halves = all(is_half(m.element) for memories in self.outputs.values() for m in memories)
        blocks = [loop.block for loop in self.loops if loop.block is not None]
        names = {op.name for block in blocks for op in sir.operations(block)}
        object.__setattr__(self, "short", halves and names.isdisjoint(_EXACT_OPS))
        makers = {
            write.tensor: (loop, position)
            for loop in self.loops
            for position, write in enumerate(loop.writes)
        }
        object.__setattr__(self, "makers", makers)

    @property
    def sizes(self) -> list[Expr]:
        """The number of elements of every tensor and space: what an index counts."""
        tensors = [*self.inputs.values(), *(m for all_ in self.outputs.values() for m in all_)]
        return [product(shape) for shape in (*(t.shape for t in tensors), *self._spaces)]

    @property
    def _spaces(self) -> list[Indices]:
        return [loop.space for loop in self.loops]


def is_loops(kernel: Any) -> bool:
    """Whether a kernel holds loops and views only."""
    names = {op.name for op in sir.operations(sir.body(kernel))[:-1]} - {"arith.constant"}
    return bool(names) and names.issubset(_OPS)


def loop_problem(kernel: Any) -> LoopProblem:
    """The problem of a ``shapejit.kernel``, without loops of which nothing is needed.

    Raises:
        LoweringError: it holds other ops, or yields an argument.
    """
    body = sir.body(kernel)
    *ops, terminator = (op for op in sir.operations(body) if op.name != "arith.constant")
    for op in ops:
        if op.name not in _OPS:
            raise LoweringError(f"holds '{op.name}' beside loops; loops share a kernel with views")
    inputs: dict[Key, Memory] = {
        value: memory_of(number, value) for number, value in enumerate(body.arguments)
    }
    outputs: dict[Key, tuple[Memory, ...]] = {}
    for number, value in enumerate(terminator.operands):
        if value in inputs:
            raise LoweringError("yields one of its arguments; a kernel writes what it yields")
        memory = memory_of(len(inputs) + number, value)
        outputs[value] = (*outputs.get(value, ()), memory)
    loops = [_MAKERS[op.name](op) for op in ops]
    return LoopProblem(_live(loops, outputs), inputs, outputs)


def memory_of(operand: int, value: Any) -> Memory:
    """The memory of an argument or result of the kernel."""
    return Memory(operand, sir.shape_of(value), value.type.element_type)


def _live(loops: Sequence[Loop], outputs: Mapping[Key, Any]) -> tuple[Loop, ...]:
    needed, kept = set(outputs), []
    for loop in reversed(loops):
        if any(write.tensor in needed for write in loop.writes):
            kept.append(loop)
            needed.update(read.tensor for read in loop.reads)
            needed.update(loop.captures)
    return tuple(reversed(kept))


def _loop(op: Any) -> Loop:
    maps = [map_exprs(map_) for map_ in sir.op_maps(op)]
    inputs, block = len(op.operands), sir.body(op)
    space = sir.attr_sizes(op.attributes["space"])
    writes = (
        Write(value, indices, value.type.element_type, None if kind == "none" else kind)
        for value, indices, kind in zip(op.results, maps[inputs:], sir.kinds(op), strict=True)
    )
    captures = (op.operands[0] for op in sir.operations(block) if op.name == "tensor.extract")
    return Loop(
        space=space,
        reads=tuple(map(Read, op.operands, maps[:inputs])),
        writes=tuple(writes),
        block=block,
        dims=tuple(range(len(space))),
        captures=tuple(captures),
    )


def _view(op: Any) -> Loop:
    """A view that was not folded into what reads it: a copy."""
    [result] = op.results
    space = sir.shape_of(result)
    own = identity(len(space))
    return Loop(
        space=space,
        reads=(Read(op.operands[0], map_exprs(op.attributes["map"].value)),),
        writes=(Write(result, own, result.type.element_type),),
        block=None,
        dims=tuple(range(len(space))),
    )


def _scatter(op: Any) -> Loop:
    [result] = op.results
    *maps, dest = (map_exprs(map_) for map_ in sir.op_maps(op))
    space = sir.attr_sizes(op.attributes["space"])
    write = Write(result, dest, result.type.element_type, into=sir.shape_of(result))
    return Loop(
        space=space,
        reads=tuple(map(Read, op.operands, maps)),
        writes=(write,),
        block=None,
        dims=tuple(range(len(space))),
    )


_MAKERS = {"shapejit.loop": _loop, "shapejit.scatter": _scatter, "shapejit.view": _view}


def identity(rank: int) -> Indices:
    """``(d0, d1, ..)``"""
    return tuple(map(Expr.dim, range(rank)))


def element_types(problem: LoopProblem) -> list[Type]:
    """The element types of all tensors that lie in memory."""
    memories = [*problem.inputs.values(), *(m for all_ in problem.outputs.values() for m in all_)]
    return [memory.element for memory in memories]


def is_known(element: Type) -> bool:
    """Whether code for an element type can be made."""
    floats = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)
    if isinstance(element, ir.IntegerType):
        return element.width in (1, 8, 16, 32, 64)
    return isinstance(element, floats)
