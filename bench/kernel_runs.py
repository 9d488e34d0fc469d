# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs of benchmarks of single kernels: records of cells, and ratios of medians within the run."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from copy_rate import COPIES, LEAST_BYTES, copies, share, table
from gemm import REGIME_NAMES, RESULTS, environment, measure
from kernel_cells import (
    BY_VALUE,
    OURS,
    Cell,
    Rotated,
    Sizes,
    prepare,
    right_kernels,
    right_peers,
    variants_of,
)

Record: TypeAlias = dict[str, Any]


def records_of(cell: Cell, arguments: argparse.Namespace, rng: random.Random) -> list[Record]:
    """A record for each provider of a cell."""
    rotated = Rotated.of(cell, arguments.megabytes)
    expected = cell.expected(rotated.sets[0])
    peers = right_peers(cell, rotated, expected)
    ours = right_kernels(cell, rotated, expected, arguments.variants)
    del expected
    moved = cell.moved(rotated.sets[0]) or 0
    beside = copies(moved, len(rotated.sets)) if moved >= LEAST_BYTES else {}
    variants = variants_of(cell, arguments.variants)
    return [
        {
            "group": cell.group, "kind": cell.kind, "sizes": list(cell.sizes), "provider": name,
            "variant": variants[name][0] if name in ours else None, **times,
        }
        for name, times in measure(rotated, {**peers, **ours, **beside}, rng).items()
    ]  # fmt: skip


def line(records: Sequence[Record]) -> str:
    """What the providers of a cell took in bursts, and the best peer's time over ours."""
    first, best = records[0], best_peer(records, "burst")
    texts = []
    for each in records:
        us = each["burst_us"]
        ratio = f" ({best / us:.3f})" if each["variant"] and best else ""
        part = share(records, each["provider"], "burst") if each["variant"] else None
        ratio += f" [{part:.2f} of a copy's rate]" if part is not None else ""
        name = (
            f"{each['provider']} {each['variant']}"
            if each["provider"] == OURS
            else each["provider"]
        )
        texts.append(f"{name} {us:.2f}{ratio}")
    return f"{first['kind']} {tuple(first['sizes'])}: {' | '.join(texts)}"


def best_peer(records: Sequence[Record], regime: str) -> float | None:
    """Microseconds of the fastest peer among a cell's records."""
    times = (
        each[f"{regime}_us"]
        for each in records
        if each["variant"] is None and each["provider"] not in COPIES
    )
    return min(times, default=None)


def by_cell(records: Sequence[Record]) -> dict[tuple[str, str, Sizes], list[Record]]:
    """The records of each cell."""
    cells: dict[tuple[str, str, Sizes], list[Record]] = {}
    for each in records:
        cells.setdefault((each["group"], each["kind"], tuple(each["sizes"])), []).append(each)
    return cells


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Ratios of the best peer's time to ours, by kind, form and regime."""
    ratios: dict[str, list[float]] = {}
    for (group, kind, _), found in by_cell(records).items():
        for each in found:
            if each["provider"] not in (OURS, BY_VALUE):
                continue
            for regime in REGIME_NAMES:
                if (best := best_peer(found, regime)) is not None:
                    name = f"{group}: {kind}, {each['provider']}, {regime}"
                    ratios.setdefault(name, []).append(best / each[f"{regime}_us"])
    return {
        name: {
            "geomean": round(statistics.geometric_mean(part), 3),
            "worst": round(min(part), 3),
            "shapes": len(part),
        }
        for name, part in sorted(ratios.items())
    }


def parser_of(doc: str, groups: Sequence[str]) -> argparse.ArgumentParser:
    """The options of such a benchmark."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--sets", nargs="*", choices=groups, default=list(groups))
    parser.add_argument("--variants", nargs="*", default=[], help="measure these schedules too")
    parser.add_argument(
        "--megabytes", type=float, default=25,
        help="of operands that calls use in turn; by default they stay in the second-level cache, "
        "as what a model has just written does; 300 come from memory",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--commit", help="of the sources, where they are no repository")
    parser.add_argument("--output", type=Path)
    return parser


def run(name: str, cells: Sequence[Cell], arguments: argparse.Namespace) -> None:
    """Measures cells in a shuffled order, writes what is found and prints a table.

    Raises:
        SystemExit: there is no GPU.
    """
    if not torch.cuda.is_available():
        sys.exit(f"bench/{name}.py measures an NVIDIA GPU, and torch finds none: run it on one")
    end, rng = time.monotonic() + arguments.seconds, random.Random(arguments.seed)
    gpu = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "-").lower()
    arguments.output = arguments.output or RESULTS / f"{name}-{gpu}.json"
    wanted = [cell for cell in cells if cell.group in arguments.sets]
    rng.shuffle(wanted)
    prepare(wanted, arguments.variants)
    records: list[Record] = []
    for number, cell in enumerate(wanted):
        if time.monotonic() > end:
            print(f"out of time after {number} of {len(wanted)} cells", flush=True)
            break
        found = records_of(cell, arguments, rng)
        print(line(found) if found else f"{cell.kind} {cell.sizes}: nothing", flush=True)
        records += found
        save(records, arguments)
        torch.cuda.empty_cache()
    for title, row in summary(records).items():
        figures = f"geomean {row['geomean']:6.3f}  worst {row['worst']:6.3f}  of {row['shapes']}"
        print(f"{title:72} {figures}")
    for text in table(list(by_cell(records).values()), OURS, REGIME_NAMES):
        print(text)


def save(records: list[Record], arguments: argparse.Namespace) -> None:
    """Writes what was measured so far."""
    found = {**environment(), "megabytes": arguments.megabytes}
    if arguments.commit:
        found["commit"] = arguments.commit
    result = {"environment": found, "summary": summary(records), "records": records}
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
