# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Units and builds of kernels for GPUs without a compiler: each key has one content."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

from shapejit.cache.cubins import CubinEntry, CubinUnit
from shapejit.codegen.cuda_tools import Tool
from shapejit.codegen.ptxas import Resources
from shapejit.dump import Dump
from unit.cache_samples import content, sample_key
from unit.gpu_modules import SCALE_INTERFACE

TOOL = Tool(Path("/opt/ptxas"), "13.0.88")
RESOURCES = Resources(168, 16, 1024, 0, 0, 0)


def sample_unit(number: int = 0) -> CubinUnit:
    """A unit; another for each number."""
    key = sample_key(number, schedule=(("name", "persistent_128x256x64_s4_w2"),))
    return CubinUnit(key, f"// kernel {number}", "canonicalize", "sm_90a", 3, TOOL)


def sample_entry(unit: CubinUnit, size: int | None = None) -> CubinEntry:
    """What belongs under a unit's key."""
    return CubinEntry("gemm", SCALE_INTERFACE, RESOURCES, content(unit.key, size))


class Builds:
    """A stand-in for `build_cubin` that counts and, if asked to, waits or fails.

    Attributes:
        counts: builds by digest.
        most: builds that ran at the same time, at most.
        gate: builds wait for it.
        failing: digests whose builds fail.
    """

    def __init__(self, *, open: bool = True, seconds: float = 0.0) -> None:
        self.counts: Counter[str] = Counter()
        self.order: list[str] = []
        self.most = 0
        self.gate = threading.Event()
        self.failing: set[str] = set()
        self._seconds = seconds
        self._inside = 0
        self._lock = threading.Lock()
        if open:
            self.gate.set()

    def __call__(self, unit: CubinUnit, _dump: Dump | None) -> CubinEntry:
        digest = unit.key.digest
        with self._lock:
            self.counts[digest] += 1
            self.order.append(digest)
            self._inside += 1
            self.most = max(self.most, self._inside)
        try:
            assert self.gate.wait(60)
            time.sleep(self._seconds)
            if digest in self.failing:
                raise ArithmeticError(f"no code for {digest[:8]}")
            return sample_entry(unit)
        finally:
            with self._lock:
                self._inside -= 1
