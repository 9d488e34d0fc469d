# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops as a family: what the compiler asks of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.buckets.device import Device
from shapejit.passes.gpu_loops.bodies import check_body, compute_type
from shapejit.passes.gpu_loops.choice import SizeRanges, choose_schedules
from shapejit.passes.gpu_loops.column_units import check_column_units
from shapejit.passes.gpu_loops.columns import columns_units, emit_columns
from shapejit.passes.gpu_loops.emission import Emission
from shapejit.passes.gpu_loops.phases import Columns, Phase, Points, Rows, phases
from shapejit.passes.gpu_loops.points import emit_points, points_units
from shapejit.passes.gpu_loops.problem import (
    LoopProblem,
    element_types,
    is_known,
    is_loops,
    loop_problem,
)
from shapejit.passes.gpu_loops.reduce import Reduction
from shapejit.passes.gpu_loops.row_choice import choose_row_op
from shapejit.passes.gpu_loops.row_ops import RowOp, Scan, Sort, row_op_of, row_op_problem
from shapejit.passes.gpu_loops.row_reads import own_rows
from shapejit.passes.gpu_loops.rows import emit_rows, rows_units
from shapejit.passes.gpu_loops.scans import check_units, emit_scan, scan_units
from shapejit.passes.gpu_loops.schedule import LoopSchedule
from shapejit.passes.gpu_loops.sorts import check_sort, emit_sort, sort_units
from shapejit.passes.gpu_loops.tiers import Bucket
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.lowering import emit_behind
from shapejit.passes.nvgpu.target import Architecture
from shapejit.symbolic import Expr, product
from shapejit.symbolic.expr import ZERO

_UNITS: dict[type[Any], Callable[[Any, LoopSchedule], Expr]] = {
    Points: points_units,
    Rows: rows_units,
    Columns: columns_units,
    Scan: scan_units,
    Sort: sort_units,
}
_EMITTERS: dict[type[Any], Callable[[Emission, Any], None]] = {
    Points: emit_points,
    Rows: emit_rows,
    Columns: emit_columns,
    Scan: emit_scan,
    Sort: emit_sort,
}


def serves(kernel: Any) -> bool:
    """Whether a ``shapejit.kernel`` is one of loops and views only, or of a scan or a sort."""
    return is_loops(kernel) or row_op_of(kernel) is not None


def check(kernel: Any) -> None:
    """Refuses a kernel that cannot be lowered, whatever the variant.

    Raises:
        LoweringError: it cannot; the text continues "this kernel ...".
    """
    _checked(kernel)


def _checked(kernel: Any) -> tuple[LoopProblem, list[Phase | RowOp]]:
    if row_op_of(kernel) is not None:
        problem, row_op = row_op_problem(kernel)
        _check_elements(problem)
        return problem, [row_op]
    problem = loop_problem(kernel)
    _check_elements(problem)
    for loop in problem.loops:
        if loop.block is not None:
            check_body(loop.block)
        for write in loop.writes:
            if write.kind is not None:
                Reduction(write.kind, compute_type(write.element))
    return problem, [*phases(problem)]


def _check_elements(problem: LoopProblem) -> None:
    for element in element_types(problem):
        if not is_known(element):
            raise LoweringError(f"has tensors of {element}, for which there is no GPU code")


def choose(kernel: Any, sizes: SizeRanges, device: Device) -> tuple[list[Expr], list[Bucket]]:
    """The variants of a kernel by size.

    Args:
        kernel: ``shapejit.kernel`` of loops.
        sizes: least and greatest value of each of its symbols; None for no greatest.
        device: what it runs on.

    Returns:
        The sizes that decide, and for each box of them, with inclusive bounds, the text of a
        `LoopSchedule` and the reason for it. Without sizes that decide there is one box.

    Raises:
        LoweringError: it cannot be lowered.
    """
    problem, found = _checked(kernel)
    first, *_ = found
    if isinstance(first, RowOp):
        return choose_row_op(problem, first, sizes, device)
    return choose_schedules(problem, phases(problem), sizes, device)


