# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What kernels of scans and of sorts have in common: rows that are read and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shapejit.passes.cpu.indexing import Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.memory import Access, Buffer
from shapejit.passes.rowwise.problem import RowProblem
from shapejit.symbolic import Expr, linearize, product


@dataclass(frozen=True)
class RowKernel:
    """A scan or sort in the memory of a function.

    Attributes:
        function: under construction.
        problem: what is asked for.
        space: its sizes, over the function's symbols; the last one is that of a row.
        head: elements of a row of the results.
        source: the input, over the dims of the space.
        outputs: of the op's results; None for one that is not wanted.
    """

    function: KernelFunction
    problem: RowProblem
    space: tuple[Expr, ...]
    head: Expr
    source: Access
    outputs: tuple[Buffer | None, ...]

    @property
    def rows(self) -> tuple[Expr, ...]:
        """Sizes of the dims before the row."""
        return self.space[:-1]

    @property
    def count(self) -> Expr:
        """The number of rows."""
        return product(self.rows)

    @property
    def length(self) -> Expr:
        """Elements of a row."""
        return self.space[-1]

    @property
    def is_dense(self) -> bool:
        """Whether neighbours of a row are neighbours in memory, as vectors can be loaded."""
        last = len(self.space) - 1
        return self.source.buffer.is_plain and self.source.offset.stride(last) == 1

    def input_offset(self, row: Sequence[Expr], place: Expr) -> Value:
        """Where an element of the input is, of index type."""
        dims = dict(enumerate((*row, place)))
        return self.function.indexer.value(self.source.at(dims))

    def load(self, row: Sequence[Expr], place: Expr) -> Value:
        """An element of the input, in its compute type."""
        return self.source.buffer.load(self.input_offset(row, place))

    def output_offset(self, row: Sequence[Expr], place: Expr) -> Expr:
        """Where an element of the results is."""
        return linearize((*row, place), (*self.rows, self.head))
