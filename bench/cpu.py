# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""MiniLM on the CPU over a trace of requests: shapejit, eager, torch.compile(dynamic=True).

All systems run in one process and see the requests in a shuffled order; figures are
ratios of medians within the run. Each system first serves the trace once, cold, in order
of arrival, where compilations show as stalls.

    python bench/cpu.py                      # everything, about 20 minutes on 2 cores
    python bench/cpu.py --requests 20 --threads 1 --systems shapejit,eager

Writes ``bench/results/cpu-minilm.json`` and a plot beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import shapejit
from shapejit.demo.encoder import load_encoder

HERE = Path(__file__).parent
RESULTS = HERE / "results"
VOCABULARY = 30522
SYSTEMS = ("shapejit", "eager", "torch.compile")

System = Callable[..., Tensor]
Request = tuple[int, int]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=120, help="how much of the trace to use")
    parser.add_argument("--rounds", type=int, default=5, help="warm measurements of each request")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu-minilm.json")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


# ---------------------------------------------------------------------------
# Systems
# ---------------------------------------------------------------------------


def dynamic_shapes() -> Any:
    batch = torch.export.Dim("batch", min=1, max=64)
    tokens = torch.export.Dim("tokens", min=1, max=512)
    return ({0: batch, 1: tokens}, {0: batch, 1: tokens})


def build_shapejit(model: torch.nn.Module) -> tuple[System, dict[str, float]]:
    """The program, and seconds of export, of the compile itself and of a load from disk."""
    seconds = {}
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(
            model, make_inputs((3, 17)), dynamic_shapes=dynamic_shapes(), strict=False
        )
    seconds["torch.export"] = time.perf_counter() - start
    start = time.perf_counter()
    program = shapejit.compile(exported)
    seconds["compile"] = time.perf_counter() - start
    seconds.update({f"compile/{k}": v for k, v in program.stats().compile_seconds.items()})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "minilm.sjit")
        program.save(path)
        start = time.perf_counter()
        shapejit.load(path)
        seconds["load"] = time.perf_counter() - start
    return program, seconds


def build_system(name: str, model: torch.nn.Module) -> tuple[System, dict[str, float]]:
    if name == "shapejit":
        return build_shapejit(model)
    if name == "eager":
        return model, {}
    torch._dynamo.reset()
    return torch.compile(model, dynamic=True), {}


# ---------------------------------------------------------------------------
# Measuring
# ---------------------------------------------------------------------------


def make_inputs(request: Request) -> tuple[Tensor, Tensor]:
    """Token ids and a padding mask with rows of different lengths."""
    batch, tokens = request
    generator = torch.Generator().manual_seed(batch * 1000 + tokens)
    lengths = torch.randint(1, tokens + 1, (batch, 1), generator=generator)
    lengths[0] = tokens
    ids = torch.randint(0, VOCABULARY, (batch, tokens), generator=generator)
    return ids, (torch.arange(tokens)[None] < lengths).long()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def timed(system: System, inputs: Sequence[Tensor]) -> float:
    start = time.perf_counter()
    system(*inputs)
    return time.perf_counter() - start


def measure_warm(
    systems: dict[str, System], requests: Sequence[Request], rounds: int, seed: int
) -> dict[str, list[float]]:
    """Median seconds of every request by system; requests and systems are shuffled."""
    inputs = [make_inputs(r) for r in requests]
    samples: dict[str, list[list[float]]] = {name: [[] for _ in requests] for name in systems}
    rng = random.Random(seed)
    for _ in range(rounds):
        order = [(i, name) for i in range(len(requests)) for name in systems]
        rng.shuffle(order)
        for i, name in order:
            samples[name][i].append(timed(systems[name], inputs[i]))
    return {name: [statistics.median(s) for s in rows] for name, rows in samples.items()}


