# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the emitter of a family is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from shapejit.passes.nvgpu.problem import GemmProblem
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import Architecture


@dataclass(frozen=True)
class GemmRequest:
    """One variant of a kernel.

    Attributes:
        name: of the module and of the function in the machine code.
        problem: what it computes.
        schedule: how.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block, see `function`.
        programmatic: whether it may start before the kernel ahead of it in the stream ends.
        constant_weights: whether no kernel that may still run writes the weights, so that a
            programmatic kernel may load them before those ahead of it end.
    """

    name: str
    problem: GemmProblem
    schedule: GemmSchedule
    architecture: Architecture
    block: bool = False
    programmatic: bool = False
    constant_weights: bool = False
