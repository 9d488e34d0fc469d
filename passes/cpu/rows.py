# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Row clusters: loops that share leading row dims and reduce over the dims after them.

    for each row
      pass over the columns: sum += h            h is also stored in the output's row
      mean = sum / n
      pass over the columns: var += (h - mean)^2
      pass over the columns: out = (h - mean) * rsqrt(var) ...

What is reduced becomes an SSA scalar of the row. A pointwise value that several passes need is
kept, if it costs more than a load: in its own output row; else in the row of another output of its
shape and type that is written later; else, if rows are small and of known size, on the stack. All
other pointwise values are evaluated where they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shapejit.passes.cpu.evaluate import (
    Evaluator,
    Key,
    Loop,
    LoopKernel,
    Place,
    Write,
    identity_indices,
)
from shapejit.passes.cpu.indexing import Value
from shapejit.passes.cpu.kernel import KernelFunction
from shapejit.passes.cpu.memory import Buffer
from shapejit.passes.cpu.parallel import ELEMENT_COST, share_nest
from shapejit.passes.cpu.reduce import Reduction, emit_reductions
from shapejit.passes.cpu.scalars import byte_width, compute_type
from shapejit.symbolic import Expr, product

MAX_ROW_BYTES = 1 << 15
"""The largest row that is kept on the stack: it should stay in the first-level cache."""


def shared_rows(kernel: LoopKernel) -> int | None:
    """The number of row dims if the kernel's loops form a row cluster, else None."""
    kept = {
        len(write.indices)
        for loop in kernel.loops
        for write in loop.writes
        if write.kind is not None
    }
    if len(kept) != 1:
        return None
    [rows] = kept
    space = next(loop.space for loop in kernel.loops if loop.reduces)[:rows]
    made: dict[Key, int] = {}  # rank of each tensor made so far
    for loop in kernel.loops:
        if loop.space[:rows] != space or not _keeps_rows(loop, rows, made):
            return None
        made.update({write.tensor: len(write.indices) for write in loop.writes})
    return rows


def _keeps_rows(loop: Loop, rows: int, made: dict[Key, int]) -> bool:
    """Whether a loop reads and writes tensors of the kernel at its own row only."""
    own = identity_indices(rows)
    if any(tensor in made for tensor in loop.captures):
        return False
    reads = (read.indices for read in loop.reads if read.tensor in made)
    writes = (write.indices for write in loop.writes)
    return all(indices[:rows] == own for indices in (*reads, *writes))


@dataclass(eq=False)
class _Stage:
    """One step of a row: scalars of the row (no columns), or a pass over columns.

    Attributes:
        columns: sizes of the columns; None for scalars.
        reductions: loops that are reduced in the pass, or evaluated as scalars.
        stores: pointwise results that the pass writes to memory.
    """

    columns: tuple[Expr, ...] | None
    reductions: list[Loop] = field(default_factory=list)
    stores: list[tuple[Loop, int]] = field(default_factory=list)


