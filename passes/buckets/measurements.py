# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measured times of gemm kernels, as benchmarks write them, in the form that a fit needs.

A file is a list of records, or an object with such a list under ``records``::

    {"m": 64, "n": 4096, "k": 4096, "batch": 1, "dtype": "bf16", "provider": "nvgpu",
     "schedule": "small_m_64x32x64_s16_w1_r2", "burst_us": 12.7, "sustained_us": 12.6}

Several records of one kernel at one shape, as of bf16 and f16, count as one. Records of other
providers are what to compare with; only ``nvgpu`` is modelled.

Runs differ by how warm the GPU is. So a later file's times at a shape count as multiples of what
cuBLAS took beside, if an earlier file has that, too; and what it measured again replaces what an
earlier one has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shapejit.passes.buckets.problem import Array, GemmSizes
from shapejit.passes.nvgpu.schedule import GemmSchedule

# What benchmarks write as the schedule of calls for which the model chose one.
DISPATCHED = "dispatched"

_SIZES = ("n", "k", "batch", "m")
_TIMES = ("burst_us", "sustained_us")
_PEER = "cublas"

_Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Measurements:
    """Times of schedules on shapes.

    Attributes:
        shapes: rows of (m, n, k, batch), in a fixed order.
        schedules: in a fixed order.
        times: microseconds, (shapes, schedules), NaN where nothing was measured: the geometric
            mean of what was measured in bursts and back to back, where a device short of power is
            slower.
    """

    shapes: Sequence[tuple[int, int, int, int]]
    schedules: tuple[GemmSchedule, ...]
    times: Array

    def sizes(self) -> GemmSizes:
        """The shapes as the model takes them."""
        m, n, k, batch = np.array(self.shapes).T
        return GemmSizes(m, n, k, batch)

    def of(self, schedules: Collection[GemmSchedule]) -> Measurements:
        """What was measured of some schedules."""
        columns = [i for i, schedule in enumerate(self.schedules) if schedule in schedules]
        times = self.times[:, columns]
        rows = np.flatnonzero(~np.isnan(times).all(axis=1)).tolist()
        kept = tuple(self.schedules[i] for i in columns)
        return Measurements([self.shapes[i] for i in rows], kept, times[rows])

    def part(self, start: int, step: int) -> Measurements:
        """Every `step`-th shape from `start` on."""
        return Measurements(self.shapes[start::step], self.schedules, self.times[start::step])


def read(*paths: Path) -> Measurements:
    """The ``nvgpu`` records of files but those of calls whose schedule was ``dispatched``.

    Args:
        paths: of the files, the latest run last.

    Raises:
        ValueError: they have none, or a record lacks a size or a time.
    """
    found: dict[tuple[Any, ...], list[_Record]] = {}
    standard: dict[tuple[Any, ...], _Record] = {}
    for path in paths:
        records = _records(path)
        peers = {_problem(r): r for r in records if r["provider"] == _PEER}
        own: dict[tuple[Any, ...], list[_Record]] = {}
        for record in records:
            if record["provider"] == "nvgpu" and record["schedule"] != DISPATCHED:
                key = _problem(record)
                scaled = _scaled(record, peers.get(key, {}), standard.get(key, {}))
                own.setdefault((key, record["schedule"]), []).append(scaled)
        found.update(own)
        standard = {**peers, **standard}
    return of_records(chain.from_iterable(found.values()))


def _records(path: Path) -> list[_Record]:
    document = json.loads(path.read_text())
    return list(document["records"] if isinstance(document, dict) else document)


def _problem(record: _Record) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in (*_SIZES, "dtype"))


def _scaled(record: _Record, peer: _Record, standard: _Record) -> _Record:
    """A record as if it came from the run in which cuBLAS took the standard's time."""
    known = [name for name in _TIMES if all(r.get(name) for r in (record, peer, standard))]
    return {**record, **{name: record[name] * standard[name] / peer[name] for name in known}}


def of_records(records: Iterable[_Record]) -> Measurements:
    """Records as arrays; see `read`."""
    found: dict[tuple[int, ...], dict[GemmSchedule, list[float]]] = {}
    for record in records:
        missing = [name for name in (*_SIZES, "schedule") if name not in record]
        times = [record[name] for name in _TIMES if record.get(name)]
        if missing or not times:
            raise ValueError(f"not a measurement, {missing or _TIMES} missing: {dict(record)}")
        schedule = GemmSchedule.parse(record["schedule"])
        shape = tuple(int(record[name]) for name in _SIZES)
        found.setdefault(shape, {}).setdefault(schedule, []).extend(times)
    if not found:
        raise ValueError("no measurements of the provider nvgpu")
    shapes = sorted(found)
    schedules = tuple(sorted({s for row in found.values() for s in row}))
    table = [
        [np.mean(np.log(found[shape].get(s, [np.nan]))) for s in schedules] for shape in shapes
    ]
    times_of = np.exp(np.array(table))
    return Measurements([(m, n, k, b) for n, k, b, m in shapes], schedules, times_of)
