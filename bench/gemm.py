# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Matrix products on a GPU: `shapejit.ops.gemm` as dispatched, against cuBLAS.

Shapes are 33 of Llama's layers at several M, and 60 with M log-uniform in 1..8192 and N and K of
real models. Each provider's calls are captured into a CUDA graph over rotating operands (more than
the caches hold), and replayed in a shuffled order: in bursts with pauses, in which the GPU runs at
its highest clock, and back to back, where power limits it. Figures are ratios of medians within the
run.

    python bench/gemm.py                         # dispatched against cuBLAS
    python bench/gemm.py --candidates            # every schedule that may be worth it, for a fit
    python bench/gemm.py --epilogue --resume     # bias + gelu + residual against torch.compile

Writes ``bench/results/gemm-<GPU>.json`` and a plot beside it. With ``--seconds`` and ``--resume`` a
long run is made in pieces.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import gemm_peers
import torch
from gemm_report import DISPATCHED, PEERS, SINGLE, line, plot, summary
from torch import Tensor
from torch.nn import functional

import shapejit.ops as ops
from shapejit.codegen.ptxas import find_ptxas
from shapejit.ops.gemm import kernels_of
from shapejit.ops.gemm_operands import Operands, result_shape
from shapejit.passes.buckets.device import H200
from shapejit.passes.buckets.model import CostModel, fitting
from shapejit.passes.buckets.problem import GemmSizes, GemmTraits
from shapejit.passes.nvgpu.schedule import CANDIDATES, GemmSchedule, worth_trying

RESULTS = Path(__file__).parent / "results"
Shape = tuple[int, int, int]
Call = Callable[[], Any]

#: Layers of Llama-7B: (n, k).
LLAMA = ((4096, 4096), (11008, 4096), (4096, 11008))
LLAMA_ROWS = (1, 16, 32, 64, 77, 128, 333, 1000, 2048, 4097)
SQUARES = ((4096, 4096, 4096), (8192, 8192, 8192), (1024, 8192, 8192))
MODELS = (
    (768, 3072), (1024, 4096), (2048, 5632), (4096, 14336), (5120, 13824), (8192, 28672),
)  # fmt: skip
VOCABULARIES = ((32000, 4096), (128256, 4096))

_ROTATED_BYTES = 300_000_000
_MAX_SETS = 16


def shapes(seed: int = 0) -> list[Shape]:
    """(m, n, k) of all cells."""
    rng = random.Random(seed)
    found = [(m, n, k) for n, k in LLAMA for m in LLAMA_ROWS] + list(SQUARES)
    pairs = [pair for n, k in MODELS for pair in ((n, k), (k, n))] + list(VOCABULARIES)
    for number in range(60):
        n, k = pairs[number % len(pairs)]
        found.append((round(math.exp(rng.uniform(0, math.log(8192)))), n, k))
    return found


def shape_of(text: str) -> Shape:
    """The shape that a text such as 140,4096,14336 names.

    Raises:
        ValueError: it names none.
    """
    m, n, k = map(int, text.split(","))
    return m, n, k


# ---------------------------------------------------------------------------
# Providers
# ---------------------------------------------------------------------------


