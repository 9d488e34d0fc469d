# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of a scan or a sort as kernels of loops: the phases that they are.

What such a kernel reads is a loop that copies, so that an element is asked for, and loaded in
vectors, as in every other phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from shapejit import ir as sir
from shapejit.passes.gpu_loops.problem import (
    Indices,
    Key,
    Loop,
    LoopProblem,
    Memory,
    Read,
    Write,
    identity,
    memory_of,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.rowwise.problem import MAX_HEAD, ROW_OPS, RowProblem, row_problem
from shapejit.symbolic import Expr

SOURCE: Final = "source"
"""The key of what the copying loop gives."""


@dataclass(frozen=True, eq=False)
class RowOp:
    """A scan or a sort.

    Attributes:
        loop: gives the elements over the space.
        problem: what is asked for.
        outputs: memory of the op's results; None for one that is not wanted.
    """

    loop: Loop
    problem: RowProblem
    outputs: tuple[Memory | None, ...]

    @property
    def rows(self) -> Indices:
        """Sizes of the dims before the row."""
        return self.problem.rows

    @property
    def length(self) -> Expr:
        """Elements of a row."""
        return self.problem.length


class Scan(RowOp):
    """Running combinations."""


class Sort(RowOp):
    """A sort, or the head of one."""


def row_op_of(kernel: Any) -> Any:
    """The scan or sort of a ``shapejit.kernel``; None if it has none."""
    ops = sir.operations(sir.body(kernel))
    return next((op for op in ops if op.name in ROW_OPS), None)


def row_op_problem(kernel: Any) -> tuple[LoopProblem, RowOp]:
    """The problem of a kernel that holds a scan or a sort alone.

    Raises:
        LoweringError: it holds or yields something else, or a head is too long.
    """
    body = sir.body(kernel)
    *ops, terminator = (op for op in sir.operations(body) if op.name != "arith.constant")
    if len(ops) != 1:
        other = next(op.name for op in ops if op.name not in ROW_OPS)
        own = row_op_of(kernel).name
        raise LoweringError(f"holds '{other}' beside '{own}', which stands alone")
    [op] = ops
    problem = row_problem(op)
    inputs: dict[Key, Memory] = {
        value: memory_of(number, value) for number, value in enumerate(body.arguments)
    }
    written = {
        value: memory_of(len(inputs) + number, value)
        for number, value in enumerate(terminator.operands)
    }
    if not set(written).issubset(problem.results) or len(written) != len(terminator.operands):
        raise LoweringError(f"yields something else than each result of '{op.name}' once")
    element = problem.input.type.element_type
    rank = len(problem.space)
    loop = Loop(
        space=problem.space,
        reads=(Read(problem.input, problem.indices),),
        writes=(Write(SOURCE, identity(rank), element),),
        block=None,
        dims=tuple(range(rank)),
    )
    outputs = tuple(written.get(result) for result in problem.results)
    loops = LoopProblem((loop,), inputs, {key: (memory,) for key, memory in written.items()})
    if problem.scan is not None:
        return loops, Scan(loop, problem, outputs)
    _check_sort(problem, outputs)
    return loops, Sort(loop, problem, outputs)


def _check_sort(problem: RowProblem, outputs: tuple[Memory | None, ...]) -> None:
    """Refuses sorts that have no place to sort in."""
    if None in outputs:
        raise LoweringError("yields but one result of its sort, which works in the memory of both")
    head = problem.head.constant
    if not problem.is_whole and head is not None and head > MAX_HEAD:
        raise LoweringError(
            f"sorts for a head of {head} elements, and finds heads of up to {MAX_HEAD} without "
            "sorting whole rows; sort all of them and take a slice"
        )
