# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The floor: CUDA graphs of shapejit's own kernels for just one shape, beside the program.

What a graph that serves all shapes of a region costs more than one that was made for a single
shape. In that one the same variants of the kernels take their parameters by value and have just the
blocks that the shape needs, and nothing has to be patched before they start. The program's own call
is captured too: users who capture a program get that.

All run in one process, in turns, on the same inputs: each call by itself, host included, and in
queues that keep the GPU busy, timed there.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from trace_workload import Request

from peers.base import NotApplicableError, Setting
from peers.ours import ShapeJit
from shapejit.gpu import program_build

PROGRAM, CAPTURED, EXACT = "program", "captured", "exact"
_ROUNDS = 7
_QUEUED_MS = 5.0
_PAUSE = 0.003
_AHEAD_CYCLES = 400_000


class ByValue(ShapeJit):
    """The same kernels, launched one by one with parameters by value."""

    def build(self) -> dict[str, Any]:
        with parameters_by_value():
            return super().build()


@contextmanager
def parameters_by_value() -> Iterator[None]:
    """Programs built in the block queue their kernels, whatever their number.

    Programmatic dependent launch stays on: without it this would be no floor.
    """
    most, recipe = program_build.MOST_QUEUED, program_build._recipe

    def programmatic(*arguments: Any) -> Any:
        return dataclasses.replace(recipe(*arguments), programmatic=True)

    program_build.MOST_QUEUED, program_build._recipe = sys.maxsize, programmatic
    try:
        yield
    finally:
        program_build.MOST_QUEUED, program_build._recipe = most, recipe


def measure_floor(setting: Setting, deadline: float, seed: int) -> dict[str, Any]:
    """Times of the program and of the graphs, for distinct shapes, as many as the workload says.

    Args:
        deadline: of `time.monotonic`; shapes that it leaves no time for are left out.

    Returns:
        the compile, and a row for each shape, in microseconds.
    """
    if not setting.place.is_gpu:
        raise NotApplicableError("there are CUDA graphs on a GPU only")
    system, by_value = ShapeJit(setting), ByValue(setting)
    built = system.build()
    by_value.build()
    rows = []
    shapes = list(dict.fromkeys(setting.requests))
    random.Random(seed).shuffle(shapes)
    shapes = shapes[: setting.workload.floor_shapes]
    for request in shapes:
        if time.monotonic() > deadline:
            break
        rows.append(_shape(system, by_value, setting, request, random.Random(seed)))
    return {"build": built, "shapes": len(shapes), "rows": sorted(rows, key=lambda r: r["request"])}


def _shape(
    system: ShapeJit, by_value: ShapeJit, setting: Setting, request: Request, rng: random.Random
) -> dict[str, Any]:
    inputs = setting.inputs(request)
    graphs = {CAPTURED: _capture(system, inputs), EXACT: _capture(by_value, inputs)}
    calls: dict[str, Callable[[], Any]] = {PROGRAM: lambda: system(*inputs)}
    expected = system(*inputs)
    row: dict[str, Any] = {"request": list(request), "equal": True}
    for name, (graph, held) in graphs.items():
        held.fill_(float("nan"))
        graph.replay()
        row["equal"] &= bool((held == expected).all())
        calls[name] = graph.replay
    alone = _alone(setting, calls, rng)
    queued = _queued(calls, alone[EXACT], rng)
    row |= {f"{name}_alone_us": found for name, found in alone.items()}
    row |= {f"{name}_queued_us": found for name, found in queued.items()}
    return row


def _capture(system: ShapeJit, inputs: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of one call, and the result that it writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            system(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        held = system(*inputs)
    return graph, held


def _alone(
    setting: Setting, calls: dict[str, Callable[[], Any]], rng: random.Random
) -> dict[str, float]:
    """Median microseconds of wall time of a call with nothing else queued."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(3 * _ROUNDS):
        for name in rng.sample(list(calls), len(calls)):
            times[name].append(setting.place.time(calls[name], ())[1].wall)
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def _queued(
    calls: dict[str, Callable[[], Any]], alone_us: float, rng: random.Random
) -> dict[str, float]:
    """Median microseconds of the GPU's time a call, of several that queue up.

    Something else keeps the GPU busy while the first are queued, so that it never waits for the
    host as long as a call takes less of the host than of the GPU.
    """
    count = max(4, min(100, int(_QUEUED_MS * 1e3 / alone_us)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name in rng.sample(list(calls), len(calls)):
            torch.cuda.synchronize()
            time.sleep(_PAUSE)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_AHEAD_CYCLES)
            start.record()
            for _ in range(count):
                calls[name]()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / count)
    return {name: round(statistics.median(values), 2) for name, values in times.items()}