def lower(
    kernel: Any,
    variant: str,
    architecture: Architecture,
    *,
    block: bool = False,
    programmatic: bool = False,
    constant_weights: bool = False,
) -> KernelInterface:
    """Emits one variant of a kernel as a gpu module after the kernel.

    Args:
        kernel: ``shapejit.kernel`` of loops.
        variant: text of a `LoopSchedule`.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.
        constant_weights: makes no difference: which arguments are weights a kernel does not know,
            so it reads nothing before the wait.

    Raises:
        LoweringError: the kernel or the variant breaks a rule; nothing is emitted then.
    """
    del constant_weights
    schedule = LoopSchedule.parse(variant)
    problem, found = _checked(kernel)
    _check_fit(problem, found, schedule)
    name = f"{ir.StringAttr(kernel.attributes['sym_name']).value}__{schedule}"

    def emit() -> KernelInterface:
        function = KernelFunction(
            name,
            architecture,
            threads=schedule.threads,
            block=block,
            cluster=schedule.cluster,
            ctas_per_sm=schedule.ctas,
            programmatic=programmatic,
        )
        shared_bytes = _emit(function, problem, found, schedule)
        grid = _grid(function, found, schedule)
        return function.interface(grid, shared_bytes)

    return emit_behind(kernel, emit)


def _check_fit(
    problem: LoopProblem, found: Sequence[Phase | RowOp], schedule: LoopSchedule
) -> None:
    """Refuses a schedule that a phase cannot have.

    Raises:
        LoweringError: it cannot.
    """
    for phase in found:
        if isinstance(phase, Sort):
            check_sort(phase, schedule)
    if schedule.units and any(isinstance(phase, Columns) for phase in found):
        check_column_units(found, schedule)
    elif schedule.units:
        check_units(found, schedule)
    if schedule.shared:
        _check_shared(problem, found, schedule)
    if any(isinstance(phase, Columns) for phase in found):
        _check_columns(schedule)


def _check_columns(schedule: LoopSchedule) -> None:
    """Refuses what blocks of columns cannot have.

    Raises:
        LoweringError: it is asked for.
    """
    block = schedule.vector * schedule.lanes
    if block > schedule.threads:
        raise LoweringError(
            f"reduces blocks of {block} columns with {schedule.threads} threads; "
            "there is at least a thread a column"
        )
    if schedule.cluster > 1:
        raise LoweringError(f"has the schedule {schedule}; clusters share rows, not columns")


def _check_shared(
    problem: LoopProblem, found: Sequence[Phase | RowOp], schedule: LoopSchedule
) -> None:
    """Refuses rows in shared memory where there are none, or too long ones.

    Raises:
        LoweringError: there are.
    """
    [phase, *others] = found
    if isinstance(phase, Rows) and any(
        (size := (product(columns) // schedule.vector).constant) is not None
        and size * schedule.vector > schedule.row_capacity
        for columns in phase.columns
    ):
        raise LoweringError(
            f"has the variant {schedule}, which has no room for its rows in shared memory"
        )
    if others or not isinstance(phase, Rows) or not own_rows(problem, phase, schedule.vector):
        raise LoweringError(
            f"has the variant {schedule}, which keeps rows in shared memory, and reads no rows "
            "that lie side by side in blocks of 16 bytes"
        )


def _emit(
    function: KernelFunction,
    problem: LoopProblem,
    found: Sequence[Phase | RowOp],
    schedule: LoopSchedule,
) -> int:
    """Emits the body and returns the bytes of shared memory."""
    with function.body():
        # All CTAs wait, idle ones too: the kernel behind relies on what is ahead of this one.
        function.launch_dependents()
        function.await_predecessors()
        emission = Emission(problem, function, schedule)
        for phase in found:
            _EMITTERS[type(phase)](emission, phase)
        return emission.shared_bytes


def _grid(function: KernelFunction, found: Sequence[Phase | RowOp], schedule: LoopSchedule) -> Grid:
    units = [_UNITS[type(phase)](phase, schedule) for phase in found]
    return Grid(((function.value_number(sum(units, ZERO)), 1),), schedule.ctas)
