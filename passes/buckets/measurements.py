# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measured times of gemm kernels, as benchmarks write them, in the form that a fit needs.

A file is a list of records, or an object with such a list under ``records``::

    {"m": 64, "n": 4096, "k": 4096, "batch": 1, "dtype": "bf16", "provider": "nvgpu",
     "schedule": "small_m_64x32x64_s16_w1_r2", "burst_us": 12.7, "sustained_us": 12.6}

Several records of one kernel at one shape, as of bf16 and f16, count as one. Records of other
providers are what to compare with; only ``nvgpu`` is modelled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shapejit.passes.buckets.problem import Array, GemmSizes
from shapejit.passes.nvgpu.schedule import GemmSchedule

# What benchmarks write as the schedule of calls for which the model chose one.
DISPATCHED = "dispatched"

_SIZES = ("n", "k", "batch", "m")
_TIMES = ("burst_us", "sustained_us")


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

    def part(self, start: int, step: int) -> Measurements:
        """Every `step`-th shape from `start` on."""
        return Measurements(self.shapes[start::step], self.schedules, self.times[start::step])


def read(path: Path) -> Measurements:
    """The ``nvgpu`` records of a file but those of calls whose schedule was ``dispatched``.

    Raises:
        ValueError: the file has none, or a record lacks a size or a time.
    """
    document = json.loads(path.read_text())
    records = document["records"] if isinstance(document, dict) else document
    own = (r for r in records if r["provider"] == "nvgpu" and r["schedule"] != DISPATCHED)
    return of_records(own)


def of_records(records: Iterable[Mapping[str, Any]]) -> Measurements:
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
