# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measured rates of a device: the constants of the cost model, kept as data.

``data/<device>.json`` is written by ``python -m shapejit.passes.buckets.fit`` and read once. It
also holds what the fit reported, so that the model's error is on record beside its constants.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shapejit.passes.nvgpu.schedule import GemmSchedule

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Constants:
    """Rates and delays; times in microseconds, rates in bytes a nanosecond (GB/s / 1000 a us).

    Attributes:
        launch: from the end of the kernel before to the first load of this one.
        cluster_launch: more of it for a kernel with clusters.
        tensor_efficiency: sustained share of the tensor cores' peak at full boost clock.
        fill_rate: bytes a nanosecond that one multiprocessor takes into its shared memory.
        cache_rate: bytes a nanosecond into and from the second-level cache, all together.
        memory_rate: bytes a nanosecond from and to device memory, all multiprocessors together.
        latency: from asking for a stage to having it in shared memory, under load.
        step: of a consumer for each stage beside its multiplications.
        epilogue: of a tile: its last multiplications drained, its store issued.
        epilogue_rate: bytes a nanosecond of one multiprocessor to pack and store a tile.
        split: of the reduction over a cluster that shares K, for its synchronisation.
        split_rate: bytes a nanosecond of partial sums through distributed shared memory.
        crowding: how much longer filling takes where clusters that share K read the same rows of
            the weights at once, as there are several tiles along the result's rows.
        handover: of partial sums through the second-level cache, once they are there.
        handover_rate: bytes a nanosecond of such sums that a multiprocessor reads.
        early_gain: what a kernel gains that starts before the one ahead of it ends.
        early_cache: how much longer the second-level cache takes then, if several tiles read the
            same weights, as they lie in no order.
        early_memory: how much longer device memory takes then, for the share of the GPU that stays
            free, as the tiles lie unevenly.
        interference: the same of multiplying and filling, which share the ports of shared memory.
        leak: share of the shorter of two overlapping times that is seen in the end.
        factors: by `factor_key`, what a schedule's steps take beyond the model; 1 if missing.
    """

    launch: float = 0.9
    cluster_launch: float = 0.25
    tensor_efficiency: float = 0.75
    fill_rate: float = 160.0
    cache_rate: float = 18000.0
    memory_rate: float = 4300.0
    latency: float = 0.9
    step: float = 0.01
    epilogue: float = 0.7
    epilogue_rate: float = 90.0
    split: float = 0.45
    split_rate: float = 25.0
    crowding: float = 1.3
    handover: float = 1.0
    handover_rate: float = 100.0
    early_gain: float = 0.7
    early_cache: float = 1.8
    early_memory: float = 0.7
    leak: float = 0.15
    interference: float = 0.14
    factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    @staticmethod
    def names() -> tuple[str, ...]:
        """The names of the scalar constants."""
        return tuple(f.name for f in fields(Constants) if f.name != "factors")

    def record(self) -> dict[str, Any]:
        """As JSON holds it, rounded to what the fit can tell apart."""
        scalars = {name: _rounded(getattr(self, name)) for name in self.names()}
        factors = {name: _rounded(factor) for name, factor in sorted(self.factors.items())}
        return {**scalars, "factors": factors}

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> Constants:
        """The inverse of `record`.

        Raises:
            ValueError: a constant is missing, unknown or not a positive number.
        """
        expected = {*Constants.names(), "factors"}
        if set(record) != expected:
            wrong = ", ".join(sorted(set(record) ^ expected))
            raise ValueError(f"not the constants of a cost model: missing or unknown are {wrong}")
        values = [record[name] for name in Constants.names()] + list(record["factors"].values())
        if not all(isinstance(value, int | float) and value > 0 for value in values):
            raise ValueError("constants of a cost model are positive numbers")
        scalars = {name: float(record[name]) for name in Constants.names()}
        return Constants(**scalars, factors=MappingProxyType(dict(record["factors"])))


def factor_key(schedule: GemmSchedule) -> str:
    """The schedule's name in `Constants.factors`: neither sharing the last wave nor reading weights
    once nor when it starts changes its steps, nor are tf32's other than those of 16 bits."""
    depth = 2 * schedule.depth if schedule.tf32 else schedule.depth  # as many bytes
    split = schedule.cluster_split
    name = replace(schedule, depth=depth, split=split, stream=False, once=False, tf32=False)
    return str(replace(name, early=False))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def data_file(device: str) -> Path:
    """Where the constants of a device are kept."""
    return _DATA / f"{device}.json"


@functools.cache
def constants_of(device: str) -> Constants:
    """The fitted constants of a device, by its name."""
    return Constants.of_record(json.loads(data_file(device).read_text())["constants"])


def write(device: str, constants: Constants, report: Mapping[str, Any]) -> None:
    """Keeps the result of a fit, with what is known of its error."""
    record = {"device": device, "constants": constants.record(), "fit": dict(report)}
    data_file(device).write_text(json.dumps(record, indent=2) + "\n")
