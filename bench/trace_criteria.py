# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What shapejit has to reach with each workload on one H200, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from peers import CHECKS, DISK, FLOOR, LARGEST, OURS
from trace_report import NEW_SIZE_RATIO, STUTTER_MS, Record, whole_floor

#: Fewer, where time was short, answer nothing.
LEAST_SHAPES, LEAST_CALLS, LEAST_NEW_SIZES = 100, 2000, 100

#: Of a workload, its systems by name.
Systems = Mapping[str, Record]


@dataclass(frozen=True)
class Criterion:
    """A figure with a bound.

    Attributes:
        what: the figure in words, with its unit.
        limit: the largest value that holds, or the least one if `least`; None if there is none.
        value: what was measured; None if it was not.
    """

    what: str
    limit: float | None
    value: float | None
    form: str = ".3f"
    least: bool = False

    @property
    def holds(self) -> bool | None:
        """None: not measured, or nothing to hold."""
        if self.value is None or self.limit is None:
            return None
        return self.value >= self.limit if self.least else self.value <= self.limit

    def __str__(self) -> str:
        word = {True: "yes", False: "NO", None: "-"}[self.holds]
        bound = "" if self.limit is None else f"{'>=' if self.least else '<='} {self.limit:g}"
        value = "-" if self.value is None else format(self.value, self.form)
        return f"  {self.what:<48}{bound:>10}{value:>12}   {word}"


def criteria(workload: str, all_systems: Mapping[str, Systems]) -> list[Criterion]:
    """The criteria of a workload; none of one that has no goals.

    Args:
        all_systems: the systems of each workload that was measured.
    """
    if workload not in _GOALS or OURS not in all_systems.get(workload, {}):
        return []
    return _GOALS[workload](all_systems)


def criteria_text(workload: str, all_systems: Mapping[str, Systems]) -> str:
    """A line for each criterion."""
    return "\n".join(map(str, criteria(workload, all_systems)))


def _summary(systems: Systems, name: str = OURS) -> Record:
    found: Record = systems.get(name, {}).get("summary", {})
    return found


# ---------------------------------------------------------------------------
# Groups of criteria
# ---------------------------------------------------------------------------


def _accuracy(systems: Systems) -> list[Criterion]:
    checks = systems.get(CHECKS, {}).get("checks", {})
    enough_shapes = len(checks.get("rows", ())) >= LEAST_SHAPES
    enough_calls = checks.get("alternating_calls", 0) >= LEAST_CALLS
    return [
        Criterion("error / eager's, trace", 1.2, _summary(systems).get("error_ratio")),
        Criterion(
            f"error / eager's, {LEAST_SHAPES} random shapes",
            1.2,
            checks["overall_ratio"] if enough_shapes else None,
        ),
        Criterion(
            f"mismatches in {LEAST_CALLS} calls",
            0,
            checks["mismatches"] if enough_calls else None,
            "d",
        ),
    ]


def _against_peers(
    systems: Systems, least: float | None = None, quantile: str = "p50"
) -> list[Criterion]:
    figure = f"{quantile}_ms"
    ours = _summary(systems).get(figure)
    others = {
        name: record["summary"][figure]
        for name, record in systems.items()
        if name not in (OURS, FLOOR, LARGEST) and figure in record.get("summary", {})
    }
    best = min(others, key=lambda name: others[name], default=None)
    ratio = others[best] / ours if best and ours else None
    return [Criterion(f"best peer's {quantile} / ours ({best})", least, ratio, ".2f", least=True)]


def _waits(
    systems: Systems, compile_s: float | None = None, call_ms: float | None = None
) -> list[Criterion]:
    """The compile, and the call that took longest after it."""
    compiled = systems[OURS].get("build", {}).get("compile_s")
    return [
        Criterion("compile with empty caches, s", compile_s, compiled, ".1f"),
        Criterion("worst call after it, ms", call_ms, _worst_call(systems), ".2f"),
    ]


def _compiles(systems: Systems, cold_s: float, disk_s: float) -> list[Criterion]:
    """Compiles of the exported program: with empty caches, and with what they have kept."""
    cold, disk = (_after_export(systems, name) for name in (OURS, DISK))
    return [
        Criterion("compile of the exported program, s", cold_s, cold, ".1f"),
        Criterion("the same from disk, in a new process, s", disk_s, disk, ".2f"),
    ]


def _after_export(systems: Systems, name: str) -> float | None:
    build = systems.get(name, {}).get("build")
    if build is None:
        return None
    seconds: float = build["compile_s"] - build["stages_s"]["export"]
    return seconds


def _new_sizes(systems: Systems) -> list[Criterion]:
    summary = _summary(systems)
    if summary.get("fresh_sizes", 0) < LEAST_NEW_SIZES:
        summary = {}
    first = f"first call / steady time, {LEAST_NEW_SIZES} new sizes"
    return [
        Criterion(f"{first}: worst", NEW_SIZE_RATIO, summary.get("fresh_steady_worst"), ".2f"),
        Criterion(f"{first}: p90", None, summary.get("fresh_steady_p90"), ".2f"),
        Criterion(f"new sizes above {NEW_SIZE_RATIO}", 0, summary.get("fresh_over_1_5"), "d"),
    ]


