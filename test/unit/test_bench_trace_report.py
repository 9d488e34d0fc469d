# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The benchmark of traces: figures, tables and goals of what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import trace_merge  # noqa: E402
from trace_criteria import Criterion, criteria, criteria_text  # noqa: E402
from trace_models import WORKLOADS  # noqa: E402
from trace_place import Place  # noqa: E402
from trace_profile import Span, shares, split  # noqa: E402
from trace_report import (  # noqa: E402
    dumps,
    floor_ratios,
    percentile,
    plot,
    plotted,
    ratios_to_ours,
    summarize,
    table,
)
from trace_results import combined  # noqa: E402

from unit.trace_records import record_of  # noqa: E402

CPU = Place("cpu")
TRACED = [name for name in WORKLOADS if name != "tiny"]


def test_figures_of_a_record() -> None:
    record = record_of(
        [250.0, 2.0, 12.0, 1.0], [1.0, 2.0, 3.0, 1.0],
        fresh={
            "first_us": [2.0, 3.0, 9.0], "second_us": [2.0, 2.0, 3.0], "steady_us": [2.0, 2.0, 2.0]
        },
        positions=100,
        errors=[
            {"ratio": 0.75, "error": 3.0, "eager": 4.0},
            {"ratio": 4 / 3, "error": 4.0, "eager": 3.0},
        ],
        details={"first_requests_of_regions": [1, 2]},
    )  # fmt: skip
    summary = record["summary"]
    assert (summary["first_ms"], summary["worst_cold_ms"]) == (250, 250)
    assert (summary["stalls_over_100ms"], summary["calls_over_10ms"]) == (1, 2)
    assert (summary["p50_ms"], summary["p99_ms"], summary["worst_warm_ms"]) == (2.0, 3.0, 3.0)
    assert summary["cold_beyond_warm_s"] == pytest.approx(0.258)
    assert (summary["fresh_ratio"], summary["fresh_worst_ms"]) == (1.5, 0.009)
    assert (summary["fresh_steady_worst"], summary["fresh_over_1_5"]) == (4.5, 1)
    assert (summary["worst_call_ms"], summary["calls_over_20ms"]) == (250, 1)
    assert summary["ns_a_position"] == 7e6 / 100
    assert summary["worst_stall_ms"] == 249
    assert (summary["regions_seen"], summary["worst_first_in_region_ms"]) == (2, 12.0)
    assert (summary["worst_error_ratio"], summary["error_ratio"]) == (1.3333, 1.0)
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 3.0
    empty: dict[str, Any] = {"error": "no"}
    summarize(empty)
    assert "summary" not in empty


def floor_row(request: list[int], equal: bool, **queued_us: float) -> dict[str, Any]:
    alone = {f"{name}_alone_us": us + 20 for name, us in queued_us.items()}
    queued = {f"{name}_queued_us": us for name, us in queued_us.items()}
    return {"request": request, "equal": equal, **alone, **queued}


FLOOR = {
    "floor": {
        "shapes": 2,
        "rows": [
            floor_row([1, 1], True, program=105.0, captured=105.0, exact=100.0),
            floor_row([2, 1], False, program=240.0, captured=300.0, exact=200.0),
        ],
    }
}


def test_tables_and_criteria(tmp_path: Path) -> None:
    systems = {
        "eager": record_of([400.0, 2.0, 2.0], [1.0, 2.0, 4.0]),
        "shapejit": record_of(
            [0.4, 0.5, 0.9],
            [0.25, 0.5, 1.0],
            fresh={"first_us": [2], "second_us": [1]},
            queued_cpu_us=41.0,
        ),
        "floor": FLOOR,
        "buckets": {"not_applicable": "no mask"},
    }
    assert ratios_to_ours(systems, "eager") == [4, 4, 4]
    assert floor_ratios(FLOOR, "queued") == [1.05, 1.2]
    text = table(systems)
    assert "4.00 (4.00 to 4.00)" in text
    assert "no mask" in text
    assert "ours / exact graph, queued: 1.122, worst 1.200, 1 of 2 above 1.10" in text
    assert "ours / captured graph, queued: 0.894, worst 1.000, 0 of 2 above 1.10" in text
    assert "results of the graphs DIFFER at [[2, 1]]" in text
    held = {each.what: each.holds for each in criteria("minilm", {"minilm": systems})}
    assert held["warm p50, ms"] is False
    assert held["ours / exact-shape graph, worst"] is False
    assert held["shapes at which graphs give other results"] is False
    assert held["calls over 10 ms"] is True
    assert held["CPU time a call, us, one at a time"] is True
    assert held["CPU time a call, us, queued"] is False
    assert held["new shape / second time, median"] is False
    assert held["error / eager's, 100 random shapes"] is None
    assert held["best peer's p50 / ours (eager)"] is True
    plot(systems, "title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("shapes", "calls", "answers"),
    [(100, 2000, (True, True)), (99, 2000, (None, True)), (100, 1975, (True, None))],
)
def test_checks_that_were_cut_short_answer_nothing(
    shapes: int, calls: int, answers: tuple[bool | None, bool | None]
) -> None:
    checks = {
        "rows": [{"ratio": 1.0}] * shapes, "overall_ratio": 0.9, "worst_ratio": 1.0,
        "alternating_calls": calls, "mismatches": 0,
    }  # fmt: skip
    ours = {"shapejit": record_of([1.0], [1.0])}

    def held_of(more: dict[str, Any]) -> dict[str, bool | None]:
        found = criteria("minilm", {"minilm": {**ours, **more}})
        return {each.what: each.holds for each in found}

    held = held_of({"checks": {"checks": checks}})
    names = ("error / eager's, 100 random shapes", "mismatches in 2000 calls")
    assert tuple(held[name] for name in names) == answers
    cut = {"floor": {**FLOOR["floor"], "shapes": 3}}
    held = held_of({"floor": cut})
    assert held["ours / exact-shape graph, worst"] is None
    assert held["shapes at which graphs give other results"] is None


