# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The benchmark of traces: its workloads and systems are right, and its records."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shapejit import importer, pipeline
from shapejit.gpu.program_code import GpuCode
from shapejit.options import CompileOptions
from shapejit.progress import Progress

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import pack_weights  # noqa: E402
import peers  # noqa: E402
import trace_checks  # noqa: E402
import trace_exact  # noqa: E402
import trace_worker  # noqa: E402
import traces  # noqa: E402
from peers import NotApplicableError, Setting, System  # noqa: E402
from peers.buckets import Buckets  # noqa: E402
from peers.compiled import Marked  # noqa: E402
from peers.floor import measure_floor, parameters_by_value  # noqa: E402
from trace_exact import Exact, WrongResultError, checked_requests, relative_error  # noqa: E402
from trace_models import WORKLOADS, LlamaBlock, RMSNorm  # noqa: E402
from trace_place import Place, Times  # noqa: E402
from trace_workload import (  # noqa: E402
    TRACES,
    Axis,
    Request,
    Workload,
    dynamic_shapes,
    example,
)

from unit.trace_records import record_of  # noqa: E402

CPU = Place("cpu")
TRACED = [name for name in WORKLOADS if name != "tiny"]


def setting_of(workload: Workload, dtype: torch.dtype = torch.float32) -> Setting:
    return Setting(workload, workload.requests, workload.model("cpu", dtype), CPU, dtype)


@pytest.fixture(scope="module")
def tiny() -> Setting:
    return setting_of(WORKLOADS["tiny"]())


# Workloads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACED)
def test_a_trace_stays_in_the_ranges_that_systems_are_told(name: str) -> None:
    workload = WORKLOADS[name]()
    assert len(workload.requests) == 120
    for request in [*workload.requests, *workload.new_requests(50, seed=3), example(workload)]:
        for size, axis in zip(request, workload.axes, strict=True):
            assert axis.low <= size <= axis.high
            assert size % axis.divisor == 0
    assert not set(workload.new_requests(50, seed=3)) & set(workload.requests)
    sizes = example(workload)
    assert len(set(sizes)) == len(sizes)
    assert min(sizes) > 1


def test_the_data_states_its_licence() -> None:
    assert "Apache License" in json.loads(TRACES.read_text())["about"]


@pytest.mark.parametrize("name", ["minilm", "tiny"])
def test_inputs_are_the_same_in_every_process_and_padded(name: str) -> None:
    workload = WORKLOADS[name]()
    ids, mask = workload.inputs((4, 50), torch.bfloat16)
    again = workload.inputs((4, 50), torch.float32)
    assert torch.equal(ids, again[0])
    assert torch.equal(mask, again[1])
    assert mask.sum(1)[0] == 50
    assert mask.sum(1).unique().numel() > 1
    assert bool((mask.diff(dim=1) <= 0).all())  # tokens first


def test_images_are_channels_last_and_in_the_type() -> None:
    (image,) = WORKLOADS["resnet"]().inputs((2, 160, 192), torch.bfloat16)
    assert image.shape == (2, 3, 160, 192)
    assert image.dtype == torch.bfloat16
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_large_images_repeat_their_values_and_small_ones_do_not() -> None:
    (frame,) = WORKLOADS["video"]().inputs((2160, 3840), torch.float32)
    (again,) = WORKLOADS["video"]().inputs((2160, 3840), torch.float32)
    assert torch.equal(frame, again)
    flat = frame.flatten()
    assert torch.equal(flat[: 2**22], flat[2**22 : 2**23])
    (small,) = WORKLOADS["unet"]().inputs((1, 240, 426), torch.float32)
    assert small.unique().numel() > 0.95 * small.numel()
    assert abs(float(small.mean())) < 0.05
    assert abs(float(small.std()) - 1) < 0.05


def test_a_video_grows_from_its_smallest_size_to_its_largest() -> None:
    frames = WORKLOADS["video"]().requests
    sizes = list(dict.fromkeys(frames))
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == ((240, 426), (2160, 3840))
    switches = [i for i in range(1, len(frames)) if frames[i] != frames[i - 1]]
    assert max(b - a for a, b in itertools.pairwise([0, *switches, len(frames)])) <= 6
    assert len(switches) >= 24


