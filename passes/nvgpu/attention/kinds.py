# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kinds of attention kernels, by the first word of their variants' names.

A kind is a module with ``emit(request)`` for its own sort of request, and its schedules. Every
kernel with an attention has variants of the kind ``tiles``; the others serve some.
"""

from __future__ import annotations

from typing import TypeAlias

from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.attention import decode_emitter, emitter, flash
from shapejit.passes.nvgpu.attention.decode_schedule import PREFIX, SplitSchedule
from shapejit.passes.nvgpu.attention.flash_schedule import FlashSchedule
from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.attention.request import AttentionRequest
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.target import Architecture

Schedule: TypeAlias = "AttentionSchedule | FlashSchedule"


def parse_schedule(text: str) -> Schedule:
    """The schedule that a variant's name stands for.

    Raises:
        ValueError: it stands for none.
    """
    if text.startswith(PREFIX):
        return SplitSchedule.parse(text)
    kind = text.partition("_")[0]
    return FlashSchedule.parse(text) if kind == "flash" else AttentionSchedule.parse(text)


def emit(
    name: str,
    problem: AttentionProblem,
    schedule: Schedule,
    architecture: Architecture,
    *,
    block: bool,
    programmatic: bool,
) -> KernelInterface:
    """Emits a kernel at the current point.

    Args:
        name: of the module and function.
        problem: what it computes.
        schedule: how.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.

    Raises:
        LoweringError: the schedule does not suit the problem.
    """
    if isinstance(schedule, FlashSchedule):
        return flash.emit(
            AttentionRequest(name, problem, schedule, architecture, block, programmatic)
        )
    request = AttentionRequest(name, problem, schedule, architecture, block, programmatic)
    if isinstance(schedule, SplitSchedule):
        return decode_emitter.emit(request)
    return emitter.emit(request)
