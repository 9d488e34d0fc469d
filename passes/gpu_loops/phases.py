# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a kernel of loops does: phases, one after the other and independent of each other.

- *Points*: results of one loop that are not reduced. All elements are independent.
- *Rows*: reductions whose last dim is a reduced one, and row clusters: loops that share leading row
  dims and reduce over the dims after them (softmax, norms). All rows are independent::

      for each row
        pass over the columns: sum += h
        mean = sum / n
        pass over the columns: var += (h - mean)^2
        for the columns: out = (h - mean) * rsqrt(var) ...

- *Columns*: reductions whose last dim is kept. Neighbouring columns are reduced side by side.

Nearly every kernel is one phase. What no phase may do is to read a reduction of another row: other
threads, maybe on another multiprocessor, make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shapejit.passes.gpu_loops.problem import (
    Indices,
    Key,
    Loop,
    LoopProblem,
    Write,
    identity,
)
from shapejit.passes.nvgpu.errors import LoweringError


@dataclass(frozen=True)
class Points:
    """Results of a loop, element by element; its dims are in the order of the first result's, or as
    they are in a scatter, whose only result it is.

    Attributes:
        loop: the loop.
        positions: numbers of the results.
    """

    loop: Loop
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Columns:
    """Reductions side by side; the loop's kept dims come first, the innermost of them last.

    Attributes:
        loop: the loop.
        kept: how many dims are kept.
        positions: numbers of the results.
    """

    loop: Loop
    kept: int
    positions: tuple[int, ...]


@dataclass(eq=False)
class Stage:
    """One step of a row: scalars of the row (no columns), or reductions over columns.

    Attributes:
        columns: sizes of the columns; None for scalars.
        loops: that are reduced in a pass, or evaluated as scalars.
    """

    columns: Indices | None
    loops: list[Loop] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """A cluster of loops over common rows.

    Attributes:
        rows: sizes of the row dims, the first ones of every loop.
        stages: in order.
        stores: loops and numbers of their results that are written element by element, last.
        written: row scalars that are results of the kernel.
    """

    rows: Indices
    stages: tuple[Stage, ...]
    stores: tuple[tuple[Loop, int], ...]
    written: frozenset[Key]

    @property
    def columns(self) -> list[Indices]:
        """Sizes of the columns of every pass, the results' last; each once."""
        passes = [stage.columns for stage in self.stages if stage.columns is not None]
        passes += [loop.space[len(self.rows) :] for loop, _ in self.stores]
        return list(dict.fromkeys(passes))


Phase = Points | Rows | Columns


def phases(problem: LoopProblem) -> list[Phase]:
    """The phases of a kernel.

    Raises:
        LoweringError: a loop reads a reduction of the kernel at another row than its own.
    """
    rows = _shared_rows(problem)
    if rows is not None:
        return [_cluster(problem, rows)]
    _check_reads(problem)
    found: list[Phase] = []
    for loop in problem.loops:
        if loop.writes[0].into is not None:
            found.append(Points(loop, (0,)))
            continue
        groups: dict[tuple[int, ...], list[int]] = {}
        for position, write in enumerate(loop.writes):
            if write.tensor in problem.outputs:
                groups.setdefault(write.kept, []).append(position)
        found += [_phase(loop, kept, positions) for kept, positions in groups.items()]
    return found


def _phase(loop: Loop, kept: tuple[int, ...], positions: Sequence[int]) -> Phase:
    reduced = [dim for dim in range(len(loop.space)) if dim not in kept]
    first = loop.writes[positions[0]]
    if not reduced:
        order = [index.dim_index or 0 for index in first.indices]
        return Points(loop.permuted(order), tuple(positions))
    by_place = [index.dim_index or 0 for index in first.indices]
    moved = loop.permuted([*by_place, *reduced])
    if kept and kept[-1] > reduced[-1]:
        return Columns(moved, len(kept), tuple(positions))
    columns = moved.space[len(kept) :]
    written = frozenset(loop.writes[position].tensor for position in positions)
    return Rows(moved.space[: len(kept)], (Stage(columns, [moved]),), (), written)