def test_dims_name_the_axes_of_every_input() -> None:
    ids, mask = dynamic_shapes(WORKLOADS["minilm"]())
    assert ids == mask
    assert [(ids[d].__name__, ids[d].min, ids[d].max) for d in (0, 1)] == [
        ("batch", 1, 32),
        ("tokens", 1, 256),
    ]
    (image,) = dynamic_shapes(WORKLOADS["resnet"]())
    assert (image[2].min, image[2].max) == (160, 640)


def test_weights_are_drawn_alike_in_every_process() -> None:
    workload = WORKLOADS["tiny"]()
    one, other = (workload.model("cpu", torch.float32).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_llama_block_is_that_of_its_definition() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    norm = RMSNorm(32).double()
    torch.testing.assert_close(norm(x), functional.rms_norm(x, (32,), norm.weight, eps=1e-6))
    block = LlamaBlock(32, 4, 48).double()
    changed = x.clone()
    changed[:, 3:] = 7.0
    torch.testing.assert_close(block(x)[:, :3], block(changed)[:, :3])  # causal
    assert not torch.allclose(block(x)[:, 3:], block(changed)[:, 3:])


def test_inputs_are_drawn_once_and_new_every_time() -> None:
    drawn: list[Request] = []

    def draw(request: Request, dtype: torch.dtype) -> tuple[Tensor, ...]:
        drawn.append(request)
        return (torch.ones(request, dtype=dtype),)

    setting = small(Tokenwise, draw, "mask")
    (first,), (second,) = setting.inputs((2, 3)), setting.inputs((2, 3))
    first.zero_()
    assert bool((second == 1).all())
    assert bool((setting.inputs((2, 3))[0] == 1).all())
    assert drawn == [(2, 3)]


# Systems ------------------------------------------------------------------------------------------


def test_buckets_give_what_the_model_gives(tiny: Setting) -> None:
    buckets = Buckets(tiny)
    assert buckets.build()["lengths"] == [16, 32, 64]
    # The long one first: what it leaves in its bucket must not matter to the short one.
    for request in [(2, 16), (2, 3), (2, 13), (1, 64), (1, 33), (4, 1)]:
        inputs = tiny.inputs(request)
        with torch.inference_mode():
            result = buckets(*inputs)
            torch.testing.assert_close(result, tiny.model(*inputs), atol=1e-5, rtol=1e-4)
    assert len({id(result) for result in (buckets(*inputs), buckets(*inputs))}) == 2


class Tokenwise(nn.Module):
    """A model without a mask of its own: takes one besides, as BERT does."""

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = torch.ones_like(ids) if mask is None else mask
        total = (ids * weights).sum(1, keepdim=True)
        return torch.stack((ids + total, ids - total), dim=-1).double()


def small(model: Callable[[], nn.Module], draw: Callable[..., Any], padding: str | None) -> Setting:
    axes = (Axis("batch", 1, 2), Axis("tokens", 1, 40))
    requests: tuple[Request, ...] = ((1, 40), (2, 20), (1, 3))
    return setting_of(
        Workload("small", axes, model, draw, ({0: 0, 1: 1},), padding, lambda _: (1, 1), requests)
    )


def draw_ids(request: Request, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.arange(1, 1 + math.prod(request)).reshape(request),)


def test_buckets_make_a_mask_and_cut_padded_rows() -> None:
    setting = small(Tokenwise, draw_ids, "mask")
    buckets = Buckets(setting)
    buckets.build()
    for request in ((2, 40), (2, 33), (1, 3)):
        inputs = setting.inputs(request)
        assert torch.equal(buckets(*inputs), setting.model(*inputs))


def test_buckets_of_a_causal_model_need_no_mask() -> None:
    def draw(request: Request, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return (torch.randn(*request, 32, generator=torch.Generator().manual_seed(request[1])),)

    setting = small(lambda: LlamaBlock(32, 4, 48), draw, "causal")
    buckets = Buckets(setting)
    with torch.inference_mode():
        buckets.build()
        for request in ((2, 40), (2, 33), (1, 3)):
            inputs = setting.inputs(request)
            expected = setting.model(*inputs)
            torch.testing.assert_close(buckets(*inputs), expected, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_padded_has_no_buckets() -> None:
    with pytest.raises(NotApplicableError, match="padding changes the result"):
        Buckets(small(Tokenwise, draw_ids, None))


def test_marked_dims_are_compiled_ahead_once_for_each_size_of_one(tiny: Setting) -> None:
    assert Marked(tiny)._examples() == [(2, 13), (1, 13)]
    unit = dataclasses.replace(tiny, requests=[(2, 5), (2, 9), (3, 1)])
    assert Marked(unit)._examples() == [(2, 5), (2, 1)]


def test_the_floor_has_the_programs_kernels_with_parameters_by_value() -> None:
    setting = setting_of(WORKLOADS["tiny"](), torch.bfloat16)
    workload = setting.workload

    def build() -> GpuCode:
        inputs, shapes = setting.inputs(example(workload)), dynamic_shapes(workload)
        with torch.no_grad(), Progress() as progress:
            imported = importer.import_model(setting.model, inputs, None, dynamic_shapes=shapes)
            code = pipeline.build(imported, CompileOptions(), progress, "cuda:sm_90a:h200").gpu
        assert code is not None
        return code

    with parameters_by_value():
        queued = build()
    program = build()
    assert queued.graph is None
    assert program.graph is not None
    assert [v.schedule for v in queued.variants] == [v.schedule for v in program.variants]
    assert all(variant.entry.interface.programmatic for variant in queued.variants)


def test_there_is_no_floor_on_a_cpu(tiny: Setting) -> None:
    with pytest.raises(NotApplicableError, match="GPU"):
        measure_floor(tiny, math.inf, 0)


# Exact results ------------------------------------------------------------------------------------


def test_checked_requests_go_from_the_smallest_to_the_largest() -> None:
    requests = [(a, b) for a in range(1, 9) for b in range(1, 9)]
    random.Random(0).shuffle(requests)
    checked = checked_requests(requests * 2, 10)
    assert (checked[0], checked[-1]) == ((1, 1), (8, 8))
    assert len(set(checked)) == 10
    assert checked_requests([(2, 1), (1, 1), (2, 1)]) == [(1, 1), (2, 1)]


def test_exact_results_take_little_room_and_time(
    monkeypatch: pytest.MonkeyPatch, tiny: Setting, tmp_path: Path
) -> None:
    assert trace_exact.from_the_ends([(n,) for n in range(1, 6)]) == [(1,), (5,), (2,), (4,), (3,)]
    monkeypatch.setattr(trace_exact, "KEPT", 100)
    large = torch.arange(64.0 * 96).reshape(64, 96)
    kept = trace_exact.sample(large)
    assert 90 <= kept.numel() <= 100
    assert len({int(x) % 96 for x in kept}) > 30  # of all columns, not of every 64th
    assert torch.equal(trace_exact.sample(large[:2, :5]), large[:2, :5].flatten())
    exact = Exact(tmp_path / "exact")
    exact.make(tiny, deadline=0.0)
    ordered = checked_requests(tiny.requests)
    with torch.inference_mode():
        results = {each: tiny.model(*tiny.inputs(each)) for each in ordered}
    found = [each for each in ordered if exact.check(each, results[each])]
    assert found == [ordered[0], ordered[-1]]
    with pytest.raises(WrongResultError):
        exact.check(ordered[-1], results[ordered[-1]].repeat(1, 2))


def test_an_error_is_infinite_where_there_is_nothing_to_compare() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([3.0, 4.5]), exact) == pytest.approx(0.1)
    assert relative_error(torch.tensor([3.0]), exact) == math.inf
    assert relative_error(torch.tensor([3.0, math.nan]), exact) == math.inf
    assert relative_error(torch.ones(0), torch.ones(0)) == 0


def test_results_are_held_to_the_exact_ones(tiny: Setting, tmp_path: Path) -> None:
    exact = Exact(tmp_path / "exact")
    assert not exact.complete
    exact.make(tiny)
    assert exact.complete
    request = checked_requests(tiny.requests)[0]
    with torch.inference_mode():
        result = tiny.model(*tiny.inputs(request))
    found = exact.check(request, result)
    assert found is not None
    assert found["error"] == pytest.approx(found["eager"])
    assert 0 < found["error"] < 1e-5
    assert exact.check((3, 61), result) is None
    with pytest.raises(WrongResultError, match=r"wrong at \(1, 3\)"):
        exact.check(request, result * 1.001)


# The worker ---------------------------------------------------------------------------------------


def task_of(tmp_path: Path, peer: str, **more: Any) -> trace_worker.Task:
    task = trace_worker.Task(
        workload="tiny", peer=peer, device="cpu", dtype="f32", requests=5, passes=2, seconds=60,
        seed=0, exact=str(tmp_path / "exact"), result=str(tmp_path / "result.json"),
    )  # fmt: skip
    return dataclasses.replace(task, **more)


def with_system(monkeypatch: pytest.MonkeyPatch, make: Callable[[Setting], System]) -> None:
    monkeypatch.setitem(peers.PEERS, "fake", make)


class Fake(peers.base.Eager):
    """Eager, with a result that is spoiled at one request or from some call on."""

    spoiled_from = 10**9
    spoiled_at: Request | None = None

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.calls = 0

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.calls += 1
        result = super().__call__(*inputs)
        wrong = self.calls > self.spoiled_from or tuple(inputs[0].shape) == self.spoiled_at
        return result + 0.01 if wrong else result

    def details(self) -> dict[str, Any]:
        return {"calls": self.calls}


def make_exact(tmp_path: Path) -> None:
    """As eager's process leaves them."""
    trace_worker.measure(task_of(tmp_path, "eager", requests=7, passes=1, seconds=0), {})
    assert Exact(tmp_path / "exact").complete


def test_a_system_is_measured_in_all_phases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_exact(tmp_path)
    with_system(monkeypatch, Fake)
    monkeypatch.setattr(trace_worker, "_QUEUED_SECONDS", math.inf)
    record: dict[str, Any] = {}
    trace_worker.measure(task_of(tmp_path, "fake"), record)
    requests = WORKLOADS["tiny"]().requests[:5]
    assert [len(record["cold"][name]) for name in ("wall_us", "call_us", "cpu_us")] == [5, 5, 5]
    assert len(record["warm"]["wall_us"]) == 5
    assert [tuple(e["request"]) for e in record["errors"]] == list(dict.fromkeys(requests))
    assert all(error["ratio"] == pytest.approx(1, abs=0.01) for error in record["errors"])
    fresh = [tuple(request) for request in record["fresh"]["requests"]]
    assert len(set(fresh)) == len(fresh) == trace_worker._FRESH
    assert len(record["fresh"]["steady_us"]) == len(fresh)
    assert not set(fresh) & set(WORKLOADS["tiny"]().requests)
    # Cold, two warm passes, each of four shapes again, five calls at each new size, queues.
    calls = 5 * (1 + 2 + trace_worker._QUEUES) + 4 + 5 * len(fresh)
    assert record["details"]["calls"] == calls
    assert record["positions"] == sum(map(math.prod, requests))
    assert record["queued_us"] > 0
    assert set(record["summary"]) >= {"p50_ms", "p99_ms", "worst_cold_ms", "fresh_ratio", "cpu_us"}
    assert json.loads((tmp_path / "result.json").read_text())["warm"] == record["warm"]


def test_the_memory_of_the_largest_request_is_that_of_it_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_exact(tmp_path)
    monkeypatch.setitem(peers.PEERS, "shapejit", Fake)
    record: dict[str, Any] = {}
    trace_worker.measure(task_of(tmp_path, peers.LARGEST, requests=7), record)
    assert [each["request"] for each in record["errors"]] == [[4, 64]]
    assert record["positions"] == 4 * 64
    assert len(record["cold"]["wall_us"]) == 1
    assert "fresh" not in record
    assert set(record["memory_mib"]) >= {"most", "end"}


def test_the_number_of_new_sizes_is_the_workloads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workload = dataclasses.replace(WORKLOADS["tiny"](), new_sizes=3)
    monkeypatch.setitem(WORKLOADS, "tiny", lambda: workload)
    monkeypatch.setattr(trace_worker, "_FRESH", 2)
    few = {"requests": 1, "passes": 1}
    monkeypatch.setitem(peers.PEERS, "shapejit", Fake)
    counts = []
    for peer in ("shapejit", "eager"):
        record: dict[str, Any] = {}
        trace_worker.measure(task_of(tmp_path, peer, **few), record)
        counts.append(len(record["fresh"]["requests"]))
    assert counts == [3, 2]


@pytest.mark.parametrize(
    "spoiled",
    [{"spoiled_at": (4, 5)}, {"spoiled_from": 12}],
    ids=["at one shape", "after some time"],
)
def test_a_wrong_system_is_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spoiled: dict[str, Any]
) -> None:
    make_exact(tmp_path)
    with_system(monkeypatch, type("Spoiled", (Fake,), spoiled))
    with pytest.raises(WrongResultError, match="wrong at"):
        trace_worker.measure(task_of(tmp_path, "fake", passes=3), {})


def test_medians_are_by_request_and_column() -> None:
    rows = [[Times(3, 1, 5), Times(9, 2, 4), Times(4, 3, 3)], [Times(7, 7, 7)]]
    assert trace_worker.medians(rows) == {
        "wall_us": [4, 7],
        "call_us": [2, 7],
        "cpu_us": [4, 7],
    }


def test_alternating_calls_that_differ_are_counted(
    monkeypatch: pytest.MonkeyPatch, tiny: Setting
) -> None:
    monkeypatch.setattr(trace_checks, "_TRIPLES", 5)
    monkeypatch.setattr(trace_checks, "_ALTERNATIONS", 50)
    monkeypatch.setattr(trace_checks, "_SHAPES", 6)
    with torch.inference_mode():
        monkeypatch.setattr(trace_checks, "ShapeJit", Fake)
        found = trace_checks.check_widely(tiny, math.inf, 0)
        assert (found["alternating_calls"], found["mismatches"]) == (50, 0)
        assert [row["request"] for row in found["rows"][:4]] == [[1, 1], [4, 64], [1, 64], [4, 1]]
        assert found["worst_ratio"] == pytest.approx(1)
        assert found["overall_ratio"] == pytest.approx(1)
        # 5 results against exact ones, 10 first results, and 50 alternating ones.
        spoiled = type("Spoiled", (Fake,), {"spoiled_from": 5 + 10 + 30})
        monkeypatch.setattr(trace_checks, "ShapeJit", spoiled)
        assert trace_checks.check_widely(tiny, math.inf, 0)["mismatches"] == 20


# Runs ---------------------------------------------------------------------------------------------


def arguments(tmp_path: Path, *more: str) -> Any:
    given = ("tiny", "--device", "cpu", "--dtype", "f32", "--scratch", str(tmp_path / "scratch"))
    return traces.parse([*given, "--output", str(tmp_path / "results.json"), *more])


def run_with(options: Any, **systems: Any) -> dict[str, Any]:
    return {"setting": traces.setting(options, "tiny"), "systems": systems, "environment": {}}


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    options = arguments(tmp_path, "--peers", "all")
    done = run_with(
        options, eager={"build_s": 1}, checks={"checks": {}}, buckets={"error": "wrong"},
        **{"compile-auto": {"stopped": "after 9 s"}, "compile-dynamic": {"build_s": 2}},
    )  # fmt: skip
    results = {"runs": [done]}
    anchors = ["eager", "shapejit"]
    assert traces.todo(options, results, "tiny") == (
        anchors, ["disk", "buckets", "compile-marked", "buckets-compiled", "compile-auto"]
    )  # fmt: skip
    again = arguments(tmp_path, "--peers", "checks", "--again")
    assert traces.todo(again, results, "tiny") == (anchors, ["checks"])
    other = arguments(tmp_path, "--peers", "checks", "--requests", "4")
    assert traces.todo(other, results, "tiny") == (anchors, ["checks"])
    asked = arguments(tmp_path, "--peers", "largest,floor")
    assert traces.todo(asked, results, "tiny") == (anchors, ["largest"])
    assert traces.todo(asked, results, "video") == ([*anchors, "largest"], [])


def test_later_runs_replace_earlier_records_unless_they_failed(tmp_path: Path) -> None:
    options = arguments(tmp_path)
    stopped = {"stopped": "after 9 s", "build_s": 3}
    first = run_with(
        options, buckets={"build_s": 1}, eager={"build_s": 1}, checks={"error": "wrong"}
    )
    later = run_with(options, buckets={"error": "wrong"}, eager={"build_s": 2}, checks=stopped)
    last = run_with(options, eager=stopped)
    found = traces.merged({"runs": [first, later, last]}, first["setting"])
    assert found == {"eager": {"build_s": 2}, "checks": stopped, "buckets": {"build_s": 1}}


def test_models_have_peers_of_their_own(tmp_path: Path) -> None:
    options = traces.parse(
        ["video:", "bert", "llama:buckets,compile-dynamic", "--peers", "disk", "--device", "cpu",
         "--scratch", str(tmp_path), "--output", str(tmp_path / "results.json")]
    )  # fmt: skip
    assert options.workloads == ["video", "bert", "llama"]
    todo = {name: traces.todo(options, {"runs": []}, name) for name in options.workloads}
    anchors = ["eager", "shapejit"]
    assert todo == {
        "video": ([*anchors, "largest"], []),
        "bert": (anchors, ["disk"]),
        "llama": (anchors, ["buckets", "compile-dynamic"]),
    }


def test_exact_results_are_of_the_same_model_and_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def folder(workload: str, *more: str) -> Path:
        return traces.Session(arguments(tmp_path, *more), workload, tmp_path, 0.0).exact.folder

    monkeypatch.setattr(traces, "real_weights", lambda: True)
    seen = [folder("minilm"), folder("tiny"), folder("minilm", "--dtype", "bf16")]
    assert folder("minilm") == seen[0]
    monkeypatch.setattr(traces, "real_weights", lambda: False)
    seen.append(folder("minilm"))
    (tmp_path / "models.py").write_text("changed")
    monkeypatch.setattr(traces, "SOURCES", (tmp_path / "models.py", traces.SOURCES[1]))
    seen.append(folder("minilm"))
    assert len(set(seen)) == 5


def test_unknown_peers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(tmp_path, "--peers", "eager,tensorrt")
    assert "no such peer: tensorrt" in capsys.readouterr().err
    for model, error in (("bert:tensorrt", "peer: tensorrt"), ("gpt:eager", "model: gpt")):
        with pytest.raises(SystemExit):
            traces.parse([model, "--device", "cpu", "--scratch", str(tmp_path)])
        assert f"no such {error}" in capsys.readouterr().err


WORKER = """\
import json, subprocess, sys, time
task = json.loads(open(sys.argv[1]).read())
open(task["result"], "w").write(json.dumps({"build_s": 1.0}))
if task["peer"] == "eager":
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
print("trouble", flush=True)
sys.exit(3)
"""


def test_what_a_stopped_or_broken_process_left_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(traces, "WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(traces, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(traces, "_GRACE_SECONDS", 3.0)
    session = traces.Session(arguments(tmp_path), "tiny", tmp_path / "scratch", end=0.0)
    stopped = session.measure("eager")
    assert stopped["build_s"] == 1.0
    assert stopped["stopped"].startswith("after ")
    assert 3 <= stopped["process_s"] < 60
    broken = session.measure("shapejit")
    assert broken["build_s"] == 1.0
    assert broken["error"] == "the process ended with 3: trouble"


def test_all_models_come_before_what_else_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, str]] = []

    def measure(session: Any, peer: str) -> dict[str, Any]:
        seen.append((session.workload, peer))
        wrong = {"error": "wrong"} if peer == "checks" else {}
        if (session.workload, peer) == ("tiny", "eager"):
            session.exact.folder.mkdir(parents=True)
            (session.exact.folder / "errors.json").write_text("{}")
        return {"process_s": 1.0, **record_of([2.0], [1.0]), **wrong}

    monkeypatch.setattr(traces.Session, "measure", measure)
    options = arguments(tmp_path, "--peers", "buckets,checks")
    options.workloads = ["tiny", "video"]
    assert not traces.run(options, {"runs": []})
    assert seen == [
        *(("tiny", peer) for peer in ("eager", "shapejit")),
        *(("video", peer) for peer in ("eager", "shapejit", "largest")),
        *((workload, peer) for workload in ("tiny", "video")
          for peer in ("buckets", "checks")),
    ]  # fmt: skip
    written = json.loads((tmp_path / "results.json").read_text())
    eager = [run["systems"]["eager"].get("error") for run in written["runs"]]
    assert eager == [None, "it left no exact results to compare others with"]
    assert [run["setting"]["workload"] for run in written["runs"]] == ["tiny", "video"]
    assert set(written["runs"][1]["systems"]) == {
        "eager", "shapejit", "largest", "buckets", "checks"
    }  # fmt: skip
    assert "memory / that of the largest size alone" in capsys.readouterr().out


