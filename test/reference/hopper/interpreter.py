# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs a kernel of upstream dialects, before it is lowered to LLVM, on the simulated GPU.

A function is turned into a list of Python closures once; a warp executes it with values of 32 lanes
and a mask. Structured control flow becomes masks. What an op means is in `scalars` (arith, math,
llvm), `hardware` (nvgpu, nvvm, gpu) and `ptx` (inline assembly); here are functions and scf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from reference.hopper import hardware, scalars
from reference.hopper.machine import RESCHEDULE, Steps, Warp
from shapejit import ir as sir

Plain: TypeAlias = Callable[[Warp], None]
Blocking: TypeAlias = Callable[[Warp], Steps]


@dataclass(frozen=True)
class Step:
    """One op: `run` returns at once, or yields what it waits for."""

    run: Any
    blocking: bool


class Function:
    """A kernel's body as steps.

    Args:
        op: an ``llvm.func`` with one block.
    """

    def __init__(self, op: Any) -> None:
        self._slots: dict[Any, int] = {}
        block = op.regions[0].blocks[0]
        self.arguments = [self.slot(argument) for argument in block.arguments]
        self._steps = self.block(block)

    @property
    def slots(self) -> int:
        return len(self._slots)

    def slot(self, value: Any) -> int:
        """The number of an SSA value."""
        return self._slots.setdefault(value, len(self._slots))

    def block(self, block: Any) -> list[Step]:
        """The steps of a block, without its terminator's."""
        steps = []
        for op in sir.operations(block):
            if op.name in ("scf.yield", "scf.condition", "llvm.return", "gpu.return"):
                continue
            steps.append(self._step(op))
        return steps

    def _step(self, op: Any) -> Step:
        if op.name in _CONTROL:
            return Step(_CONTROL[op.name](self, op), True)
        operands = [self.slot(value) for value in op.operands]
        results = [self.slot(value) for value in op.results]
        for table in (scalars.OPS, hardware.OPS):
            if op.name in table:
                return Step(_plain(table[op.name](op), operands, results), False)
        if op.name in hardware.BLOCKING:
            return Step(_blocking(hardware.BLOCKING[op.name](op), operands, results), True)
        raise NotImplementedError(f"the simulated GPU does not know {op.name}: {op}")

    def start(self, warp: Warp, arguments: Sequence[Any]) -> Steps:
        """The coroutine of a warp."""
        for slot, value in zip(self.arguments, arguments, strict=True):
            warp.values[slot] = value
        return run(self._steps, warp)


def run(steps: Sequence[Step], warp: Warp) -> Steps:
    """Executes steps with the warp's mask."""
    for step in steps:
        if step.blocking:
            yield from step.run(warp)
        else:
            step.run(warp)


def _plain(compute: Any, operands: list[int], results: list[int]) -> Plain:
    def step(warp: Warp) -> None:
        values = warp.values
        out = compute(warp, *[values[slot] for slot in operands])
        if len(results) == 1:
            values[results[0]] = out
        else:
            for slot, value in zip(results, out or (), strict=True):
                values[slot] = value

    return step


def _blocking(compute: Any, operands: list[int], results: list[int]) -> Blocking:
    def step(warp: Warp) -> Steps:
        out = yield from compute(warp, *[warp.values[slot] for slot in operands])
        for slot in results:
            warp.values[slot] = out

    return step


# Control flow -------------------------------------------------------------------------------------


def merge(mask: Any, new: Any, old: Any) -> Any:
    """The new value in the lanes of a mask, the old one in others."""
    if isinstance(new, tuple) and isinstance(old, tuple):
        return tuple(merge(mask, *pair) for pair in zip(new, old, strict=True))
    if old is None or not isinstance(new, (np.ndarray, np.generic)):
        return new  # only the lanes of the mask may look at it
    return np.where(mask, new, old)


