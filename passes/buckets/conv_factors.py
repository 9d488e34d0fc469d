# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What steps of convolution kernels take beyond those of matrix products, kept as data.

A convolution reads its pixels again for every tap, mostly from the second-level cache, and has few
filters beside many pixels. ``data/<device>-conv.json`` is written by ``python -m
shapejit.passes.buckets.fit_conv`` from what ``bench/conv.py`` measured.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from shapejit.passes.buckets.constants import factor_key
from shapejit.passes.nvgpu.schedule import GemmSchedule

_DATA = Path(__file__).parent / "data"

#: Of kernels in im2col mode; of those in which pairs of CTAs share their filters by multicast,
#: beside it; of tiles with a halo.
IM2COL: Final = "im2col"
SHARED: Final = "filters shared"
HALO: Final = "halo"


@dataclass(frozen=True)
class ConvFactors:
    """What a step takes, over what it takes in a matrix product with the same bytes and products.

    Attributes:
        factors: by `IM2COL`, `SHARED` and `HALO`, and by the schedules of the family halo, beside
            `HALO`; 1 if missing.
    """

    factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def of(self, schedule: GemmSchedule) -> float:
        """The factor of a schedule of convolutions."""
        names = [HALO, factor_key(schedule)] if schedule.family == "halo" else [IM2COL]
        if schedule.family != "halo" and schedule.rows_shared > 1:
            names.append(SHARED)
        found = 1.0
        for name in names:
            found *= self.factors.get(name, 1.0)
        return found


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