class _Plan:
    """The stages of a row, in order, and where pointwise values are kept."""

    def __init__(self, kernel: LoopKernel, rows: int) -> None:
        self.kernel, self.rows = kernel, rows
        self.stages: list[_Stage] = []
        self.rented: dict[Key, Key] = {}  # kept tensor -> output whose row it uses until then
        self.on_stack: list[Key] = []
        self._makers = {
            write.tensor: (loop, position)
            for loop in kernel.loops
            for position, write in enumerate(loop.writes)
        }
        self._outputs = {key for key, _ in kernel.outputs}
        self._stage_of: dict[Loop, _Stage] = {}  # reductions and scalars
        self._store_stage: dict[Key, _Stage] = {}
        for loop in kernel.loops:
            self._schedule(loop)
        self._write_outputs_last()
        for loop in reversed(kernel.loops):
            for position, write in enumerate(loop.writes):
                if self._is_pointwise(loop, write):
                    self._keep(loop, position)

    def _is_pointwise(self, loop: Loop, write: Write) -> bool:
        return write.kind is None and len(loop.space) > self.rows

    # Stages ---------------------------------------------------------------------------------------

    def _schedule(self, loop: Loop) -> None:
        columns = loop.space[self.rows :]
        if not columns:
            self._add(loop, _Stage(None))
        elif loop.reduces:
            last = self.stages[-1] if self.stages else None
            needed = self._needed_stages(loop)
            if last is not None and last.columns == columns and last not in needed:
                self._add(loop, last)
            else:
                self._add(loop, _Stage(columns))

    def _add(self, loop: Loop, stage: _Stage) -> None:
        if stage not in self.stages:
            self.stages.append(stage)
        stage.reductions.append(loop)
        self._stage_of[loop] = stage

    def _needed_stages(self, loop: Loop) -> set[_Stage]:
        """Stages whose scalars a loop reads, also through pointwise loops."""
        needed: set[_Stage] = set()
        pending = [read.tensor for read in loop.reads]
        seen: set[Key] = set()
        while pending:
            tensor = pending.pop()
            if tensor in seen or tensor not in self._makers:
                continue
            seen.add(tensor)
            maker, position = self._makers[tensor]
            if self._is_pointwise(maker, maker.writes[position]):
                pending += [read.tensor for read in maker.reads]
            else:
                needed.add(self._stage_of[maker])
        return needed

    def _write_outputs_last(self) -> None:
        """Gives every pointwise output a pass at the end; `_keep` may move it forward."""
        for loop in self.kernel.loops:
            columns = loop.space[self.rows :]
            for position, write in enumerate(loop.writes):
                if not self._is_pointwise(loop, write) or write.tensor not in self._outputs:
                    continue
                last = self.stages[-1] if self.stages else None
                if last is None or last.columns != columns or last.reductions:
                    last = _Stage(columns)
                    self.stages.append(last)
                self._store(loop, position, last)

    def _store(self, loop: Loop, position: int, stage: _Stage) -> None:
        tensor = loop.writes[position].tensor
        old = self._store_stage.get(tensor)
        if old is not None:
            old.stores.remove((loop, position))
            if not old.stores and not old.reductions:
                self.stages.remove(old)
        stage.stores.append((loop, position))
        self._store_stage[tensor] = stage

    # Row caches -----------------------------------------------------------------------------------

    def _keep(self, loop: Loop, position: int) -> None:
        """Decides where a pointwise value is kept. Loops that read it have been decided."""
        write = loop.writes[position]
        readers = self._evaluating_stages(write.tensor)
        if write.tensor in self._outputs:
            if readers:
                self._store_early(loop, position, readers)
            return
        if len(readers) < 2 or not loop.costly:
            return
        if (output := self._rentable_row(loop, write, readers)) is not None:
            self.rented[write.tensor] = output
        elif self._fits_stack(loop, write):
            self.on_stack.append(write.tensor)
        else:
            return
        self._store_early(loop, position, readers)

    def _evaluating_stages(self, tensor: Key) -> list[_Stage]:
        """Stages in which the tensor is read, in order."""
        found: set[_Stage] = set()
        for loop in self.kernel.loops:
            if all(read.tensor != tensor for read in loop.reads):
                continue
            if loop in self._stage_of:
                found.add(self._stage_of[loop])
            for write in loop.writes:
                if not self._is_pointwise(loop, write):
                    continue
                stage = self._store_stage.get(write.tensor)
                found |= {stage} if stage else set(self._evaluating_stages(write.tensor))
        return [stage for stage in self.stages if stage in found]

    def _read_in_place(self, tensor: Key) -> bool:
        """Whether the tensor is only ever read at the column that a pass is at."""
        for loop in self.kernel.loops:
            own = identity_indices(len(loop.space))
            for read in loop.reads:
                if read.tensor != tensor:
                    continue
                if read.indices != own:
                    return False
                for write in loop.writes:
                    if not self._is_pointwise(loop, write):
                        continue
                    evaluated = write.tensor not in self._store_stage
                    if write.indices != own or (
                        evaluated and not self._read_in_place(write.tensor)
                    ):
                        return False
        return True

    def _store_early(self, loop: Loop, position: int, readers: Sequence[_Stage]) -> None:
        """Stores a value in the first pass that reads it, or in a pass of its own before that."""
        write, first = loop.writes[position], readers[0]
        own = write.indices == identity_indices(len(loop.space))
        columns = loop.space[self.rows :]
        if first.columns == columns and own and self._read_in_place(write.tensor):
            self._store(loop, position, first)
            return
        stage = _Stage(columns)
        self.stages.insert(self.stages.index(first), stage)
        self._store(loop, position, stage)

    def _rentable_row(self, loop: Loop, write: Write, readers: Sequence[_Stage]) -> Key | None:
        """An output with the same rows that is not written before the value was last read."""
        if not self._read_in_place(write.tensor):
            return None
        own, loops = identity_indices(len(loop.space)), self.kernel.loops
        for tensor, _ in self.kernel.outputs:
            if tensor in self.rented.values() or tensor not in self._store_stage:
                continue
            maker, position = self._makers[tensor]
            other = maker.writes[position]
            if loops.index(maker) <= loops.index(loop):
                continue  # not decided yet: it may still move to an earlier pass
            same_row = maker.space == loop.space and other.indices == own == write.indices
            last = self.stages.index(self._store_stage[tensor])
            in_time = all(self.stages.index(reader) <= last for reader in readers)
            first_use = self.stages.index(readers[0])
            if same_row and other.element == write.element and in_time and first_use < last:
                return tensor
        return None

    def _fits_stack(self, loop: Loop, write: Write) -> bool:
        count = product(loop.space[self.rows :]).constant
        return count is not None and count * byte_width(write.element) <= MAX_ROW_BYTES


