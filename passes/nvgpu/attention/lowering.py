# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a `shapejit.kernel` with an attention and a variant's name to a `gpu.module`."""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.attention.choice import choose, stake
from shapejit.passes.nvgpu.attention.kinds import emit, parse_schedule
from shapejit.passes.nvgpu.attention.problem import attention_problem, is_attention
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.lowering import emit_behind
from shapejit.passes.nvgpu.target import Architecture

__all__ = ["check", "choose", "lower", "serves", "stake"]


def serves(kernel: Any) -> bool:
    """Whether a ``shapejit.kernel`` is one with an attention."""
    return is_attention(kernel)


def check(kernel: Any) -> None:
    """Checks that a kernel can be lowered, whatever the variant.

    Raises:
        LoweringError: it cannot.
    """
    attention_problem(kernel)


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
        kernel: ``shapejit.kernel`` with one attention.
        variant: text of a schedule, see `kinds`.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.
        constant_weights: of no meaning here: attention has no weights to load ahead.

    Raises:
        LoweringError: the kernel or the schedule breaks a rule; nothing is emitted then.
    """
    try:
        schedule = parse_schedule(variant)
    except ValueError as error:
        raise LoweringError(f"has a variant without a schedule: {error}") from error
    name = ir.StringAttr(kernel.attributes["sym_name"]).value
    problem = attention_problem(kernel)
    return emit_behind(
        kernel,
        lambda: emit(
            f"{name}__{schedule}",
            problem,
            schedule,
            architecture,
            block=block,
            programmatic=programmatic,
        ),
    )
