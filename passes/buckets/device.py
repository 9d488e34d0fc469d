# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Facts of the GPUs that code is made for, as data.

These are counts and limits of the hardware; rates that have to be measured are constants of the
cost model, fitted for each device (`shapejit.passes.buckets.constants`). A module says what it is
for in its attribute ``shapejit.target``: ``"cuda:sm_90a:h200"``, or ``"cuda:sm_90a"`` for the
device on which that architecture was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        name: as targets spell it, e.g. ``h200``.
        arch: the architecture for the assembler, e.g. ``sm_90a``.
        multiprocessors: of the device.
        shared_bytes: shared memory of a multiprocessor.
        shared_reserved: bytes of it that every CTA takes beside its own.
        max_threads: resident threads of a multiprocessor.
        l2_bytes: second-level cache.
        clock_ghz: of a multiprocessor, at full boost.
        active_clusters: clusters of a size that are resident at once, with one CTA a
            multiprocessor. Fewer than ``multiprocessors / size``, as a cluster lies within one
            processing cluster of the chip.
    """

    name: str
    arch: str
    multiprocessors: int
    shared_bytes: int
    shared_reserved: int
    max_threads: int
    l2_bytes: int
    clock_ghz: float
    active_clusters: Mapping[int, int] = field(hash=False)

    @property
    def target(self) -> str:
        """The text of ``shapejit.target`` that names this device."""
        return f"cuda:{self.arch}:{self.name}"

    def clusters(self, size: int) -> int:
        """Clusters of `size` CTAs that run at once, with one CTA a multiprocessor."""
        known = self.active_clusters.get(size)
        # Unmeasured sizes: as good as the worst measured share of the multiprocessors.
        share = min(n * count for n, count in self.active_clusters.items())
        return known if known is not None else max(share // size, 1)


H200: Final = Device(
    name="h200",
    arch="sm_90a",
    multiprocessors=132,
    shared_bytes=228 * 1024,
    shared_reserved=1024,
    max_threads=2048,
    l2_bytes=60 * 1024 * 1024,
    clock_ghz=1.98,
    active_clusters=MappingProxyType({1: 132, 2: 66, 3: 39, 4: 30}),
)

DEVICES: Final = (H200,)


def device_of_target(target: str) -> Device:
    """The device that the text of a module's ``shapejit.target`` names.

    Raises:
        ValueError: no device of that name is described; the text lists those that are.
    """
    for device in DEVICES:
        if target in (device.target, f"cuda:{device.arch}"):
            return device
    known = ", ".join(f'"{device.target}"' for device in DEVICES)
    raise ValueError(f'no device is described for the target "{target}"; described are {known}')
