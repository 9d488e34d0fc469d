# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What an emitter of attention kernels is asked for, of whatever kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from shapejit.passes.nvgpu.attention.problem import AttentionProblem
from shapejit.passes.nvgpu.target import Architecture

ScheduleT = TypeVar("ScheduleT")


@dataclass(frozen=True)
class AttentionRequest(Generic[ScheduleT]):
    """A kernel to be emitted.

    Attributes:
        name: of the module and function.
        problem: what it computes.
        schedule: how.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.
    """

    name: str
    problem: AttentionProblem
    schedule: ScheduleT
    architecture: Architecture
    block: bool = False
    programmatic: bool = False