def test_goals_of_images() -> None:
    def fresh(worst: float, sizes: int = 100) -> dict[str, list[float]]:
        return {"first_us": [worst] + [1.0] * (sizes - 1), "second_us": [1.0] * sizes,
                "steady_us": [1.0] * sizes}  # fmt: skip

    def ours(build_s: float, worst: float, positions: int, **more: Any) -> dict[str, Any]:
        built = {"build": {"compile_s": build_s}, "positions": positions}
        cold, warm = [2.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 3.5]
        return record_of(cold, warm, fresh=fresh(worst), **built, **more)

    systems = {
        "resnet": {"shapejit": ours(24, 1.4, 200), "eager": record_of([9.0], [4.0])},
        "resnet_odd": {"shapejit": ours(26, 1.6, 180)},
        "unet": {"shapejit": record_of([1.0], [1.0], fresh=fresh(1.0, 99))},
        "video": {
            "shapejit": record_of([30.0, 40.0], [25.0, 25.0], memory_mib={"most": 140.0}),
            "largest": record_of([1.0], [1.0], memory_mib={"most": 100.0}),
        },
    }

    def held(workload: str) -> dict[str, bool | None]:
        return {each.what: each.holds for each in criteria(workload, systems)}

    resnet, odd, unet, video = map(held, systems)
    assert resnet["warm p50, ms"] is True
    assert resnet["warm p99, ms"] is False
    assert resnet["compile with empty caches, s"] is True
    assert resnet["first call / steady time, 100 new sizes: worst"] is True
    assert resnet["worst call after it, ms"] is True
    assert odd["time a pixel / that of resnet"] is True  # 1.11
    assert odd["compile with empty caches, s"] is False
    assert odd["new sizes above 1.5"] is False
    assert unet["first call / steady time, 100 new sizes: worst"] is None  # of 99
    assert video["longest stall beyond a size's median, ms"] is True  # 15
    assert video["memory / that of the largest size alone"] is False  # 1.4
    assert video["worst call after it, ms"] is None  # nothing to hold
    lines = criteria_text("resnet", systems).splitlines()
    assert any("best peer's p50 / ours (eager)" in line and "4.00" in line for line in lines)
    assert criteria("tiny", {**systems, "tiny": systems["unet"]}) == []
    assert criteria("resnet", {}) == []


def test_goals_of_texts() -> None:
    def built(seconds: float) -> dict[str, Any]:
        return {"compile_s": seconds, "stages_s": {"export": 3.0, "convert": 0.1}}

    ours = record_of(
        [1.0, 9.0], [0.9, 3.0], build=built(22.5), memory_mib={"most": 700.0},
        details={"first_requests_of_regions": [0, 1]},
    )  # fmt: skip
    systems = {
        "bert": {
            "shapejit": ours,
            "disk": {"build": built(4.5)},
            "eager": record_of([9.0, 9.0], [2.7, 2.7]),
        },
        "llama": {"shapejit": ours, "eager": record_of([9.0, 9.0], [2.7, 2.7])},
    }
    bert, llama = (
        {each.what: each.holds for each in criteria(name, systems)} for name in ("bert", "llama")
    )
    assert bert["compile of the exported program, s"] is True  # 19.5
    assert bert["the same from disk, in a new process, s"] is True  # 1.5
    assert bert["memory, MiB"] is False
    assert bert["first call in a region beyond its warm time, ms"] is False  # 6
    assert bert["worst call after compile, ms"] is True
    assert llama["memory, MiB"] is True
    assert llama["best peer's p50 / ours (eager)"] is True
    assert llama["best peer's p99 / ours (eager)"] is False
    assert "the same from disk, in a new process, s" not in llama
    ours["build"]["compile_s"] = 24.0
    del systems["bert"]["disk"]
    bert = {each.what: each.holds for each in criteria("bert", systems)}
    assert bert["compile of the exported program, s"] is False
    assert bert["the same from disk, in a new process, s"] is None


def run_of(workload: str, requests: int, commit: str, **systems: Any) -> dict[str, Any]:
    setting = {"workload": workload, "dtype": "bf16", "requests": requests, "weights": "random"}
    environment = {"device": "GPU", "commit": commit}
    return {"environment": environment, "setting": setting, "systems": systems}


