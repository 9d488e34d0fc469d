# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The systems that the traces are run through, by name."""

from __future__ import annotations

from collections.abc import Callable

from peers.base import Eager, NotApplicableError, Setting, System
from peers.buckets import Buckets
from peers.compiled import Compiled, Marked
from peers.ours import ShapeJit

OURS, EAGER = "shapejit", "eager"
ANCHORS = (EAGER, OURS)
"""Measured again in every run, so that the others have something of the same hour beside them."""

#: In the order in which they are measured: what takes long comes last.
PEERS: dict[str, Callable[[Setting], System]] = {
    EAGER: Eager,
    OURS: ShapeJit,
    "buckets": Buckets,
    "compile-dynamic": lambda setting: Compiled(setting, dynamic=True),
    "compile-marked": Marked,
    "buckets-compiled": lambda setting: Buckets(setting, compiled=True),
    "compile-auto": lambda setting: Compiled(setting, dynamic=None),
}

#: Not systems of their own: exact-shape graphs of our kernels; our results at many more shapes;
#: ours at nothing but the largest request of a trace; ours built with what is in the cache.
FLOOR, CHECKS, LARGEST, DISK = "floor", "checks", "largest", "disk"

__all__ = [
    "ANCHORS",
    "CHECKS",
    "DISK",
    "EAGER",
    "FLOOR",
    "LARGEST",
    "OURS",
    "PEERS",
    "NotApplicableError",
    "Setting",
    "System",
]