def emit_rows(kernel: KernelFunction, loops: LoopKernel, rows: int) -> None:
    """Emits a row cluster with the given number of row dims into the body of a kernel."""
    _Rows(kernel, loops, rows).emit()


class _Rows:
    def __init__(self, kernel: KernelFunction, loops: LoopKernel, rows: int) -> None:
        self._kernel, self._loops, self._rows, self._indexer = kernel, loops, rows, kernel.indexer
        self._plan = plan = _Plan(loops, rows)
        self._evaluator = Evaluator(loops, kernel.indexer)
        self._outputs: dict[Key, list[Buffer]] = {}
        for key, buffer in loops.outputs:
            self._outputs.setdefault(key, []).append(buffer)
        self._stack: dict[Key, Buffer] = {}
        for loop in loops.loops:
            for write in loop.writes:
                if write.tensor in plan.on_stack:
                    count = product(loop.space[rows:]).constant
                    assert count is not None
                    self._stack[write.tensor] = kernel.scratch(max(count, 1), write.element)

    def emit(self) -> None:
        space = next(loop.space for loop in self._loops.loops if loop.reduces)
        # Each pass visits the columns of a row once.
        visits = [product(stage.columns or ()) for stage in self._plan.stages]
        work = product(space[: self._rows]) * sum(visits[1:], visits[0]) * ELEMENT_COST
        share_nest(self._kernel, space[: self._rows], work, self._row)

    def _row(self, indices: list[Expr]) -> None:
        with self._evaluator.scope():
            for stage in self._plan.stages:
                if stage.columns is None:
                    self._scalars(stage, indices)
                else:
                    self._pass(stage, stage.columns, indices)

    def _scalars(self, stage: _Stage, row: list[Expr]) -> None:
        for loop in stage.reductions:
            values = self._evaluator.results(loop, tuple(row))
            for write, value in zip(loop.writes, values, strict=True):
                self._keep_scalar(loop, write, value, row)

    def _keep_scalar(self, loop: Loop, write: Write, value: Value, row: list[Expr]) -> None:
        self._evaluator.keep_scalar(write.tensor, value)
        for buffer in self._outputs.get(write.tensor, ()):
            place = Place(buffer, self._loops.result_shape(loop, write))
            buffer.store(value, self._indexer.value(place.offset(row)))

    def _pass(self, stage: _Stage, columns: tuple[Expr, ...], row: list[Expr]) -> None:
        """One pass over the columns: stores, and reductions to scalars of the row."""
        reduced = [
            (loop, position, write)
            for loop in stage.reductions
            for position, write in enumerate(loop.writes)
            if write.kind is not None
        ]
        reductions = [
            Reduction(write.kind, compute_type(write.element))
            for _, _, write in reduced
            if write.kind is not None
        ]

        def contribution(indices: list[Expr]) -> Sequence[Value]:
            dims = (*row, *indices)
            with self._evaluator.scope():
                # All is read before anything is written: a row may hold one value until then.
                stored = [self._evaluator.results(loop, dims)[i] for loop, i in stage.stores]
                values = [self._evaluator.results(loop, dims)[i] for loop, i, _ in reduced]
                for (loop, position), value in zip(stage.stores, stored, strict=True):
                    self._store(loop, loop.writes[position], value, dims)
                return values

        totals = emit_reductions(self._indexer, columns, reductions, contribution)
        for (loop, _, write), total in zip(reduced, totals, strict=True):
            self._keep_scalar(loop, write, total, row)
        for loop, position in stage.stores:
            write = loop.writes[position]
            self._evaluator.keep(write.tensor, self._places(loop, write)[0])

    def _places(self, loop: Loop, write: Write) -> list[Place]:
        """Where a pointwise result is stored."""
        if write.tensor in self._stack:
            shape = self._loops.result_shape(loop, write)[self._rows :]
            return [Place(self._stack[write.tensor], shape)]
        owner = self._plan.rented.get(write.tensor, write.tensor)
        shape = self._loops.result_shape(loop, write)
        return [Place(buffer, shape) for buffer in self._outputs[owner]]

    def _store(self, loop: Loop, write: Write, value: Value, dims: tuple[Expr, ...]) -> None:
        replaced = dict(enumerate(dims))
        indices = [index.substitute(dims=replaced) for index in write.indices]
        for place in self._places(loop, write):
            place.buffer.store(value, self._indexer.value(place.offset(indices)))
