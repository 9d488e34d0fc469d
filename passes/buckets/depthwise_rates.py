# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the parts of a depthwise convolution's time cost on a device, kept as data.

``data/<device>-depthwise.json`` is written by ``python -m shapejit.passes.buckets.fit_depthwise``
from what ``bench/conv.py`` measured; `passes/nvgpu/conv/depthwise_model.py` says how much there is
of each.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class DepthwiseRates:
    """Costs of parts of a time.

    Attributes:
        launch: of a launch, microseconds.
        start: of a CTA of the grid, cycles of a multiprocessor.
        latency: from loads to what they load, for each time that a thread waits, cycles.
        multiply: of an addition of a product, to a thread of each CTA that shares a
            multiprocessor, cycles.
        load: of a load by all threads of a CTA, cycles of a multiprocessor.
        first: of a byte that is read or written for the first time, cycles of a multiprocessor.
        every: of a byte that a thread loads or stores, cycles of a multiprocessor.
        memory: of a byte that the second-level cache has no room for, beside the others, cycles of
            a multiprocessor.
    """

    launch: float = 1.0
    start: float = 30.0
    latency: float = 150.0
    multiply: float = 2.5
    load: float = 6.0
    first: float = 0.013
    every: float = 0.012
    memory: float = 0.13

    @classmethod
    def names(cls) -> list[str]:
        """Of the costs, in order."""
        return [each.name for each in fields(cls)]

    @property
    def values(self) -> tuple[float, ...]:
        """In order."""
        return astuple(self)


def _file(device: str) -> Path:
    return _DATA / f"{device}-depthwise.json"


@functools.cache
def depthwise_rates_of(device: str) -> DepthwiseRates:
    """The fitted costs of a device, by its name."""
    return DepthwiseRates(**json.loads(_file(device).read_text())["rates"])


def write(device: str, rates: DepthwiseRates, report: Mapping[str, Any]) -> None:
    """Keeps the result of a fit, with what is known of its error."""
    rounded = {name: float(f"{value:.4g}") for name, value in asdict(rates).items()}
    record = {"device": device, "rates": rounded, "fit": dict(report)}
    _file(device).write_text(json.dumps(record, indent=2) + "\n")
