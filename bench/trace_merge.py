# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Joins results of `traces.py` from several calls in one file, the oldest first.

    python bench/trace_merge.py bench/results/traces-h200.json later.json

The first file is rewritten, and plots are drawn beside it of the models that the others have.
What failed is left out, and runs all of whose systems a later one has. Each run keeps its
environment and its commit. Goals are printed of all models in the file, with figures that stand
beside each other whichever call they come from.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trace_criteria import criteria_text
from trace_report import dumps, plot, table
from trace_results import Results, combined, merged, of_all_workloads, plot_path


def settings(results: Results) -> list[Results]:
    """The settings of all runs, once each."""
    found: list[Results] = []
    for run in results["runs"]:
        if run["setting"] not in found:
            found.append(run["setting"])
    return found


def show(results: Results, wanted: Results) -> str:
    """A setting's table and goals, with the commits that it was measured with."""
    runs = [run for run in results["runs"] if run["setting"] == wanted]
    commits = dict.fromkeys(run["environment"].get("commit", "unknown") for run in runs)
    parts = [
        f"{title(results, wanted)}, {wanted['requests']} requests, {', '.join(commits)}",
        table(merged(results, wanted)),
        criteria_text(wanted["workload"], of_all_workloads(results, wanted)),
    ]
    return "\n".join(part for part in parts if part)


def title(results: Results, wanted: Results) -> str:
    """What was measured, and where."""
    device = next(
        run["environment"].get("device", "unknown")
        for run in results["runs"]
        if run["setting"] == wanted
    )
    return f"{wanted['workload']}, {wanted['dtype']}, {device}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="file that is there already, or a new one")
    parser.add_argument("later", type=Path, nargs="*", help="files of later calls")
    given = parser.parse_args()
    files = [given.output] if given.output.exists() else []
    parts = [json.loads(path.read_text()) for path in [*files, *given.later]]
    results = combined(parts)
    given.output.write_text(dumps(results) + "\n")
    for wanted in settings(results):
        print(show(results, wanted), end="\n\n")
        if any(wanted in settings(part) for part in parts[len(files) :]):
            path = plot_path(given.output, wanted["workload"])
            plot(merged(results, wanted), title(results, wanted), path)


if __name__ == "__main__":
    main()