class _Masked:
    """Executes under a narrower mask."""

    def __init__(self, warp: Warp, mask: Any) -> None:
        self._warp, self._mask = warp, mask

    def __enter__(self) -> None:
        self._saved = self._warp.mask
        self._warp.mask = self._mask

    def __exit__(self, *_: object) -> None:
        self._warp.mask = self._saved


def _if(function: Function, op: Any) -> Blocking:
    condition = function.slot(op.operands[0])
    branches = [
        function.block(region.blocks[0]) if len(region.blocks) else [] for region in op.regions
    ]
    yields = [
        [function.slot(value) for value in sir.operations(region.blocks[0])[-1].operands]
        if len(region.blocks)
        else []
        for region in op.regions
    ]
    results = [function.slot(value) for value in op.results]

    def step(warp: Warp) -> Steps:
        chosen = np.broadcast_to(warp.values[condition], 32)
        made: list[Any] = [None] * len(results)
        for steps, slots, taken in zip(branches, yields, (chosen, ~chosen), strict=True):
            mask = warp.mask & taken
            if not mask.any():
                continue
            with _Masked(warp, mask):
                yield from run(steps, warp)
            for number, slot in enumerate(slots):
                made[number] = merge(mask, warp.values[slot], made[number])
        for slot, value in zip(results, made, strict=True):
            warp.values[slot] = value

    return step


def _for(function: Function, op: Any) -> Blocking:
    lower, upper, stride, *init = [function.slot(value) for value in op.operands]
    block = op.regions[0].blocks[0]
    variable, *carried = [function.slot(value) for value in block.arguments]
    steps = function.block(block)
    yields = [function.slot(value) for value in sir.operations(block)[-1].operands]
    results = [function.slot(value) for value in op.results]

    def step(warp: Warp) -> Steps:
        values = warp.values
        index, limit, by = values[lower], values[upper], values[stride]
        state = [values[slot] for slot in init]
        entry = warp.mask
        while True:
            goes_on = scalars.signed(index) < scalars.signed(limit)
            mask = entry & np.broadcast_to(goes_on, 32)
            if not mask.any():
                break
            with _Masked(warp, mask):
                values[variable] = index
                for slot, value in zip(carried, state, strict=True):
                    values[slot] = value
                yield from run(steps, warp)
            made = [values[slot] for slot in yields]
            if not mask.all():
                made = [merge(mask, *pair) for pair in zip(made, state, strict=True)]
            state, index = made, index + by
        for slot, value in zip(results, state, strict=True):
            values[slot] = value

    return step


def _while(function: Function, op: Any) -> Blocking:
    init = [function.slot(value) for value in op.operands]
    before, after = (region.blocks[0] for region in op.regions)
    first = [function.slot(value) for value in before.arguments]
    second = [function.slot(value) for value in after.arguments]
    test, body = function.block(before), function.block(after)
    condition, *passed = [function.slot(v) for v in sir.operations(before)[-1].operands]
    again = [function.slot(v) for v in sir.operations(after)[-1].operands]
    results = [function.slot(value) for value in op.results]

    def step(warp: Warp) -> Steps:
        values = warp.values
        state = [values[slot] for slot in init]
        out: list[Any] = [None] * len(passed)
        mask = warp.mask
        while True:
            with _Masked(warp, mask):
                for slot, value in zip(first, state, strict=True):
                    values[slot] = value
                yield from run(test, warp)
            out = [merge(mask, values[slot], old) for slot, old in zip(passed, out, strict=True)]
            mask = mask & np.broadcast_to(values[condition], 32)
            if not mask.any():
                break
            with _Masked(warp, mask):
                for slot, value in zip(second, out, strict=True):
                    values[slot] = value
                yield from run(body, warp)
            state = [merge(mask, values[slot], old) for slot, old in zip(again, state, strict=True)]
            yield RESCHEDULE
        for slot, value in zip(results, out, strict=True):
            values[slot] = value

    return step


_CONTROL: dict[str, Callable[[Function, Any], Blocking]] = {
    "scf.if": _if,
    "scf.for": _for,
    "scf.while": _while,
}
