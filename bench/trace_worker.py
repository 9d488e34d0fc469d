# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs one system over one trace, in a process of its own, so that its memory is its alone.

`traces.py` starts it as ``python trace_worker.py TASK``, with TASK a JSON file. What was measured
is written to the task's `result` after every phase: a process that is stopped leaves what it had.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import random
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peers import (
    CHECKS,
    DISK,
    EAGER,
    FLOOR,
    LARGEST,
    OURS,
    PEERS,
    NotApplicableError,
    Setting,
    System,
)
from peers.floor import measure_floor
from trace_checks import check_widely
from trace_exact import Exact, WrongResultError, checked_requests
from trace_models import DTYPES, WORKLOADS
from trace_place import Place, Times
from trace_report import summarize
from trace_workload import Request

_FRESH = 8
_STEADY = 3
_QUEUES = 5
#: After so many no more warm passes, or queues, start, but for the first two passes.
_WARM_SECONDS, _QUEUED_SECONDS = 8.0, 2.0
_EXACT_SECONDS = 5.0


@dataclass(frozen=True)
class Task:
    """What to measure.

    Attributes:
        peer: a name of `peers.PEERS`, or one of "floor", "checks", "largest" and "disk".
        requests: how many of the trace to use.
        passes: warm passes over the trace, after the cold one.
        seconds: no phase starts after so many.
        exact: folder of exact results.
        result: file for what was measured.
    """

    workload: str
    peer: str
    device: str
    dtype: str
    requests: int
    passes: int
    seconds: float
    seed: int
    exact: str
    result: str


class Run:
    """One system over one trace."""

    def __init__(self, task: Task, setting: Setting, record: dict[str, Any]) -> None:
        self.task = task
        self.setting = setting
        self.record = record
        self._exact = Exact(Path(task.exact))
        self._end = time.monotonic() + task.seconds
        record["positions"] = sum(map(math.prod, setting.requests))
        self._system: System
        self._memory("weights")

    def write(self) -> None:
        """Writes what was measured so far, with figures drawn from it."""
        summarize(self.record)
        Path(self.task.result).write_text(json.dumps(self.record, default=str))

    def everything(self) -> None:
        """All phases, in an order in which none disturbs what a later one measures."""
        self.served()
        for phase in (self._fresh, self._queued, self._details):
            if time.monotonic() < self._end:
                phase()
                self.write()

    def served(self) -> None:
        """The trace, cold and warm."""
        self.built()
        self._cold()
        self._warm()
        self._memory("end")

    def built(self) -> None:
        """The system, ready for the first request."""
        start = time.perf_counter()
        self._system = PEERS[self.task.peer](self.setting)
        self.record["build"] = self._system.build()
        self.record["build_s"] = round(time.perf_counter() - start, 3)
        self._memory("built")
        self.write()

    def _cold(self) -> None:
        """The trace in order of arrival; every result that can be checked is."""
        columns = Columns()
        errors = self.record["errors"] = []
        checked: set[Request] = set()
        for request in self.setting.requests:
            self.setting.inputs(request)
        with no_garbage_collection():
            for request in self.setting.requests:
                inputs = self.setting.inputs(request)
                result, times = self.setting.place.time(self._system, inputs)
                columns.add(times)
                if request not in checked:
                    checked.add(request)
                    if (error := self._exact.check(request, result)) is not None:
                        errors.append(error)
                del inputs, result
                self._memory("most")
        self.record["cold"] = columns.lists
        self._memory("served")
        self.write()

    def _warm(self) -> None:
        """The trace again and again, shuffled; after that results are checked again."""
        requests = self.setting.requests
        passes: list[list[Times]] = [[] for _ in requests]
        rng = random.Random(self.task.seed)
        end = min(self._end, time.monotonic() + _WARM_SECONDS)
        for number in range(self.task.passes):
            if number > 1 and time.monotonic() > end:
                break
            with no_garbage_collection():
                for index in rng.sample(range(len(requests)), len(requests)):
                    inputs = self.setting.inputs(requests[index])
                    result, times = self.setting.place.time(self._system, inputs)
                    passes[index].append(times)
                    del inputs, result
            self.record["warm"] = medians(passes)
            self.record["warm_walls_us"] = [round(t.wall, 2) for row in passes for t in row]
            self.record["passes"] = number + 1
            self.write()
        self._memory("most")
        for request in checked_requests(requests):
            self._exact.check(request, self._system(*self.setting.inputs(request)))

    def _fresh(self) -> None:
        """Sizes never seen before: the first call beside the second, and the median of some more.

        All get new inputs, made in the same way just before, so that nothing but the size's being
        new tells them apart.
        """
        count = self.setting.workload.new_sizes if self.task.peer == OURS else _FRESH
        requests = self.setting.workload.new_requests(count, self.task.seed)
        if self.task.peer.startswith("buckets"):
            # A bucketed system knows its batch sizes.
            known = sorted({request[0] for request in self.setting.requests})
            requests = [(known[i % len(known)], *r[1:]) for i, r in enumerate(requests)]
        columns = ("first_us", "second_us", "steady_us")
        found: dict[str, list[Any]] = {name: [] for name in ("requests", *columns)}
        with no_garbage_collection():
            for request in requests:
                self.setting.inputs(request)  # drawn before the first call
                first, second, *others = (self._timed(request) for _ in range(2 + _STEADY))
                walls = (first, second, statistics.median(others))
                for column, wall in zip(columns, walls, strict=True):
                    found[column].append(round(wall, 1))
                found["requests"].append(list(request))
                if time.monotonic() > self._end:
                    break
        self.record["fresh"] = found

    def _timed(self, request: Request) -> float:
        """Microseconds of a call with new inputs."""
        return self.setting.place.time(self._system, self.setting.inputs(request))[1].wall

    def _queued(self) -> None:
        """The whole trace at once, without waiting for results: microseconds a request.

        The host's own time is that of calls which follow each other closely.
        """
        inputs = [self.setting.inputs(request) for request in self.setting.requests]
        walls: list[float] = []
        hosts: list[float] = []
        end = time.monotonic() + _QUEUED_SECONDS
        with no_garbage_collection():
            while not walls or (len(walls) < _QUEUES and time.monotonic() < end):
                self.setting.place.synchronize()
                cpu = time.thread_time()
                start = time.perf_counter()
                for each in inputs:
                    self._system(*each)
                hosts.append((time.thread_time() - cpu) * 1e6 / len(inputs))
                self.setting.place.synchronize()
                walls.append((time.perf_counter() - start) * 1e6 / len(inputs))
        self.record["queued_us"] = round(statistics.median(walls), 2)
        self.record["queued_cpu_us"] = round(statistics.median(hosts), 2)

    def _details(self) -> None:
        try:
            self.record["details"] = self._system.details()
        except Exception as error:  # what was measured counts without it
            self.record["details"] = {"error": brief(error)}

    def _memory(self, when: str) -> None:
        memory = self.record.setdefault("memory_mib", {})
        now = self.setting.place.memory()
        memory[when] = max(now, memory.get(when, 0)) if when == "most" else now
        memory["reserved"] = self.setting.place.reserved()


