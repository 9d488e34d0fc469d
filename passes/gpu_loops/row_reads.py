# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the rows of a phase read and write, and in which vectors they can be moved.

Vectors are of two kinds. Where a row's length is a multiple of theirs, rows start at a multiple
too, and all that lies along them is moved in whole vectors. Else rows that follow each other in
memory start anywhere. Each is then cut where the addresses are multiples: some elements, whole
vectors, some elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shapejit.passes.gpu_loops.access import MAX_BYTES
from shapejit.passes.gpu_loops.alignment import Access, Alignment, alignment
from shapejit.passes.gpu_loops.phases import Rows
from shapejit.passes.gpu_loops.problem import Indices, Loop, LoopProblem, Memory, Read
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.symbolic import Expr, Ranges

# Elements of what all rows share, such as the weights of a norm, that a thread loads with the row.
_MOST_SHARED = 48


def loops_of(problem: LoopProblem, phase: Rows) -> Sequence[Loop]:
    """The loops of a phase, with those that are evaluated where they are read."""
    single = [loop for stage in phase.stages for loop in stage.loops]
    return problem.loops if len(problem.loops) > 1 else single


# What all rows share ------------------------------------------------------------------------------


def shared_inputs(problem: LoopProblem, phase: Rows) -> int:
    """Arguments that are read along the columns and are the same for all rows."""
    rows = len(phase.rows)
    reads = (read for loop in loops_of(problem, phase) for read in loop.reads)
    inputs = {read.tensor for read in reads if is_shared(read, rows)}
    return len(inputs & set(problem.inputs))


def is_shared(read: Read, rows: int) -> bool:
    """Whether a loop reads the same for all rows, but not for all columns."""
    dims = {dim for index in read.indices for dim in index.dims()}
    return bool(dims) and min(dims) >= rows


def loads_shared_ahead(problem: LoopProblem, phase: Rows, kept: int) -> bool:
    """Whether threads that keep so many elements of a row load with it what all rows share."""
    return kept * shared_inputs(problem, phase) <= _MOST_SHARED


# What a row has of its own ------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnRow:
    """A row of a tensor in memory, side by side, that is not another row's too.

    Attributes:
        memory: the tensor.
        indices: of an element, over the row dims and the only column dim.
    """

    memory: Memory
    indices: Indices

    def offset(self, dims: Indices) -> Expr:
        """The offset of an element."""
        replaced = dict(enumerate(dims))
        return self.memory.offset([index.substitute(dims=replaced) for index in self.indices])


def own_rows(problem: LoopProblem, phase: Rows, length: int) -> list[OwnRow]:
    """What is read of rows that are whole blocks of 16 bytes in vectors of a length."""
    if len(phase.columns) != 1 or len(phase.columns[0]) != 1:
        return []
    rows = len(phase.rows)
    found: dict[tuple[Memory, Expr], OwnRow] = {}
    for loop in loops_of(problem, phase):
        if len(loop.space) != rows + 1:
            continue
        ranges = Ranges(None, list(loop.space))
        for read in loop.reads:
            memory = problem.inputs.get(read.tensor)
            if memory is None or length * bytes_of(memory.element) % MAX_BYTES:
                continue
            offset = ranges.simplify(memory.offset(read.indices))
            if offset.stride(rows) == 1 and not (rows and is_shared(read, rows)):
                found.setdefault((memory, offset), OwnRow(memory, read.indices))
    return list(found.values())


def passes_over(phase: Rows) -> int:
    """How often a row is passed over."""
    return sum(stage.columns is not None for stage in phase.stages) + bool(phase.stores)


# Vectors ------------------------------------------------------------------------------------------


def _written(problem: LoopProblem, phase: Rows) -> list[Access]:
    return [
        Access(memory, loop.space, loop.writes[position].indices)
        for loop, position in phase.stores
        for memory in problem.outputs[loop.writes[position].tensor]
    ]


def rows_alignment(problem: LoopProblem, phase: Rows, length: int) -> Alignment:
    """What vectors of a length need in rows that are whole vectors."""
    rows = len(phase.rows)
    loops = [loop for loop in loops_of(problem, phase) if len(loop.space) > rows]
    dims = {len(loop.space) - 1 for loop in loops}
    if len(dims) != 1:
        return Alignment(1)
    whole = [columns[-1] for columns in phase.columns]
    return alignment(problem, loops, _written(problem, phase), dims.pop(), length, whole)


def row_start(problem: LoopProblem, phase: Rows) -> Expr | None:
    """The offset, over the row dims, of a row in what follows row by row in memory; None if there
    is no such tensor, or if rows are no single run of columns."""
    found = _starts(problem, phase)
    return found[0][1] if found else None


def cut_alignment(problem: LoopProblem, phase: Rows, length: int) -> Alignment:
    """What vectors of a length need in rows that are cut where addresses are multiples."""
    found = _starts(problem, phase)
    if not found or length == 1:
        return Alignment(1)
    operands = {
        access.memory.operand: min(MAX_BYTES, length * bytes_of(access.memory.element))
        for access, start in found
        if start == found[0][1]
    }
    return Alignment(length, frozenset(), tuple(sorted(operands.items())))


def _starts(problem: LoopProblem, phase: Rows) -> list[tuple[Access, Expr]]:
    """What is read and written along the only column dim, one element behind the other, and moves
    with the row; with the offset of a row's first element."""
    if len(phase.columns) != 1 or len(phase.columns[0]) != 1:
        return []
    rows = len(phase.rows)
    loops = [loop for loop in loops_of(problem, phase) if len(loop.space) == rows + 1]
    accesses = _written(problem, phase)
    for loop in loops:
        for read in loop.reads:
            if read.tensor in problem.inputs:
                accesses.append(Access(problem.inputs[read.tensor], loop.space, read.indices))
    found = []
    for access in accesses:
        ranges = Ranges(None, list(access.space))
        offset = ranges.simplify(access.memory.offset(access.indices))
        start = offset.substitute(dims={rows: 0})
        if offset.stride(rows) == 1 and (start.dims() or not rows):
            found.append((access, start))
    return found
