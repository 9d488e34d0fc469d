# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a `shapejit.kernel` and a schedule to a `gpu.module`, whatever the family."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.problem import GemmProblem, gemm_problem, is_half
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.simt import emitter as simt
from shapejit.passes.nvgpu.target import Architecture

INTERFACE = "shapejit.interface"
"""Attribute of a gpu module: the JSON text of its kernel's `KernelInterface`."""

# The module that has each family's `emit(request)`.
_EMITTERS = {
    "persistent": "persistent",
    "swapped": "persistent",
    "small_m": "small_m",
    "unaligned": "unaligned",
    "simt": "simt.emitter",
}


def emit_behind(kernel: Any, emit: Callable[[], KernelInterface]) -> KernelInterface:
    """Puts the gpu module of a variant behind its kernel, with the interface as an attribute.

    Args:
        kernel: ``shapejit.kernel``.
        emit: emits one gpu module at the current point. If it raises, nothing is left of that.
    """
    scratch = ir.Module.create(kernel.location)
    with ir.InsertionPoint(scratch.body), kernel.location:
        interface = emit()
    [module] = (op.operation for op in scratch.body.operations)
    module.attributes[INTERFACE] = ir.StringAttr.get(interface.to_json())
    module.move_after(kernel)
    return interface


def is_gemm(kernel: Any) -> bool:
    """Whether a ``shapejit.kernel`` is one that this lowering serves."""
    return any(op.name == "shapejit.gemm" for op in sir.operations(sir.body(kernel)))


def check(kernel: Any) -> None:
    """Checks that a kernel with a gemm can be lowered, whatever the variant.

    Raises:
        LoweringError: it cannot.
    """
    problem = gemm_problem(kernel)
    if not is_half(problem.element):
        simt.check(problem)


def weight_operands(kernel: Any) -> list[int]:
    """The numbers of the arguments that are weights of a kernel's gemm."""
    return [weight.operand for weight in gemm_problem(kernel).weights]


def variant_name(kernel: Any, schedule: GemmSchedule) -> str:
    """The name of a variant's module and function."""
    return f"{ir.StringAttr(kernel.attributes['sym_name']).value}__{schedule}"


def _check_family(problem: GemmProblem, schedule: GemmSchedule) -> None:
    """Whether a schedule is for a product, and for the factors' type."""
    if schedule.family not in _EMITTERS:
        raise LoweringError(
            f"multiplies matrices by the schedule {schedule}, which is for convolutions"
        )
    if is_half(problem.element) == (schedule.family == "simt" or schedule.of_floats):
        rule = "simt, tf32 and tf32x3 are for f32, the other schedules for bf16 and f16"
        raise LoweringError(f"multiplies {problem.element} by the schedule {schedule}; {rule}")


def lower_variant(
    kernel: Any,
    schedule: GemmSchedule,
    architecture: Architecture,
    *,
    block: bool = False,
    programmatic: bool = False,
    constant_weights: bool = False,
) -> KernelInterface:
    """Emits one variant of a kernel as a gpu module after the kernel.

    Args:
        kernel: ``shapejit.kernel`` with one gemm.
        schedule: how it computes.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.
        constant_weights: whether a programmatic kernel may load weights before that.

    Raises:
        LoweringError: the kernel or the schedule breaks a rule; nothing is emitted then.
    """
    problem = gemm_problem(kernel)
    _check_family(problem, schedule)
    request = GemmRequest(
        variant_name(kernel, schedule),
        problem,
        schedule,
        architecture,
        block=block,
        programmatic=programmatic,
        constant_weights=constant_weights,
    )
    emitter = importlib.import_module(f"shapejit.passes.nvgpu.{_EMITTERS[schedule.family]}")
    return emit_behind(kernel, lambda: emitter.emit(request))
