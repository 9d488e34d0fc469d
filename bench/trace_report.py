# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Figures, tables and plots of what `traces.py` measures."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_exact import overall_ratio

OURS, EAGER, FLOOR, CHECKS, LARGEST = "shapejit", "eager", "floor", "checks", "largest"

Record = dict[str, Any]

STALL_MS, SLOW_MS, STUTTER_MS = 100.0, 10.0, 20.0
NEW_SIZE_RATIO = 1.5


# ---------------------------------------------------------------------------
# Figures
# ---------------------------------------------------------------------------


def percentile(values: Sequence[float], q: float) -> float:
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def summarize(record: Record) -> None:
    """Adds, under "summary", the figures that the columns of a record allow so far.

    Times are in milliseconds, those of the host in microseconds.
    """
    summary: dict[str, float | int] = {}
    if cold := record.get("cold"):
        walls = [us / 1e3 for us in cold["wall_us"]]
        summary["first_ms"] = walls[0]
        summary["worst_cold_ms"] = max(walls)
        summary["stalls_over_100ms"] = sum(wall > STALL_MS for wall in walls)
        summary["calls_over_10ms"] = sum(wall > SLOW_MS for wall in walls)
        summary["worst_call_ms"] = max(_all_walls(record)) / 1e3
        summary["calls_over_20ms"] = sum(us / 1e3 > STUTTER_MS for us in _all_walls(record))
    if warm := record.get("warm"):
        # Of all calls, not of the medians by request: a tail may be in any of them.
        walls = [us / 1e3 for us in record["warm_walls_us"]]
        summary |= {f"p{q}_ms": percentile(walls, q / 100) for q in (50, 90, 99)}
        summary["worst_warm_ms"] = max(walls)
        summary["call_us"] = statistics.median(warm["call_us"])
        summary["cpu_us"] = statistics.median(warm["cpu_us"])
        # What the first calls took beyond what the same calls take later: compiles and captures.
        beyond = [a - b for a, b in zip(record["cold"]["wall_us"], warm["wall_us"], strict=True)]
        summary["cold_beyond_warm_s"] = sum(max(us, 0.0) for us in beyond) / 1e6
        summary["worst_stall_ms"] = max(*beyond, *_warm_stalls(record)) / 1e3
        if positions := record.get("positions"):
            summary["ns_a_position"] = sum(warm["wall_us"]) * 1e3 / positions
    if fresh := record.get("fresh"):
        pairs = zip(fresh["first_us"], fresh["second_us"], strict=True)
        ratios = [first / second for first, second in pairs]
        summary["fresh_ratio"] = statistics.median(ratios)
        summary["fresh_worst_ms"] = max(fresh["first_us"]) / 1e3
        if steady := fresh.get("steady_us"):
            ratios = [a / b for a, b in zip(fresh["first_us"], steady, strict=True)]
            summary["fresh_sizes"] = len(ratios)
            summary["fresh_steady_worst"] = max(ratios)
            summary["fresh_steady_p90"] = percentile(ratios, 0.9)
            summary["fresh_over_1_5"] = sum(ratio > NEW_SIZE_RATIO for ratio in ratios)
    firsts = record.get("details", {}).get("first_requests_of_regions")
    if firsts:
        summary["regions_seen"] = len(firsts)
        summary["worst_first_in_region_ms"] = (
            max(record["cold"]["wall_us"][i] for i in firsts) / 1e3
        )
        if warm:
            summary["worst_beyond_in_region_ms"] = max(beyond[i] for i in firsts) / 1e3
    if errors := record.get("errors"):
        summary["worst_error_ratio"] = max(error["ratio"] for error in errors)
        summary["error_ratio"] = overall_ratio(errors)
    if summary:
        record["summary"] = {name: round(value, 4) for name, value in summary.items()}


def _all_walls(record: Record) -> list[float]:
    """Microseconds of all calls of a record that were timed one at a time."""
    fresh = record.get("fresh", {}).get("first_us", [])
    return [*record["cold"]["wall_us"], *record.get("warm_walls_us", []), *fresh]


