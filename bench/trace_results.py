# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Results of several runs of `traces.py`: what is there already, and what stands side by side.

A file of results holds runs, each with the environment and the commit that it was measured with,
its setting, and a record for every system.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peers import ANCHORS, CHECKS, DISK, FLOOR, LARGEST, OURS, PEERS

Results = dict[str, Any]

SYSTEMS = (
    *ANCHORS, LARGEST, DISK, FLOOR, CHECKS, *(name for name in PEERS if name not in ANCHORS)
)  # fmt: skip
"""All systems, in the order of tables."""


def plot_path(output: Path, workload: str) -> Path:
    """Beside ``traces-h200.json``: ``traces-bert-h200.png``."""
    kind, *where = output.stem.split("-", 1)
    return output.with_name("-".join([kind, workload, *where]) + ".png")


def finished(record: Results) -> bool:
    """Whether all of a system was measured, with right results."""
    return "error" not in record and "stopped" not in record


def measured(results: Results, wanted: Results) -> set[str]:
    """Systems that earlier runs have finished in a setting."""
    return {
        name
        for run in results["runs"]
        if run["setting"] == wanted
        for name, record in run["systems"].items()
        if finished(record)
    }


def merged(results: Results, wanted: Results) -> Results:
    """The last finished record of every system in a setting; if there is none, the last one."""
    found: Results = {}
    for run in results["runs"]:
        if run["setting"] == wanted:
            for name, record in run["systems"].items():
                if name not in found or finished(record) or not finished(found[name]):
                    found[name] = record
    return {name: found[name] for name in SYSTEMS if name in found}


def of_all_workloads(results: Results, wanted: Results) -> dict[str, Results]:
    """By workload, what may stand beside a setting: all but workload and weights is the same."""
    alike = [
        run["setting"]
        for run in results["runs"]
        if all(run["setting"][key] == wanted[key] for key in ("dtype", "requests"))
    ]
    return {setting["workload"]: merged(results, setting) for setting in [*alike, wanted]}


def combined(parts: Iterable[Results]) -> Results:
    """One set of results of several, the oldest first.

    What failed is left out, and so are runs without ours, and those all of whose systems a later
    run has in their setting: anchors are measured in every run, for the ratios within it.
    """
    runs = []
    for part in parts:
        for run in part["runs"]:
            systems = {name: each for name, each in run["systems"].items() if finished(each)}
            if OURS in systems:
                runs.append({**run, "systems": systems})
    kept: list[Results] = []
    for run in reversed(runs):
        later = {name for each in kept if each["setting"] == run["setting"]
                 for name in each["systems"]}  # fmt: skip
        if not set(run["systems"]) <= later:
            kept.insert(0, run)
    return {"runs": kept}
