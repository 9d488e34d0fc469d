# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""When neighbouring elements can be moved together: what must be a multiple of what.

A vector of a tensor starts at a multiple of its length if all terms of its offset are. Known sizes
are or are not. Of symbols that are strides it is asked at run time, once, together with the base
addresses; where they are not, the kernel takes its elements one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shapejit.passes.gpu_loops.access import MAX_BYTES
from shapejit.passes.gpu_loops.problem import Indices, Loop, LoopProblem, Memory
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.symbolic import Expr, Ranges
from shapejit.symbolic.expr import AtomKind, make_atom


@dataclass(frozen=True)
class Alignment:
    """What has to hold so that vectors of a length can be used.

    Attributes:
        length: of the vectors; 1 if they cannot.
        symbols: that must be multiples of it.
        operands: whose addresses must be aligned, with the bytes of a vector, 16 at most.
    """

    length: int
    symbols: frozenset[int] = frozenset()
    operands: tuple[tuple[int, int], ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether nothing but addresses has to be asked."""
        return not self.symbols


def needed_symbols(expr: Expr, length: int) -> frozenset[int] | None:
    """Symbols that must be multiples of `length` for the expression to be one; None if it is none
    whatever they are."""
    found = set()
    for monomial, coefficient in expr.terms:
        if coefficient % length == 0:
            continue
        symbols = [atom.index for atom in monomial if atom.kind is AtomKind.SYMBOL]
        if not symbols:
            return None
        found.add(symbols[-1])
    return frozenset(found)


def vector_symbols(offset: Expr, dim: int, length: int) -> frozenset[int] | None:
    """What `needed_symbols` gives for vectors along a dim; None if they are not side by side."""
    placed = offset.substitute(dims={dim: Expr.dim(dim) * length})
    parts = placed.coefficients(make_atom(AtomKind.DIM, dim))
    if len(parts) != 2 or parts[1] != length or dim in parts[0].dims():
        return None
    return needed_symbols(placed, length)


@dataclass(frozen=True)
class Access:
    """A tensor in memory, read or written at indices over the dims of a space."""

    memory: Memory
    space: Indices
    indices: Indices

    def along(self, dim: int, length: int) -> frozenset[int] | None:
        """See `vector_symbols`."""
        ranges = Ranges(None, list(self.space))
        return vector_symbols(ranges.simplify(self.memory.offset(self.indices)), dim, length)


def alignment(
    problem: LoopProblem,
    loops: Iterable[Loop],
    written: Iterable[Access],
    dim: int,
    length: int,
    whole: Sequence[Expr] = (),
) -> Alignment:
    """What has to hold for vectors along a dim of loops.

    Args:
        problem: the kernel.
        loops: that read arguments of the kernel.
        written: what the loops write.
        dim: of the loops.
        length: of the vectors, a power of 2.
        whole: sizes that have to be multiples of the length.
    """
    if length == 1:
        return Alignment(1)
    symbols: set[int] = set()
    for size in whole:
        if (needed := needed_symbols(size, length)) is None:
            return Alignment(1)
        symbols |= needed
    operands: dict[int, int] = {}
    accesses = list(written)
    for loop in loops:
        for read in loop.reads:
            if read.tensor in problem.inputs:
                accesses.append(Access(problem.inputs[read.tensor], loop.space, read.indices))
        for tensor in loop.captures:
            memory = problem.inputs[tensor]
            operands[memory.operand] = _vector_bytes(memory, length)
    is_used = False
    for access in accesses:
        if (along := access.along(dim, length)) is not None:
            is_used = True
            symbols |= along
            operands[access.memory.operand] = _vector_bytes(access.memory, length)
    if not is_used:
        return Alignment(1)
    return Alignment(length, frozenset(symbols), tuple(sorted(operands.items())))


def _vector_bytes(memory: Memory, length: int) -> int:
    return min(MAX_BYTES, length * bytes_of(memory.element))
