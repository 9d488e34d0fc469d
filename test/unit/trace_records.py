# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a system leaves behind that served a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from trace_report import summarize


def record_of(
    cold_ms: list[float], warm_ms: list[float], cpu_us: float = 30, **more: Any
) -> dict[str, Any]:
    """A record with its summary.

    Args:
        cold_ms, warm_ms: what each call took.
        cpu_us: what each took of the host.
        more: further fields.
    """

    def columns(walls: list[float]) -> dict[str, list[float]]:
        many = len(walls)
        return {
            "wall_us": [1e3 * ms for ms in walls],
            "call_us": [20.0] * many,
            "cpu_us": [cpu_us] * many,
        }

    record = {
        "build_s": 1.5, "cold": columns(cold_ms), "warm": columns(warm_ms),
        "warm_walls_us": [1e3 * ms for ms in warm_ms],
        "memory_mib": {"end": 300.0}, **more,
    }  # fmt: skip
    summarize(record)
    return record
