# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What convolution kernels take beyond matrix products, kept as data.

A convolution reads its pixels again for every tap, mostly from the second-level cache, and has few
filters beside many pixels. ``data/<device>-conv.json`` is written by ``python -m
shapejit.passes.buckets.fit_conv`` from what ``bench/conv.py`` measured.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from shapejit.passes.buckets.constants import Constants, factor_key
from shapejit.passes.nvgpu.schedule import GemmSchedule

_DATA = Path(__file__).parent / "data"

#: Of the steps of kernels in im2col mode; beside it, of those in which pairs of CTAs share their
#: filters by multicast, or clusters K, with fewer filters than pixels; of tiles with a halo.
IM2COL: Final = "im2col"
SHARED: Final = "filters shared"
SPLIT: Final = "K shared"
HALO: Final = "halo"
#: Of the latency of a stage; of what does not grow with the steps.
LATENCY: Final = "latency"
FIXED: Final = "fixed"
#: Those that are not of single schedules.
COMMON: Final = (IM2COL, SHARED, SPLIT, HALO, LATENCY, FIXED)


@dataclass(frozen=True)
class ConvFactors:
    """What convolutions take, over what matrix products with the same bytes and products take.

    Attributes:
        factors: by the names in `COMMON`, and by the schedules of the family halo, beside `HALO`; 1
            if missing.
    """

    factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def of(self, schedule: GemmSchedule) -> float:
        """The factor of a schedule's steps."""
        if schedule.family == "halo":
            return self._get(HALO) * self._get(factor_key(schedule))
        shared = self._get(SHARED) if schedule.rows_shared > 1 else 1.0
        narrow = schedule.rows < schedule.columns
        split = self._get(SPLIT) if schedule.cluster_split > 1 and narrow else 1.0
        return self._get(IM2COL) * shared * split

    def rates(self, constants: Constants) -> Constants:
        """The rates and delays of a device, for convolutions."""
        fixed = self._get(FIXED)
        return replace(
            constants,
            latency=constants.latency * self._get(LATENCY),
            launch=constants.launch * fixed,
            cluster_launch=constants.cluster_launch * fixed,
            epilogue=constants.epilogue * fixed,
            split=constants.split * fixed,
        )

    def _get(self, name: str) -> float:
        return self.factors.get(name, 1.0)


def _file(device: str) -> Path:
    return _DATA / f"{device}-conv.json"


@functools.cache
def conv_factors_of(device: str) -> ConvFactors:
    """The fitted factors of a device, by its name."""
    record = json.loads(_file(device).read_text())
    return ConvFactors(MappingProxyType(dict(record["factors"])))


def write(device: str, factors: ConvFactors, report: Mapping[str, Any]) -> None:
    """Keeps the result of a fit, with what is known of its error."""
    rounded = {name: float(f"{value:.4g}") for name, value in factors.factors.items()}
    record = {"device": device, "factors": rounded, "fit": dict(report)}
    _file(device).write_text(json.dumps(record, indent=2) + "\n")
