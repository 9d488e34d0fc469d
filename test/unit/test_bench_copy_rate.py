# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The benchmarks' shares of the rate of a copy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from copy_rate import COPIES, GOAL, share, table


def records(kind: str, ours: float, *copies: float) -> list[dict[str, Any]]:
    """A cell with our time and those of the copies, microseconds."""
    times = {"ours": ours, **dict(zip(sorted(COPIES), copies, strict=False))}
    shared = {"group": "norms", "kind": kind, "sizes": [8, 2]}
    return [{**shared, "provider": name, "burst_us": us} for name, us in times.items()]


def test_the_faster_copy_counts() -> None:
    assert share(records("norm", 20.0, 30.0, 18.0), "ours", "burst") == pytest.approx(0.9)
    assert share(records("norm", 20.0, 18.0, 30.0), "ours", "burst") == pytest.approx(0.9)


def test_without_a_copy_there_is_no_share() -> None:
    assert share(records("norm", 20.0), "ours", "burst") is None
    assert share(records("norm", 20.0, 18.0), "theirs", "burst") is None
    assert table([records("norm", 20.0)], "ours", ["burst"]) == []


def test_what_misses_the_goal_is_named() -> None:
    cells = [
        records("norm", 20.0, 18.0, 18.0),
        records("softmax", 20.0, 20 * GOAL - 1, 30.0),
        records("sum", 20.0),
    ]
    lines = table(cells, "ours", ["burst"])
    assert "1 of 2 under the goal:" in lines
    assert [line for line in lines if line.startswith("  0.")] == ["  0.800 softmax (8, 2), burst"]
    assert any("norms: norm, burst" in line and "worst  0.900" in line for line in lines)