@dataclass
class Cell:
    """A shape with its operands, several sets of them."""

    shape: Shape
    dtype: torch.dtype
    epilogue: bool

    def __post_init__(self) -> None:
        m, n, k = self.shape
        width = 2
        total = width * (m * k + n * k + m * n * (2 if self.epilogue else 1))
        count = max(1, min(_MAX_SETS, -(-_ROTATED_BYTES // total)))
        generator = torch.Generator("cuda").manual_seed(m * 31 + n * 7 + k)

        def noise(*sizes: int) -> Tensor:
            return torch.randn(*sizes, device="cuda", generator=generator).to(self.dtype)

        self.sets = [
            (noise(m, k), noise(n, k), noise(n), noise(m, n) if self.epilogue else None,
             torch.empty(m, n, device="cuda", dtype=self.dtype))
            for _ in range(count)
        ]  # fmt: skip
        flops, peak, bandwidth = 2.0 * m * n * k, 700e12, 3.8e12
        self.estimate = max(flops / peak, total / bandwidth, 4e-6)

    def operands(self, index: int) -> Operands:
        x, w, bias, residual, _ = self.sets[index]
        if not self.epilogue:
            return Operands(x, w.mT, None, None, None, None, None)
        return Operands(x, w.mT, bias, None, residual, "gelu", None)


def cublas(cell: Cell) -> list[Call]:
    return [lambda x=x, w=w, out=out: torch.mm(x, w.mT, out=out) for x, w, _, _, out in cell.sets]


def dispatched(cell: Cell) -> list[Call]:
    def call(index: int) -> Call:
        given, out = cell.operands(index), cell.sets[index][4]
        return lambda: ops.gemm(
            given.a, given.b, bias=given.bias, gate=given.gate, residual=given.residual,
            activation=given.activation, out=out, deterministic=True,
        )  # fmt: skip

    return [call(index) for index in range(len(cell.sets))]


def scheduled(cell: Cell, schedule: GemmSchedule) -> list[Call]:
    """Calls of one schedule's kernel, whatever the cost model thinks of it."""

    def call(index: int) -> Call:
        operands, out = cell.operands(index), cell.sets[index][4]
        layout, kernels = kernels_of(operands, result_shape(operands), out.data_ptr())
        loaded = kernels.load(schedule)
        assert loaded.kernel is not None
        values = [value.evaluate(layout.symbols) for value in loaded.values]
        addresses = [tensor.data_ptr() for tensor in (*operands.tensors, out)]
        launch = loaded.kernel.launch
        return lambda: launch(addresses, values, torch.cuda.current_stream().cuda_stream)

    return [call(index) for index in range(len(cell.sets))]


def compiled(cell: Cell, mode: str | None) -> list[Call]:
    """Calls of the fused layer by torch.compile."""
    function = gemm_peers.compiled(mode)
    return [lambda s=s: function(*s[:4]) for s in cell.sets]


# ---------------------------------------------------------------------------
# Measuring
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Regime:
    """How replays follow each other: seconds of work in a graph, and of pauses before it."""

    name: str
    work: float
    pause: float
    rounds: int


REGIMES = (Regime("burst", 0.003, 0.006, 9), Regime("sustained", 0.012, 0.0, 7))


REGIME_NAMES = [regime.name for regime in REGIMES]


def capture(calls: Sequence[Call], count: int) -> torch.cuda.CUDAGraph:
    """A graph of ``count`` calls, over all sets of operands in turn."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for number in range(count):
            calls[number % len(calls)]()
    return graph


class Rotating(Protocol):
    """What calls rotate over: sets of operands; and a guess of a call's time in seconds."""

    sets: Any
    estimate: float


def measure(cell: Rotating, providers: dict[str, list[Call]], rng: random.Random) -> dict[str, Any]:
    """Microseconds of a call, by provider and regime: medians."""
    found: dict[str, Any] = {name: {} for name in providers}
    for regime in REGIMES:
        sets = len(cell.sets)
        count = max(sets, min(400, int(regime.work / cell.estimate)))
        count = -(-count // sets) * sets
        graphs = {name: capture(calls, count) for name, calls in providers.items()}
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
        times: dict[str, list[float]] = {name: [] for name in providers}
        for _ in range(regime.rounds):
            order = list(graphs)
            rng.shuffle(order)
            for name in order:
                if regime.pause:
                    torch.cuda.synchronize()
                    time.sleep(regime.pause)
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graphs[name].replay()
                end.record()
                torch.cuda.synchronize()
                times[name].append(start.elapsed_time(end) * 1e3 / count)
        for name, values in times.items():
            found[name][f"{regime.name}_us"] = round(statistics.median(values), 3)
            found[name][f"{regime.name}_spread"] = round(max(values) / min(values), 3)
    return found


def check(cell: Cell, calls: Sequence[Call]) -> float:
    """The relative error of a provider's first call, after its result was poisoned."""
    given = cell.operands(0)
    out = cell.sets[0][4]
    out.fill_(float("nan"))
    calls[0]()
    expected = given.a.float() @ given.b.float()
    if given.residual is not None and given.bias is not None:
        expected = functional.gelu(expected + given.bias.float()) + given.residual.float()
    return ((out.float() - expected).norm() / expected.norm()).item()


def worth(
    shape: Shape, candidates: Sequence[GemmSchedule], factor: float, most: int = 16
) -> list[GemmSchedule]:
    """The candidates that the cost model puts within a factor of the best."""
    m, n, k = shape
    tried = worth_trying(candidates, 1)
    model = CostModel(H200, fitting(H200, tried, GemmTraits()), GemmTraits())
    times = model.times(GemmSizes(m, n, k))[0]
    ranked = sorted(zip(times.tolist(), model.schedules, strict=True), key=lambda pair: pair[0])
    best = ranked[0][0]
    return [schedule for seconds, schedule in ranked if seconds <= factor * best][:most]


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rng = random.Random(arguments.seed)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[arguments.dtype]
    records: list[dict[str, Any]] = list(arguments.measured)
    end = time.monotonic() + arguments.seconds
    cells = wanted(arguments, rng)
    prepare(cells, dtype, arguments)
    if arguments.epilogue:
        # What is compiled ahead leaves most of the time to what is measured.
        ready = gemm_peers.warm(cells, arguments.dtype, (end - time.monotonic()) * 0.5)
        print(f"{len(ready)} of {len(cells)} shapes compiled by the peers", flush=True)
        cells = ready or cells
    for shape in cells:
        if time.monotonic() > end:
            print(f"out of time: {len(cells)} shapes were asked for", flush=True)
            break
        cell = Cell(shape, dtype, arguments.epilogue)
        providers = providers_of(cell, arguments)
        for name, times in measure(cell, providers, rng).items():
            records.append(record_of(cell, arguments.dtype, name, times))
        print(line(records, shape), flush=True)
        save(records, arguments)
        del cell, providers
        torch.cuda.empty_cache()
    return records


def record_of(cell: Cell, dtype: str, name: str, times: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a provider's times."""
    m, n, k = cell.shape
    provider, schedule = name, None
    if name == DISPATCHED:
        schedule = chosen(cell)
    elif name not in PEERS:
        schedule, provider = name, SINGLE
    return {
        "m": m, "n": n, "k": k, "batch": 1, "dtype": dtype,
        "provider": provider, **times, "schedule": schedule,
    }  # fmt: skip


def wanted(arguments: argparse.Namespace, rng: random.Random) -> list[Shape]:
    """The shapes to measure: small and large M by turns, without those that were measured."""
    measured = {(r["m"], r["n"], r["k"]) for r in arguments.measured}
    found = arguments.cells or shapes(arguments.shape_seed)[:: arguments.every]
    found = found[: arguments.shapes]
    rng.shuffle(found)
    halves = [[s for s in found if (s[0] <= 128) == small] for small in (True, False)]
    mixed = [s for pair in itertools.zip_longest(*halves) for s in pair if s is not None]
    return [shape for shape in dict.fromkeys(mixed) if shape not in measured]


def prepare(cells: Sequence[Shape], dtype: torch.dtype, arguments: argparse.Namespace) -> None:
    """Builds all kernels at once, on all cores."""
    cell = Cell((8, 256, 256), dtype, arguments.epilogue)
    operands = cell.operands(0)
    _, kernels = kernels_of(operands, result_shape(operands), 0)
    tried = [*CANDIDATES, *arguments.extra]
    start = time.perf_counter()
    for schedule, future in zip(tried, kernels.begin(tried), strict=True):
        if (error := future.exception()) is not None:
            print(f"{schedule}: {str(error)[:300]}", flush=True)
            arguments.broken.add(schedule)
            continue
        try:
            kernels.load(schedule)
            error_of = check(cell, scheduled(cell, schedule))
        except Exception as problem:
            print(f"{schedule}: {problem}", flush=True)
            arguments.broken.add(schedule)
            continue
        if not error_of < 1e-2:
            print(f"{schedule}: WRONG, relative error {error_of:.2e}", flush=True)
            arguments.broken.add(schedule)
    seconds = time.perf_counter() - start
    print(f"{len(tried)} kernels in {seconds:.2f} s, for {len(cells)} shapes", flush=True)
    if arguments.broken.issuperset(CANDIDATES):
        raise SystemExit("no candidate works here; what each of them failed of is said above")


def chosen(cell: Cell) -> str:
    """The name of the schedule that calls are dispatched to."""
    operands = cell.operands(0)
    layout, kernels = kernels_of(operands, result_shape(operands), 0)
    return str(kernels.choose_rows(layout, layout.m))


def providers_of(cell: Cell, arguments: argparse.Namespace) -> dict[str, list[Call]]:
    providers: dict[str, list[Call]] = {}
    if arguments.epilogue:
        for name, mode in gemm_peers.MODES.items():
            providers[name] = compiled(cell, mode)
    else:
        providers["cublas"] = cublas(cell)
    if arguments.candidates:
        known, extra = (
            [schedule for schedule in group if schedule not in arguments.broken]
            for group in (CANDIDATES, arguments.extra)
        )
        tried = worth(cell.shape, known, arguments.factor, arguments.most)
        best = worth(cell.shape, [*known, *extra], arguments.factor, 1 << 30)
        for number, schedule in enumerate([*tried, *(each for each in best if each in extra)]):
            providers[str(schedule)] = scheduled(cell, schedule)
            if number < arguments.early:
                early = replace(schedule, early=True)
                providers[str(early)] = scheduled(cell, early)
    providers[DISPATCHED] = dispatched(cell)
    for name, calls in providers.items():
        if name == DISPATCHED or name not in PEERS:
            error = check(cell, calls)
            if not error < 1e-2:
                print(f"{cell.shape} {name}: WRONG, relative error {error:.2e}", flush=True)
    return providers


# ---------------------------------------------------------------------------
# The run
# ---------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Versions, GPU and commit of a run."""
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True,
            cwd=Path(__file__).parent,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "ptxas": find_ptxas().version,
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--shapes", type=int, default=93, help="how many")
    parser.add_argument("--shape-seed", type=int, default=0, help="of the 60 random shapes")
    parser.add_argument("--cells", type=shape_of, nargs="*", help="these shapes instead, as m,n,k")
    parser.add_argument("--every", type=int, default=1, help="take every so many")
    parser.add_argument("--candidates", action="store_true", help="measure schedules one by one")
    parser.add_argument("--factor", type=float, default=1.6, help="of the best predicted time")
    parser.add_argument("--most", type=int, default=16, help="schedules a shape")
    parser.add_argument("--early", type=int, default=0, help="so many also with an early start")
    parser.add_argument("--extra", type=GemmSchedule.parse, nargs="*", default=[])
    parser.add_argument("--epilogue", action="store_true", help="bias + gelu + residual")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", help="of the sources, where they are no repository")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep what the output file has")
    arguments = parser.parse_args()
    arguments.broken = set()
    if arguments.output is None:
        name = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "-").lower()
        kind = "epilogue-" if arguments.epilogue else ""
        arguments.output = RESULTS / f"gemm-{kind}{name}.json"
    arguments.measured = []
    if arguments.resume and arguments.output.exists():
        arguments.measured = json.loads(arguments.output.read_text())["records"]
    records = run(arguments)
    for key, value in save(records, arguments).items():
        print(key, value)
    plot(records, REGIME_NAMES, arguments.output.with_suffix(".png"))


def save(records: list[dict[str, Any]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Writes what was measured so far; gives the summary."""
    table = summary(records, REGIME_NAMES)
    result = {"environment": environment(), "summary": table, "records": records}
    if arguments.commit:
        result["environment"]["commit"] = arguments.commit
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    return table


if __name__ == "__main__":
    main()