class Columns:
    """Times of calls in columns: short in JSON."""

    def __init__(self) -> None:
        names = [field.name for field in dataclasses.fields(Times)]
        self.lists: dict[str, list[float]] = {f"{name}_us": [] for name in names}

    def add(self, times: Times) -> None:
        for name, value in dataclasses.asdict(times).items():
            self.lists[f"{name}_us"].append(round(value, 2))


def medians(passes: list[list[Times]]) -> dict[str, list[float]]:
    """The median of every request over the passes, in columns."""
    columns = Columns()
    for row in passes:
        samples = zip(*map(dataclasses.astuple, row), strict=True)
        columns.add(Times(*map(statistics.median, samples)))
    return columns.lists


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collects before, not in between."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def brief(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


# ---------------------------------------------------------------------------
# The process
# ---------------------------------------------------------------------------


def prepare(task: Task) -> Setting:
    """The model on the device, with nothing else there but what torch needs."""
    workload = WORKLOADS[task.workload]()
    place = Place(task.device)
    dtype = DTYPES[task.dtype]
    model = workload.model(place.kind, dtype)
    return Setting(workload, workload.requests[: task.requests], model, place, dtype)


def only_largest(setting: Setting) -> Setting:
    """A setting of one request, the largest of the trace."""
    return dataclasses.replace(setting, requests=[max(setting.requests, key=math.prod)])


def measure(task: Task, record: dict[str, Any]) -> None:
    """Fills the record."""
    setting = prepare(task)
    end = time.monotonic() + task.seconds
    with torch.inference_mode():
        if task.peer == FLOOR:
            record["floor"] = measure_floor(setting, end, task.seed)
        elif task.peer == CHECKS:
            record["checks"] = check_widely(setting, end, task.seed)
        elif task.peer == LARGEST:
            Run(dataclasses.replace(task, peer=OURS), only_largest(setting), record).served()
        elif task.peer == DISK:
            Run(dataclasses.replace(task, peer=OURS), setting, record).built()
        else:
            Run(task, setting, record).everything()
        exact = Exact(Path(task.exact))
        if task.peer == EAGER and not exact.complete:
            # Here, since this process has the model, and nothing is measured any more.
            exact.make(setting, time.monotonic() + _EXACT_SECONDS)


def main() -> int:
    task = Task(**json.loads(Path(sys.argv[1]).read_text()))
    record: dict[str, Any] = {}
    try:
        measure(task, record)
    except NotApplicableError as error:
        record["not_applicable"] = str(error)
    except Exception as error:
        traceback.print_exc()
        record["error"] = str(error) if isinstance(error, WrongResultError) else brief(error)
    summarize(record)
    Path(task.result).write_text(json.dumps(record, default=str))
    return 1 if "error" in record else 0


if __name__ == "__main__":
    sys.exit(main())