def _warm_stalls(record: Record) -> list[float]:
    """Microseconds by which each warm call took longer than the median of its request."""
    walls, medians = record["warm_walls_us"], record["warm"]["wall_us"]
    passes = len(walls) // len(medians)
    return [wall - medians[number // passes] for number, wall in enumerate(walls)]


def ratios_to_ours(peers: Mapping[str, Record], name: str) -> list[float]:
    """A peer's time over ours at every request, warm; above 1 ours is faster."""
    ours, theirs = (peers[key].get("warm", {}).get("wall_us", []) for key in (OURS, name))
    return [b / a for a, b in zip(ours, theirs, strict=False)]


def floor_ratios(record: Record, regime: str, graph: str = "exact") -> list[float]:
    """Ours over a graph for just one shape, at every shape.

    Args:
        regime: "queued" or "alone".
        graph: "exact", or "captured" for the program's own call.
    """
    rows = record.get("floor", {}).get("rows", [])
    return [row[f"program_{regime}_us"] / row[f"{graph}_{regime}_us"] for row in rows]


def whole_floor(record: Record) -> list[Record]:
    """The rows of the floor if it has all shapes, else none."""
    floor = record.get("floor", {"shapes": 0, "rows": []})
    rows: list[Record] = floor["rows"]
    return rows if len(rows) == floor["shapes"] else []


# ---------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------

_COLUMNS = (
    ("build s", lambda r: r.get("build_s"), ".1f"),
    ("first ms", lambda r: r["summary"].get("first_ms"), ".2f"),
    ("worst ms", lambda r: r["summary"].get("worst_cold_ms"), ".2f"),
    (">100ms", lambda r: r["summary"].get("stalls_over_100ms"), "d"),
    (">10ms", lambda r: r["summary"].get("calls_over_10ms"), "d"),
    ("p50", lambda r: r["summary"].get("p50_ms"), ".3f"),
    ("p90", lambda r: r["summary"].get("p90_ms"), ".3f"),
    ("p99", lambda r: r["summary"].get("p99_ms"), ".3f"),
    ("queued us", lambda r: r.get("queued_us"), ".0f"),
    ("call us", lambda r: r["summary"].get("call_us"), ".0f"),
    ("cpu us", lambda r: r["summary"].get("cpu_us"), ".0f"),
    ("cpu hot", lambda r: r.get("queued_cpu_us"), ".0f"),
    ("new/2nd", lambda r: r["summary"].get("fresh_ratio"), ".2f"),
    ("MiB", lambda r: r.get("memory_mib", {}).get("end"), ".0f"),
    ("error", lambda r: r["summary"].get("error_ratio"), ".2f"),
    ("worst", lambda r: r["summary"].get("worst_error_ratio"), ".2f"),
)  # fmt: skip


def table(peers: Mapping[str, Record]) -> str:
    """One line a system.

    Times are in ms where nothing else is said, percentiles those of all warm calls. The host's are
    those of a call by itself, "cpu hot" of calls that queue up. "error" is over eager PyTorch's,
    "worst" the same at the worst request. The last column is the time over ours, geometric mean and
    range over the requests, of medians.
    """
    lines = [f"{'':<17}" + "".join(f"{name:>10}" for name, _, _ in _COLUMNS) + "   time / ours"]
    for name, record in peers.items():
        if name in (FLOOR, CHECKS, LARGEST):
            continue
        if trouble := record.get("error") or record.get("not_applicable"):
            lines.append(f"{name:<17}  {trouble}")
        if "summary" not in record:
            continue
        cells = (_cell(value(record), form) for _, value, form in _COLUMNS)
        lines.append(f"{name:<17}" + "".join(f"{cell:>10}" for cell in cells) + _ratio(peers, name))
    return "\n".join([*lines, *_floor_lines(peers), *_check_lines(peers)])


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ratio(peers: Mapping[str, Record], name: str) -> str:
    if OURS not in peers or name == OURS or not (ratios := ratios_to_ours(peers, name)):
        return ""
    return f"   {geomean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _floor_lines(peers: Mapping[str, Record]) -> list[str]:
    if (record := peers.get(FLOOR)) is None:
        return []
    if trouble := record.get("error") or record.get("not_applicable"):
        return [f"{FLOOR:<17}  {trouble}"]
    lines = []
    for graph, regime in itertools.product(("exact", "captured"), ("queued", "alone")):
        if ratios := floor_ratios(record, regime, graph):
            lines.append(
                f"ours / {graph} graph, {regime}: {geomean(ratios):.3f}, worst {max(ratios):.3f}, "
                f"{sum(ratio > 1.1 for ratio in ratios)} of {len(ratios)} above 1.10"
            )
    if different := [row["request"] for row in record["floor"]["rows"] if not row["equal"]]:
        lines.append(f"results of the graphs DIFFER at {different[:5]}")
    return lines


def _check_lines(peers: Mapping[str, Record]) -> list[str]:
    record = peers.get(CHECKS, {})
    if trouble := record.get("error") or record.get("not_applicable"):
        return [f"{CHECKS:<17}  {trouble}"]
    if not (checks := record.get("checks")):
        return []
    return [
        f"error / eager's over {len(checks['rows'])} shapes: {checks['overall_ratio']:.3f}, at the "
        f"worst {checks['worst_ratio']:.3f}; {checks['mismatches']} of "
        f"{checks['alternating_calls']} alternating calls differ"
    ]


# ---------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------


def dumps(value: Any, indent: int = 0) -> str:
    """JSON that people can read: lists of plain values stay on one line."""
    inner, outer = " " * (indent + 1), " " * indent
    if isinstance(value, dict) and value:
        items = (f"{inner}{json.dumps(k)}: {dumps(v, indent + 1)}" for k, v in value.items())
        return "{\n" + ",\n".join(items) + f"\n{outer}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        if all(_is_flat(item) for item in value):
            rows = (f"{inner}{json.dumps(item)}" for item in value)
        else:
            rows = (f"{inner}{dumps(item, indent + 1)}" for item in value)
        return "[\n" + ",\n".join(rows) + f"\n{outer}]"
    return json.dumps(value)


def _is_flat(value: Any) -> bool:
    return isinstance(value, dict) and not any(isinstance(v, dict) for v in value.values())


COLORS = {
    OURS: "#0b7285",
    EAGER: "#868e96",
    "compile-dynamic": "#e8590c",
    "compile-auto": "#f59f00",
    "compile-marked": "#c2255c",
    "buckets": "#5c940d",
    "buckets-compiled": "#7048e8",
}


def plotted(peers: Mapping[str, Record]) -> dict[str, Record]:
    """The systems that served the whole trace, one request after the other."""
    return {name: each for name, each in peers.items() if each.get("cold") and name != LARGEST}


def plot(peers: Mapping[str, Record], title: str, path: Path) -> None:
    """Writes a PNG: latency of each request in order of arrival, and below it time over ours."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = plotted(peers)
    figure, (arrival, ratio) = plt.subplots(2, 1, figsize=(10, 8), layout="constrained")
    for name, record in shown.items():
        walls = [us / 1e3 for us in record["cold"]["wall_us"]]
        color = COLORS.get(name)
        arrival.plot(walls, ".-", linewidth=0.6, markersize=4, color=color, label=name)
        stalls = [(i, wall) for i, wall in enumerate(walls) if wall > STALL_MS]
        if stalls:
            arrival.plot(
                *zip(*stalls, strict=True), "o", markersize=7, color=color, fillstyle="none"
            )
        ratios = ratios_to_ours(peers, name) if OURS in peers and name != OURS else []
        if ratios:
            ratio.plot(sorted(ratios), color=color, label=f"{name}: {geomean(ratios):.2f}")
    arrival.set(yscale="log", xlabel="request, in order of arrival", ylabel="latency, ms")
    arrival.set_title(f"{title}\ncold; circles: over {STALL_MS:.0f} ms", fontsize=11)
    arrival.legend(frameon=False, ncols=4, fontsize=9)
    ratio.axhline(1, color="0.4", linewidth=1)
    ratio.set(yscale="log", xlabel="requests, sorted", ylabel="time / shapejit's, warm")
    if len(ratio.lines) > 1:
        ratio.legend(frameon=False, title="geometric mean", fontsize=9)
    for axes in (arrival, ratio):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