def test_kernels_are_kept_for_what_measures_no_compile(tmp_path: Path) -> None:
    session = traces.Session(arguments(tmp_path), "tiny", tmp_path, 0.0)

    def cache(peer: str) -> Path:
        return Path(session._environment(peer, tmp_path / "own")["SHAPEJIT_CACHE_DIR"])

    kept = cache("shapejit")
    kept.mkdir(parents=True)
    assert cache("floor") == cache("checks") == cache("largest") == cache("disk") == kept
    assert kept.exists()
    assert cache("eager") == tmp_path / "own" / "shapejit"
    cache("shapejit")
    assert not kept.exists()  # its compile starts with nothing


def test_a_whole_run(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [
        sys.executable, BENCH / "traces.py", "tiny", "--device", "cpu", "--dtype", "f32", "--peers",
        "shapejit,disk", "--requests", "4", "--passes", "2", "--scratch", tmp_path,
        "--output", output,
    ]  # fmt: skip
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    (run,) = json.loads(output.read_text())["runs"]
    assert list(run["systems"]) == ["eager", "shapejit", "disk"]
    disk = run["systems"].pop("disk")
    for record in run["systems"].values():
        assert "error" not in record
        assert len(record["cold"]["wall_us"]) == 4
    ours = run["systems"]["shapejit"]
    assert (ours["build"]["origin"], disk["build"]["origin"]) == ("built", "disk")
    assert disk["build"]["compile_s"] < ours["build"]["compile_s"]
    assert "cold" not in disk
    assert ours["summary"]["worst_error_ratio"] < 3
    assert ours["build"]["compile_s"] > 0
    assert ours["details"]["stats"]["compiles"] == 1
    assert ours["details"]["launches"] > 0
    assert ours["details"]["load_s"] > 0
    assert (tmp_path / "results-tiny.png").exists()
    assert "time / ours" in process.stdout


# Weights ------------------------------------------------------------------------------------------


def test_packed_weights_are_bfloat16_and_a_package(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text('{"hidden_size": 4, "torch_dtype": "float32"}')
    (source / "tokenizer.json").write_text("{}")
    weights = {"w": torch.randn(3, 4), "ids": torch.arange(5)}
    save_file(weights, source / "model.safetensors")
    package = pack_weights.write_package(source, tmp_path / "out")
    assert (package / "__init__.py").exists()
    config = json.loads((package / "model" / "config.json").read_text())
    assert config == {"hidden_size": 4, "dtype": "bfloat16"}
    packed = load_file(package / "model" / "model.safetensors")
    assert torch.equal(packed["w"], weights["w"].bfloat16())
    assert torch.equal(packed["ids"], weights["ids"])
