# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The rate at which a GPU copies, measured beside kernels that are bound by memory.

A kernel that reads and writes so many bytes is compared with a copy that moves as many: one half is
read and the other written, from other memory in every call, as the kernel's operands are. There are
two copies, `Tensor.copy_`, which leaves it to the driver, and torch's elementwise kernel of one
operand; the faster one counts. Small sizes say nothing of memory: starting a kernel is most of
their time, and the second-level cache holds them.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

LEAST_BYTES = 16 << 20
"""Bytes that a kernel has to move for its share of the copy rate to be looked at."""
GOAL = 0.85
"""The least share that it should have."""

_WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "copy": lambda source, target: target.copy_(source),
    "copy, elementwise": lambda source, target: torch.bitwise_not(source, out=target),
}
COPIES = frozenset(_WAYS)
"""Names of the copies among the providers of a cell."""


def copies(moved: int, sets: int) -> dict[str, list[Callable[[], object]]]:
    """Calls of each copy, with memory of their own.

    Args:
        moved: bytes that are read and written, together.
        sets: pairs of source and target that calls use in turn.
    """
    words = moved // 8

    def memory() -> Tensor:
        return torch.zeros(words, dtype=torch.int32, device="cuda")

    pairs = [(memory(), memory()) for _ in range(sets)]
    return {name: [functools.partial(way, *pair) for pair in pairs] for name, way in _WAYS.items()}


def share(records: Sequence[Mapping[str, Any]], provider: str, regime: str) -> float | None:
    """The share of the copy rate that a provider of a cell reaches; None if none was measured."""
    name = f"{regime}_us"
    taken = [each[name] for each in records if each["provider"] in COPIES]
    own = [each[name] for each in records if each["provider"] == provider]
    return min(taken) / own[0] if taken and own else None


def table(
    cells: Sequence[Sequence[Mapping[str, Any]]], provider: str, regimes: Sequence[str]
) -> list[str]:
    """Shares of a provider by kind, as lines: the geometric mean, the worst, and what misses the
    goal.

    Args:
        cells: the records of each cell.
    """
    shares: dict[str, list[float]] = {}
    missed = []
    for records in cells:
        for regime in regimes:
            if (found := share(records, provider, regime)) is None:
                continue
            first = records[0]
            shares.setdefault(f"{first['group']}: {first['kind']}, {regime}", []).append(found)
            if found < GOAL:
                missed.append(f"  {found:.3f} {first['kind']} {tuple(first['sizes'])}, {regime}")
    if not shares:
        return []
    count = sum(map(len, shares.values()))
    return [
        f"share of the copy rate (goal {GOAL} from {LEAST_BYTES >> 20} MiB on):",
        *(
            f"  {name:70} geomean {statistics.geometric_mean(part):6.3f}"
            f"  worst {min(part):6.3f}  of {len(part)}"
            for name, part in sorted(shares.items())
        ),
        f"{len(missed)} of {count} under the goal{':' if missed else ''}",
        *sorted(missed),
    ]