def test_results_of_calls_are_joined_and_keep_their_commits() -> None:
    done, wrong = {"build_s": 1}, {"error": "wrong"}
    first = [
        run_of("bert", 60, "a", eager=done, shapejit=done, buckets=done),
        run_of("bert", 60, "b", eager=done, shapejit=done),
        run_of("bert", 120, "b", shapejit=done),
    ]
    later = [
        run_of("bert", 60, "c", eager=done, shapejit=done, floor=wrong),
        run_of("video", 60, "c", eager=done, shapejit=wrong),
    ]
    found = combined([{"runs": first}, {"runs": later}])
    described = [(r["setting"]["requests"], r["environment"]["commit"], list(r["systems"]))
                 for r in found["runs"]]  # fmt: skip
    assert described == [
        (60, "a", ["eager", "shapejit", "buckets"]),
        (120, "b", ["shapejit"]),
        (60, "c", ["eager", "shapejit"]),
    ]
    assert combined([found, found]) == found


def test_goals_compare_with_earlier_calls() -> None:
    """Of the same number of requests: those of another trace are no measure."""
    even = run_of("resnet", 60, "a", shapejit=record_of([1.0], [1.0], positions=100))
    odd = run_of("resnet_odd", 60, "b", shapejit=record_of([1.0], [1.0], positions=90))
    other = run_of("resnet", 120, "c", shapejit=record_of([1.0], [5.0], positions=100))
    text = trace_merge.show({"runs": [even, odd, other]}, odd["setting"])
    assert text.startswith("resnet_odd, bf16, GPU, 60 requests, b\n")
    assert any(line.split()[-2:] == ["1.111", "yes"] and "a pixel" in line
               for line in text.splitlines())  # fmt: skip


def test_a_file_of_results_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    output, later = tmp_path / "traces-gpu.json", tmp_path / "later.json"
    ours, eager = record_of([1.0, 2.0], [1.0, 2.0]), record_of([9.0, 9.0], [4.0, 4.0])
    output.write_text(json.dumps({"runs": [run_of("bert", 2, "a", shapejit=ours)]}))
    later.write_text(json.dumps({"runs": [run_of("unet", 2, "b", shapejit=ours, eager=eager)]}))
    monkeypatch.setattr(sys, "argv", ["trace_merge.py", str(output), str(later)])
    trace_merge.main()
    runs = json.loads(output.read_text())["runs"]
    assert [(r["setting"]["workload"], r["environment"]["commit"]) for r in runs] == [
        ("bert", "a"), ("unet", "b")
    ]  # fmt: skip
    assert [path.name for path in tmp_path.glob("*.png")] == ["traces-unet-gpu.png"]
    assert "best peer's p50 / ours (eager)" in capsys.readouterr().out


def test_plots_show_who_served_the_whole_trace() -> None:
    served = record_of([1.0, 2.0], [1.0, 2.0])
    systems = {"shapejit": served, "largest": served, "floor": FLOOR, "buckets": {"error": "no"}}
    assert plotted(systems) == {"shapejit": served}


def test_a_criterion_says_what_it_holds() -> None:
    lines = {
        Criterion("ratio", 2, 1.5, ".2f", least=True): ["ratio", ">=", "2", "1.50", "NO"],
        Criterion("ms", 1.2, None): ["ms", "<=", "1.2", "-", "-"],
        Criterion("MiB", None, 7.0, ".0f"): ["MiB", "7", "-"],
    }
    assert all(str(each).split() == words for each, words in lines.items())


def test_percentiles_are_those_of_all_warm_calls() -> None:
    """One slow pass in three at one request of two: the medians do not show it."""
    record = record_of([1.0, 1.0], [1.0, 1.0])
    record["warm_walls_us"] = [1e3, 1e3, 1e3, 1e3, 1e3, 9e3]
    summarize(record)
    assert (record["summary"]["p50_ms"], record["summary"]["p99_ms"]) == (1.0, 9.0)


def test_results_are_json_with_short_lists() -> None:
    value = {
        "a": {"b": [1, 2.5, 3], "c": {}}, "rows": [{"x": [1, 2], "y": "z"}], "deep": [{"x": {}}],
    }  # fmt: skip
    text = dumps(value)
    assert json.loads(text) == value
    assert '"b": [1, 2.5, 3]' in text
    assert '{"x": [1, 2], "y": "z"}' in text


def test_shares_of_overlapping_kernels_add_up_to_the_call() -> None:
    spans = [Span("a", 10.0, 14.0), Span("b", 12.0, 19.0), Span("a", 20.0, 21.0)]
    total, found = shares(spans)
    assert total == 11.0
    assert [(s.name, s.count, s.share, s.duration) for s in found] == [
        ("a", 2, 6.0, 5.0),  # 4, and 2 that hold the gap before it
        ("b", 1, 5.0, 7.0),
    ]
    later = [Span(span.name, span.start + 100, span.end + 100) for span in spans]
    assert split([*later, *spans], 2) == [spans, later]
    with pytest.raises(ValueError, match="2 calls ran 3 kernels"):
        split(spans, 2)
