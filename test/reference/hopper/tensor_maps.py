# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensor maps that a kernel of the simulated GPU changes: ``tensormap.replace`` and its fence.

A map is known to the machine by its address. It is not in simulated memory, where its bits would
mean nothing; each change makes a new `TiledMap`, whose checks are those of the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reference.hopper import hardware, ptx
from reference.hopper.machine import Warp
from reference.hopper.memory import SimulationError


def _replace(state: Any, parts: Sequence[str], address: str, *operands: str) -> None:
    """``tensormap.replace.tile.<field>.global.b1024.<type> [address], (ordinal,) value``"""
    warp: Warp = state.warp
    machine, field = warp.cta.machine, parts[2]
    places = np.broadcast_to(state.address(address), 32)
    values = np.broadcast_to(state.get(operands[-1]), 32)
    ordinal = int(operands[0]) if len(operands) == 2 else None
    for lane in np.flatnonzero(warp.mask):
        place, value = int(places[lane]), int(values[lane])
        if place not in machine.tensor_maps:
            raise SimulationError(f"no tensor map at {place:#x} that could be changed")
        if field == "global_stride" and value >= 1 << 40:
            raise SimulationError(f"a stride of {value} bytes in a tensor map")
        made = machine.tensor_maps[place]
        match field, ordinal:
            case "global_address", None:
                made = replace(made, address=value)
            case "global_dim", int():
                made = replace(made, dims=_with(made.dims, ordinal, value))
            case "global_stride", int():
                made = replace(made, strides=_with(made.strides, ordinal + 1, value))
            case _:
                raise NotImplementedError(f"tensormap.replace of {field}")
        machine.tensor_maps[place] = made
        # Until the fence nobody may rely on it.
        _unreleased(warp).add(place)


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    if index >= len(values):
        raise SimulationError(f"a tensor map of {len(values)} dims has no dim {index}")
    return (*values[:index], value, *values[index + 1 :])


def _unreleased(warp: Warp) -> set[int]:
    """Maps that threads of the grid changed and did not release."""
    found: set[int] = warp.cta.machine.__dict__.setdefault("unreleased_maps", set())
    return found


def _release(op: Any) -> Any:
    def release(warp: Warp) -> None:
        _unreleased(warp).clear()  # those of the warp, as all its threads come here together

    return release


def _vote(op: Any) -> Any:
    kind = str(op.attributes["kind"])

    def vote(warp: Warp, _: Any, condition: Any) -> Any:
        if "any" not in kind:
            raise NotImplementedError(f"vote {kind}")
        if not warp.mask.all():
            raise SimulationError("a vote with lanes that do not take part")
        return np.bool_(np.broadcast_to(condition, 32).any())

    return vote


def _warp_barrier(op: Any) -> Any:
    def wait(warp: Warp, _: Any) -> None:
        if not warp.mask.all():
            raise SimulationError("a barrier of a warp with lanes that do not take part")

    return wait


ptx._INSTRUCTIONS["tensormap"] = _replace
hardware.OPS.setdefault("nvvm.vote.sync", _vote)
hardware.OPS.setdefault("nvvm.bar.warp.sync", _warp_barrier)
hardware.OPS["nvvm.fence.proxy.release"] = _release
