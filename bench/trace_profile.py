# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where the GPU's time goes in one request of a trace, kernel by kernel, for several systems.

    python bench/trace_profile.py minilm --at 2x24 32x26 --peers shapejit,buckets

Kernels that are launched programmatically start while the one before still runs, so their durations
overlap. What counts is by how much each moves the end of the request: from the end of the kernel
that ended before it to its own. These shares add up to the time from the first kernel's start to
the last one's end.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peers import OURS, PEERS, Setting, System
from trace_models import DTYPES, WORKLOADS
from trace_place import Place
from trace_workload import Request

_CALLS = 12


@dataclass(frozen=True)
class Span:
    """A kernel, or a copy, on the GPU; microseconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Share:
    """All kernels of one name in a call.

    Attributes:
        count: how many.
        share: microseconds by which they moved the end of the call.
        duration: microseconds from their starts to their ends.
    """

    name: str
    count: int
    share: float
    duration: float


def shares(spans: Sequence[Span]) -> tuple[float, list[Share]]:
    """Microseconds of a call from its first start to its last end, and whose they are."""
    ordered = sorted(spans, key=lambda span: span.end)
    first = reached = min(span.start for span in ordered)
    found: dict[str, list[float]] = {}
    for span in ordered:
        entry = found.setdefault(span.name, [0, 0.0, 0.0])
        entry[0] += 1
        entry[1] += span.end - reached
        entry[2] += span.end - span.start
        reached = span.end
    rows = [Share(name, int(n), share, duration) for name, (n, share, duration) in found.items()]
    return reached - first, sorted(rows, key=lambda row: -row.share)


def split(spans: Sequence[Span], calls: int) -> list[list[Span]]:
    """The kernels of each of several equal calls, in the order in which they started.

    Raises:
        ValueError: the calls did not run the same number of kernels.
    """
    if len(spans) % calls:
        raise ValueError(f"{calls} calls ran {len(spans)} kernels: not the same number each")
    ordered = sorted(spans, key=lambda span: span.start)
    each = len(spans) // calls
    return [ordered[start : start + each] for start in range(0, len(ordered), each)]


def record(system: System, inputs: Sequence[Any]) -> list[list[Span]]:
    """What a dozen calls run, one at a time."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        system(*inputs)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_CALLS):
            system(*inputs)
            torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    spans = [Span(event.name, event.time_range.start, event.time_range.end) for event in events]
    return split(spans, _CALLS)


def show(name: str, request: Request, calls: Sequence[Sequence[Span]], rows: int) -> None:
    """Prints the call of median length."""
    measured = [shares(call) for call in calls]
    middle = statistics.median_low(total for total, _ in measured)
    total, found = next(each for each in measured if each[0] == middle)
    count = sum(share.count for share in found)
    at = "x".join(map(str, request))
    print(f"\n{name} at {at}: {total:.1f} us, {count} kernels, {total / count:.2f} us each")
    print(f"{'us':>9}{'%':>7}{'count':>7}{'us each':>9}{'duration':>10}   kernel")
    for share in found[:rows]:
        print(
            f"{share.share:9.1f}{100 * share.share / total:7.1f}{share.count:7d}"
            f"{share.share / share.count:9.2f}{share.duration / share.count:10.2f}   "
            f"{share.name[:90]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--at", nargs="+", default=["2x24", "32x26"], help="requests")
    parser.add_argument("--peers", default=OURS, help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rows", type=int, default=25, help="kernels to show")
    arguments = parser.parse_args()
    workload, place = WORKLOADS[arguments.workload](), Place("cuda")
    dtype = DTYPES[arguments.dtype]
    model = workload.model("cuda", dtype)
    setting = Setting(workload, workload.requests, model, place, dtype)
    with torch.inference_mode():
        for name in arguments.peers.split(","):
            system = PEERS[name](setting)
            system.build()
            for text in arguments.at:
                request = tuple(map(int, text.split("x")))
                calls = record(system, setting.inputs(request))
                show(name, request, calls, arguments.rows)


if __name__ == "__main__":
    main()