def _graphs(systems: Systems) -> list[Criterion]:
    floor = whole_floor(systems.get(FLOOR, {}))
    ratios = [row["program_queued_us"] / row["exact_queued_us"] for row in floor]
    different = sum(not row["equal"] for row in floor) if floor else None
    return [
        Criterion("shapes at which graphs give other results", 0, different, "d"),
        Criterion("ours / exact-shape graph, worst", 1.1, max(ratios, default=None)),
    ]


def _memory(systems: Systems) -> list[Criterion]:
    ours, alone = (systems.get(n, {}).get("memory_mib", {}).get("most") for n in (OURS, LARGEST))
    ratio = ours / alone if ours and alone else None
    return [
        Criterion("memory, MiB", None, ours, ".0f"),
        Criterion("memory / that of the largest size alone", 1.3, ratio, ".2f"),
    ]


# ---------------------------------------------------------------------------
# Workloads
# ---------------------------------------------------------------------------


def _minilm(all_systems: Mapping[str, Systems]) -> list[Criterion]:
    systems = all_systems["minilm"]
    summary = _summary(systems)
    return [
        *_accuracy(systems),
        Criterion("warm p50, ms", 0.35, summary.get("p50_ms")),
        Criterion("calls over 10 ms", 0, summary.get("calls_over_10ms"), "d"),
        Criterion("first call in a region, ms", 3, summary.get("worst_first_in_region_ms"), ".2f"),
        Criterion("new shape / second time, median", 1.1, summary.get("fresh_ratio")),
        *_graphs(systems),
        Criterion("CPU time a call, us, one at a time", 40, summary.get("cpu_us"), ".1f"),
        Criterion("CPU time a call, us, queued", 40, systems[OURS].get("queued_cpu_us"), ".1f"),
        *_against_peers(systems, 2),
        Criterion("memory, MiB", None, systems[OURS].get("memory_mib", {}).get("end"), ".0f"),
    ]


def _bert(all_systems: Mapping[str, Systems]) -> list[Criterion]:
    systems = all_systems["bert"]
    return [
        *_accuracy(systems),
        *_text(systems, p50_ms=1.0, p99_ms=4.0, mib=600),
        Criterion("worst call after compile, ms", STUTTER_MS, _worst_call(systems), ".2f"),
        *_compiles(systems, 20, 2),
        *_against_peers(systems),
        *_against_peers(systems, quantile="p99"),
    ]


def _llama(all_systems: Mapping[str, Systems]) -> list[Criterion]:
    systems = all_systems["llama"]
    return [
        *_accuracy(systems),
        *_text(systems, p50_ms=1.9, p99_ms=16.0, mib=3300),
        *_against_peers(systems, 1),
        *_against_peers(systems, 1, "p99"),
    ]


def _text(systems: Systems, p50_ms: float, p99_ms: float, mib: float) -> list[Criterion]:
    summary = _summary(systems)
    beyond = summary.get("worst_beyond_in_region_ms")
    return [
        Criterion("warm p50, ms", p50_ms, summary.get("p50_ms")),
        Criterion("warm p99, ms", p99_ms, summary.get("p99_ms")),
        Criterion("new shape / second time, median", 1.1, summary.get("fresh_ratio")),
        Criterion("first call in a region beyond its warm time, ms", 3, beyond, ".2f"),
        *_graphs(systems),
        Criterion("memory, MiB", mib, systems[OURS].get("memory_mib", {}).get("most"), ".0f"),
    ]


def _worst_call(systems: Systems) -> float | None:
    worst: float | None = _summary(systems).get("worst_call_ms")
    return worst


def _resnet(all_systems: Mapping[str, Systems]) -> list[Criterion]:
    systems = all_systems["resnet"]
    return [
        *_accuracy(systems),
        Criterion("warm p50, ms", 1.2, _summary(systems).get("p50_ms")),
        Criterion("warm p99, ms", 2.5, _summary(systems).get("p99_ms")),
        *_waits(systems, 25, STUTTER_MS),
        *_new_sizes(systems),
        *_graphs(systems),
        *_against_peers(systems),
    ]


def _resnet_odd(all_systems: Mapping[str, Systems]) -> list[Criterion]:
    systems = all_systems["resnet_odd"]
    odd, even = (
        _summary(each).get("ns_a_position") for each in (systems, all_systems.get("resnet", {}))
    )
    return [
        *_accuracy(systems),
        Criterion("time a pixel / that of resnet", 1.15, odd / even if odd and even else None),
        *_waits(systems, 25, STUTTER_MS),
        *_new_sizes(systems),
        *_graphs(systems),
        *_against_peers(systems),
    ]


def _unet(all_systems: Mapping[str, Systems]) -> list[Criterion]:
    systems = all_systems["unet"]
    return [
        *_accuracy(systems),
        *_waits(systems),
        *_new_sizes(systems),
        *_graphs(systems),
        *_against_peers(systems),
    ]


def _video(all_systems: Mapping[str, Systems]) -> list[Criterion]:
    systems = all_systems["video"]
    stall = _summary(systems).get("worst_stall_ms")
    return [
        *_accuracy(systems),
        *_waits(systems),
        Criterion("longest stall beyond a size's median, ms", STUTTER_MS, stall),
        *_memory(systems),
        *_against_peers(systems),
    ]


_GOALS: dict[str, Callable[[Mapping[str, Systems]], list[Criterion]]] = {
    "minilm": _minilm,
    "bert": _bert,
    "llama": _llama,
    "resnet": _resnet,
    "resnet_odd": _resnet_odd,
    "unet": _unet,
    "video": _video,
}
