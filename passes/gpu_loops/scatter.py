# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scatters: points whose elements go to places that are read, in a tensor that is updated.

An element whose place lies outside of the tensor is not stored. Vectors lie along the innermost dim
where the places do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlir.dialects import arith

from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.problem import Indices, Loop, Write
from shapejit.passes.nvgpu.builder import Value, compare, i64, value
from shapejit.symbolic import Expr


def position_dims(loop: Loop) -> range:
    """Numbers of the dims that stand for positions in the indices of what a scatter writes."""
    return range(len(loop.space), len(loop.space) + len(loop.reads) - 1)


def checked(loop: Loop, write: Write) -> list[tuple[Expr, Expr]]:
    """The indices that depend on positions, with the sizes that they must be below."""
    assert write.into is not None
    numbers = position_dims(loop)
    return [
        (index, size)
        for index, size in zip(write.indices, write.into, strict=True)
        if not index.dims().isdisjoint(numbers)
    ]


def has_vectors(loop: Loop, write: Write) -> bool:
    """Whether neighbouring elements go to neighbouring places."""
    last = len(loop.space) - 1
    indices = [index for read in loop.reads[1:] for index in read.indices]
    indices += [index for index, _ in checked(loop, write)]
    return all(last not in index.dims() for index in indices)


def is_scaled(loop: Loop, write: Write) -> bool:
    """Whether an index is a multiple of a position, so that it may exceed 32 bits."""
    return any(
        index.stride(number) != 1
        for index, _ in checked(loop, write)
        for number in position_dims(loop)
        if number in index.dims()
    )


class Places:
    """Where the elements of a scatter go.

    Args:
        emission: of the kernel.
        loop: the scatter.
        write: what it writes.
    """

    def __init__(self, emission: Emission, loop: Loop, write: Write) -> None:
        self._emission, self._loop, self._write = emission, loop, write

    def find(self, place: Indices, held: Sequence[Value]) -> tuple[list[Expr], Value | None]:
        """The indices of an element, and whether they are of the tensor (i1; None: they are).

        Args:
            place: of the element, over the loop's dims.
            held: the values of the positions.
        """
        indexer = self._emission.indexer
        dims: dict[int, Expr] = dict(enumerate(place))
        inside = None
        for number, position in zip(position_dims(self._loop), held, strict=True):
            wide = position if position.type == i64() else arith.extsi(i64(), position)
            narrow = wide if indexer.type == i64() else arith.trunci(indexer.type, wide)
            dims[number] = indexer.variable(narrow, computed=True)
            inside = _both(inside, self._fits(number, wide))
        for index, size in checked(self._loop, self._write):
            if index.dim_index is None:
                here = indexer.ssa(index.substitute(dims=dims))
                inside = _both(inside, compare("ult", here, indexer.ssa(size)))
        return self._substituted(dims), inside

    def _fits(self, number: int, position: Value) -> Value:
        """Whether a position alone is below the sizes of the dims that it is an index of, i1."""
        indexer, inside = self._emission.indexer, None
        for index, size in checked(self._loop, self._write):
            if number in index.dims():
                limit = indexer.ssa(size)
                limit = limit if limit.type == i64() else arith.extui(i64(), limit)
                inside = _both(inside, compare("ult", position, limit))
        return value(1, position.type) if inside is None else inside

    def _substituted(self, dims: Mapping[int, Expr]) -> list[Expr]:
        return [index.substitute(dims=dims) for index in self._write.indices]


def _both(lhs: Value | None, rhs: Value) -> Value:
    return rhs if lhs is None else arith.andi(lhs, rhs)