def _check_reads(problem: LoopProblem) -> None:
    for loop in problem.loops:
        for tensor in (*(read.tensor for read in loop.reads), *loop.captures):
            if tensor not in problem.makers:
                continue
            maker, position = problem.makers[tensor]
            if maker.writes[position].kind is not None:
                raise LoweringError(
                    "reads a reduction that it makes itself, and not only at the row that it is "
                    "at; such a reduction has to be a kernel of its own"
                )
    _check_captures(problem)


def _check_captures(problem: LoopProblem) -> None:
    if any(tensor not in problem.inputs for loop in problem.loops for tensor in loop.captures):
        raise LoweringError(
            "reads by 'tensor.extract' what it makes itself; that has to be a kernel of its own"
        )


# Row clusters -------------------------------------------------------------------------------------


def _shared_rows(problem: LoopProblem) -> int | None:
    """The number of row dims if the kernel's loops form a row cluster, else None."""
    kept = {
        len(write.indices)
        for loop in problem.loops
        for write in loop.writes
        if write.kind is not None
    }
    if len(kept) != 1:
        return None
    [rows] = kept
    space = next(loop.space for loop in problem.loops if loop.reduces)[:rows]
    made: set[Key] = set()
    for loop in problem.loops:
        if loop.space[:rows] != space or not _keeps_rows(loop, rows, made):
            return None
        made.update(write.tensor for write in loop.writes)
    return rows


def _keeps_rows(loop: Loop, rows: int, made: set[Key]) -> bool:
    """Whether a loop reads and writes tensors of the kernel at its own row only."""
    own = identity(rows)
    if any(tensor in made for tensor in loop.captures):
        return False
    reads = (read.indices for read in loop.reads if read.tensor in made)
    writes = (write.indices for write in loop.writes)
    return all(indices[:rows] == own for indices in (*reads, *writes))


def _cluster(problem: LoopProblem, rows: int) -> Rows:
    _check_captures(problem)
    plan = _Plan(problem, rows)
    stores = [
        (loop, position)
        for loop in problem.loops
        for position, write in enumerate(loop.writes)
        if plan.is_pointwise(loop, write) and write.tensor in problem.outputs
    ]
    space = next(loop.space for loop in problem.loops if loop.reduces)
    written = frozenset(problem.outputs) - {loop.writes[i].tensor for loop, i in stores}
    return Rows(space[:rows], tuple(plan.stages), tuple(stores), written)


class _Plan:
    """The stages of a row, in order."""

    def __init__(self, problem: LoopProblem, rows: int) -> None:
        self._problem, self._rows = problem, rows
        self.stages: list[Stage] = []
        self._stage_of: dict[Loop, Stage] = {}
        for loop in problem.loops:
            self._schedule(loop)

    def is_pointwise(self, loop: Loop, write: Write) -> bool:
        return write.kind is None and len(loop.space) > self._rows

    def _schedule(self, loop: Loop) -> None:
        columns = loop.space[self._rows :]
        if not columns:
            self._add(loop, Stage(None))
        elif loop.reduces:
            last = self.stages[-1] if self.stages else None
            joins = last is not None and last.columns == columns
            if last is not None and joins and last not in self._needed_stages(loop):
                self._add(loop, last)
            else:
                self._add(loop, Stage(columns))

    def _add(self, loop: Loop, stage: Stage) -> None:
        if stage not in self.stages:
            self.stages.append(stage)
        stage.loops.append(loop)
        self._stage_of[loop] = stage

    def _needed_stages(self, loop: Loop) -> set[Stage]:
        """Stages whose scalars a loop reads, also through pointwise loops."""
        needed: set[Stage] = set()
        pending = [read.tensor for read in loop.reads]
        seen: set[Key] = set()
        while pending:
            tensor = pending.pop()
            if tensor in seen or tensor not in self._problem.makers:
                continue
            seen.add(tensor)
            maker, position = self._problem.makers[tensor]
            if self.is_pointwise(maker, maker.writes[position]):
                pending += [read.tensor for read in maker.reads]
            else:
                needed.add(self._stage_of[maker])
        return needed
