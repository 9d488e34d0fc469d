# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scatters: elements of a source go to places of a tensor that is updated in place.

for the dims that the positions depend on
  positions = ..
  if they lie inside of the tensor
    for all other dims: tensor[map(dims, positions)] = source
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from shapejit.passes.cpu.evaluate import Evaluator, Loop, LoopKernel, Place
from shapejit.passes.cpu.indexing import Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.parallel import ELEMENT_COST, share_nest
from shapejit.symbolic import Expr, product


def emit_scatter(
    kernel: KernelFunction, loops: LoopKernel, evaluator: Evaluator, loop: Loop
) -> None:
    """Emits a scatter as the kernel's only nest.

    Args:
        kernel: under construction.
        loops: of the kernel.
        evaluator: gives the source and the positions.
        loop: has the source and then the positions as its reads, and writes `into` the tensor.
    """
    scatter = _Scatter(kernel, loops, evaluator, loop)
    outer = scatter.outer
    work = product(loop.space) * ELEMENT_COST
    share_nest(kernel, loop.space[:outer], work, scatter.rows)


class _Scatter:
    def __init__(
        self, kernel: KernelFunction, loops: LoopKernel, evaluator: Evaluator, loop: Loop
    ) -> None:
        self._indexer, self._evaluator, self._loop = kernel.indexer, evaluator, loop
        self._source, *self._positions = loop.reads
        [write] = loop.writes
        assert write.into is not None
        self._indices, self._into = write.indices, write.into
        self._places = [Place(b, write.into) for key, b in loops.outputs if key == write.tensor]
        rank = len(loop.space)
        self._numbers = range(rank, rank + len(self._positions))
        self._checked = [
            (index, size)
            for index, size in zip(write.indices, write.into, strict=True)
            if not index.dims().isdisjoint(self._numbers)
        ]
        read = [index for each in self._positions for index in each.indices]
        used = {
            dim for index in (*read, *(index for index, _ in self._checked)) for dim in index.dims()
        }
        #: Leading dims that the positions and what they index depend on; one at least.
        self.outer = min(max(used.difference(self._numbers), default=0) + 1, rank)

    def rows(self, indices: Sequence[Expr]) -> None:
        """All elements at these indices of the outer dims."""
        dims = dict(enumerate(indices))
        with self._evaluator.scope():
            held = [
                self._evaluator.value(
                    r.tensor, [index.substitute(dims=dims) for index in r.indices]
                )
                for r in self._positions
            ]
            index = ir.IndexType.get()
            positions = {
                number: self._indexer.variable(arith.index_cast(index, value))
                for number, value in zip(self._numbers, held, strict=True)
            }
            inside = self._inside({**dims, **positions})
            if inside is None:
                self._elements({**dims, **positions})
            else:
                self._indexer.when(inside, lambda: self._elements({**dims, **positions}))

    def _inside(self, dims: dict[int, Expr]) -> Value | None:
        """Whether what is indexed by positions is of the tensor, i1; None without positions."""
        inside = None
        for index, size in self._checked:
            here = self._indexer.value(index.substitute(dims=dims))
            below = arith.cmpi(arith.CmpIPredicate.ult, here, self._indexer.value(size))
            inside = below if inside is None else arith.andi(inside, below)
        return inside

    def _elements(self, dims: dict[int, Expr]) -> None:
        """All elements at these outer dims and positions."""

        def element(indices: list[Expr]) -> None:
            at = {**dims, **dict(enumerate(indices, self.outer))}
            with self._evaluator.scope():
                read = [index.substitute(dims=at) for index in self._source.indices]
                value = self._evaluator.value(self._source.tensor, read)
                place = [index.substitute(dims=at) for index in self._indices]
                for each in self._places:
                    each.buffer.store(value, self._indexer.value(each.offset(place)))

        self._indexer.nest(self._loop.space[self.outer :], element)