def percentile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def remeasure_worst(
    systems: dict[str, System],
    requests: Sequence[Request],
    ratios: Sequence[float],
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """The ten worst requests again, with more rounds: one slow moment is no finding."""
    worst = sorted(range(len(requests)), key=lambda i: -ratios[i])[:10]
    pair = {name: systems[name] for name in ("shapejit", "eager")}
    again = measure_warm(pair, [requests[i] for i in worst], 4 * args.rounds, args.seed + 1)
    return [
        {"request": requests[i], "first": ratios[i], "again": ours / eager}
        for i, ours, eager in zip(worst, again["shapejit"], again["eager"], strict=True)
    ]


def run(threads: int, args: argparse.Namespace, requests: Sequence[Request]) -> dict[str, Any]:
    """All figures at one number of threads."""
    model = load_encoder()
    systems: dict[str, System] = {}
    report: dict[str, Any] = {"threads": threads, "systems": {}}
    for name in args.systems.split(","):
        systems[name], build_seconds = build_system(name, model)
        cold = [timed(systems[name], make_inputs(r)) for r in requests]
        report["systems"][name] = {
            "build_seconds": build_seconds,
            "worst_call_seconds": max(cold),
            "calls_over_100ms_beyond_warm": None,
            "cold_seconds": cold,
        }
    warm = measure_warm(systems, requests, args.rounds, args.seed)
    for name, seconds in warm.items():
        entry = report["systems"][name]
        entry["warm_seconds"] = seconds
        entry.update({f"warm_p{q}_ms": 1e3 * percentile(seconds, q / 100) for q in (50, 90, 99)})
        # A stall: the first call of a request took 100 ms more than it does when warm.
        entry["calls_over_100ms_beyond_warm"] = sum(
            cold - seconds[i] > 0.1 for i, cold in enumerate(entry["cold_seconds"])
        )
    if {"shapejit", "eager"} <= set(systems):
        ratios = [a / b for a, b in zip(warm["shapejit"], warm["eager"], strict=True)]
        report["geomean_of_eager"] = geomean(ratios)
        report["worst"] = remeasure_worst(systems, requests, ratios, args)
    if hasattr(systems.get("shapejit"), "stats"):
        report["compiles"] = systems["shapejit"].stats().compiles  # type: ignore[attr-defined]
    return report


# ---------------------------------------------------------------------------
# Reporting
# ---------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    from shapejit.codegen import HostTarget

    target = HostTarget.host()
    return {
        "shapejit": shapejit.__version__,
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": target.cpu,
        "vector_bytes": target.vector_bytes,
    }


def print_summary(report: dict[str, Any]) -> None:
    print(f"\n{report['threads']} thread(s)")
    print(f"{'system':<14}{'p50 ms':>9}{'p90 ms':>9}{'p99 ms':>9}{'worst call s':>14}{'stalls':>8}")
    for name, entry in report["systems"].items():
        times = "".join(f"{entry[f'warm_p{q}_ms']:9.2f}" for q in (50, 90, 99))
        stalls = entry["calls_over_100ms_beyond_warm"]
        print(f"{name:<14}{times}{entry['worst_call_seconds']:14.2f}{stalls:8d}")
        for step, seconds in entry["build_seconds"].items():
            print(f"    {step:<32}{seconds:8.2f} s")
    if "geomean_of_eager" in report:
        print(f"geomean of eager's time: {report['geomean_of_eager']:.3f}")
        worst = max(report["worst"], key=lambda row: row["again"])
        print(f"worst shape, measured again: {worst['again']:.3f} at {tuple(worst['request'])}")


def plot(results: dict[str, Any], path: Path) -> None:
    """Time relative to eager over the size of the request, one panel a number of threads."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    runs = [r for r in results["runs"] if "eager" in r["systems"]]
    figure, axes = plt.subplots(1, len(runs), figsize=(6 * len(runs), 4), squeeze=False)
    tokens = [batch * length for batch, length in results["requests"]]
    for axis, report in zip(axes[0], runs, strict=True):
        eager = report["systems"]["eager"]["warm_seconds"]
        for name, entry in report["systems"].items():
            if name != "eager":
                ratio = [a / b for a, b in zip(entry["warm_seconds"], eager, strict=True)]
                axis.scatter(tokens, ratio, s=12, label=name)
        axis.axhline(1.0, color="0.6", linewidth=1)
        axis.set(xscale="log", xlabel="batch x tokens", ylabel="time / eager's")
        axis.set_title(f"MiniLM, f32, {report['threads']} thread(s)")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    args = parse_arguments()
    trace = json.loads((HERE / "traces.json").read_text())["minilm"][: args.requests]
    requests: list[Request] = [(batch, tokens) for batch, tokens in trace]
    results: dict[str, Any] = {"environment": environment(), "requests": requests, "runs": []}
    for threads in args.threads:
        with torch_threads(threads), torch.inference_mode():
            results["runs"].append(run(threads, args, requests))
        print_summary(results["runs"][-1])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=1))
    if "eager" in args.systems:
        plot(results, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
