# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Matrix products as layers of a small model, one after the other in a CUDA graph.

Kernels take their parameters from a block and start before the kernel ahead of them ends, as in a
program's constant graph; weights stay in the second-level cache. What a launch costs is most of
the time here, so the best schedules are others than with weights from memory (``gemm.py``).

    python bench/gemm_chain.py

Writes ``bench/results/gemm-chain-<GPU>.json``: microseconds a product, by schedule.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from gemm import Call, environment
from torch import Tensor

from shapejit.cache.cubins import CachedCubin, CubinRecipe, unit_of
from shapejit.cache.problem import Problem
from shapejit.codegen.builder import cubin_builder
from shapejit.codegen.ptxas import find_ptxas
from shapejit.gpu.driver import driver
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.ops.gemm_kernels import LOWERING
from shapejit.passes.buckets.device import H200
from shapejit.passes.buckets.model import CostModel, fitting
from shapejit.passes.buckets.problem import GemmSizes, GemmTraits
from shapejit.passes.nvgpu.schedule import CANDIDATES, GemmSchedule, worth_trying
from shapejit.symbolic import Expr

RESULTS = Path(__file__).parent / "results"
#: (n, k) of the layers of MiniLM and of BERT, and rows.
LAYERS = ((1152, 384), (384, 384), (1536, 384), (384, 1536))
LARGER = ((2304, 768), (768, 768), (3072, 768), (768, 3072))
ROWS = (8, 32, 128, 512, 2048, 8192)

_LAUNCHES = 48
_WEIGHTS = 8
_REPLAYS = 9
_ALIGNMENT = 128
_FACTOR = 1.4
#: The provider of the records.
CHAIN = "nvgpu, chain"


@dataclass(frozen=True)
class Layer:
    """A linear layer, as a program has it: sizes of the weight are constants."""

    n: int
    k: int

    def text(self) -> str:
        """Its kernel; its symbol is the number of rows."""
        n, k = self.n, self.k
        x = f"tensor<?x{k}xbf16, #shapejit.shape<[s0, {k}]>>"
        w = f"tensor<{n}x{k}xbf16, #shapejit.shape<[{n}, {k}]>>"
        b = f"tensor<{n}xbf16, #shapejit.shape<[{n}]>>"
        y = f"tensor<?x{n}xbf16, #shapejit.shape<[s0, {n}]>>"
        return f"""shapejit.kernel @gemm symbols 1 (%x: {x}, %w: {w}, %b: {b}) {{
    %y = shapejit.gemm over [s0, {n}, {k}]
      lhs(%x at affine_map<(d0, d1, d2) -> (d0, d2)> : {x})
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : {w})
      extras(%b at affine_map<(d0, d1) -> (d1)> : {b})
      epilogue {{
    ^bb0(%sum: f32, %e: bf16):
      %f = arith.extf %e : bf16 to f32
      %t = arith.addf %sum, %f : f32
      %r = arith.truncf %t : f32 to bf16
      shapejit.yield %r : bf16
    }} -> {y}
    shapejit.yield %y : {y}
  }}"""


class Chain:
    """A layer with one input, some weights, and two results by turns."""

    def __init__(self, layer: Layer, m: int) -> None:
        n, k = layer.n, layer.k
        generator = torch.Generator("cuda").manual_seed(m * 31 + n * 7 + k)

        def noise(*sizes: int) -> Tensor:
            return torch.randn(*sizes, device="cuda", generator=generator).bfloat16()

        self.m = m
        self.x, self.bias = noise(m, k), noise(n)
        self.weights = [noise(n, k) for _ in range(_WEIGHTS)]
        self.results = [torch.empty(m, n, device="cuda").bfloat16() for _ in range(2)]

    def addresses(self, number: int) -> list[int]:
        """Of the operands of a launch, in the kernel's order."""
        weight, result = self.weights[number % _WEIGHTS], self.results[number % 2]
        return [tensor.data_ptr() for tensor in (self.x, weight, self.bias, result)]

    def error(self) -> float:
        """Of the last launch's result."""
        last = _LAUNCHES - 1
        expected = self.x.float() @ self.weights[last % _WEIGHTS].float().mT + self.bias.float()
        result = self.results[last % 2].float()
        return float((result - expected).norm() / expected.norm())


Kernels: TypeAlias = "dict[Layer, dict[str, Future[CachedCubin]]]"
Launch: TypeAlias = Callable[[int], None]
"""Launches a layer with the operands of that number."""


def of_cublas(chain: Chain) -> Launch:
    """Torch's product."""

    def launch(number: int) -> None:
        weight, result = chain.weights[number % _WEIGHTS], chain.results[number % 2]
        torch.addmm(chain.bias, chain.x, weight.mT, out=result)

    return launch


def of_kernel(chain: Chain, cubin: CachedCubin) -> Launch:
    """A kernel of ours; each launch has its entry in a block."""
    kernel = Kernel(cubin.interface, Module(cubin.cubin, driver().device(0)))
    values = [Expr.parse(text).evaluate([chain.m]) for text in cubin.interface.values]
    addresses = [chain.addresses(number) for number in range(_LAUNCHES)]
    calls = block_calls(kernel, addresses, values)
    return lambda number: calls[number]()


def block_calls(
    kernel: Kernel, addresses: Sequence[Sequence[int]], values: Sequence[int]
) -> list[Call]:
    """Calls of a kernel in block form, each with its own operands and entry."""
    size = -(-kernel.interface.block_bytes // _ALIGNMENT) * _ALIGNMENT
    host = torch.zeros(len(addresses) * size + _ALIGNMENT, dtype=torch.uint8)
    host = host[-host.data_ptr() % _ALIGNMENT :][: len(addresses) * size]
    scratch = torch.zeros(max(kernel.workspace_bytes, 1), dtype=torch.uint8, device="cuda")
    workspace = scratch.data_ptr() if kernel.workspace_bytes else None
    for number, operands in enumerate(addresses):
        kernel.fill_block(operands, values, host.data_ptr() + number * size, workspace)
    block = host.cuda()

    def call(number: int) -> Call:
        def launch() -> None:
            assert scratch is not None  # lives as long as the block that names it
            stream = torch.cuda.current_stream().cuda_stream
            kernel.launch_block(block.data_ptr() + number * size, stream)

        return launch

    return [call(number) for number in range(len(addresses))]


def microseconds(launches: Sequence[Launch]) -> float:
    """Of one launch of each, in turn, over and over: the median over replays of a graph."""

    def run() -> None:
        for number in range(_LAUNCHES):
            for launch in launches:
                launch(number)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    graph.replay()
    times = []
    for _ in range(_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / _LAUNCHES)
    return round(statistics.median(times), 3)


def worth(layer: Layer, rows: Sequence[int], extra: Sequence[GemmSchedule]) -> list[str]:
    """The schedules that the cost model puts near the best one for some number of rows."""
    tried = fitting(H200, worth_trying([*CANDIDATES, *extra], 1), GemmTraits())
    model = CostModel(H200, tried, GemmTraits())
    times = model.times(GemmSizes(np.array(rows), layer.n, layer.k))
    near = (times <= _FACTOR * times.min(axis=1, keepdims=True)).any(axis=0)
    return [str(schedule) for schedule, good in zip(tried, near, strict=True) if good]


def begin(layer: Layer, names: Sequence[str]) -> dict[str, Future[CachedCubin]]:
    """Begins the builds of a layer's kernels."""
    problem = Problem("gemm", layer.text(), ("bf16",) * 4, (), "bias")
    tool, arch = find_ptxas(), driver().device(0).arch
    recipes = {
        name: CubinRecipe(
            name, arch=arch, parameters="block", programmatic=True, constant_weights=True
        )
        for name in names
    }
    return {
        name: cubin_builder().build_async(unit_of(problem, LOWERING, recipe, tool), urgent=True)
        for name, recipe in recipes.items()
    }


def measure(layer: Layer, m: int, kernels: dict[str, Future[CachedCubin]]) -> list[dict[str, Any]]:
    """A record for cuBLAS and for each kernel that is right."""
    chain = Chain(layer, m)
    base = {"m": m, "n": layer.n, "k": layer.k, "batch": 1, "dtype": "bf16"}
    us = microseconds([of_cublas(chain)])
    records: list[dict[str, Any]] = [{**base, "provider": "cublas", "schedule": None, "us": us}]
    for name, future in kernels.items():
        if (problem := future.exception()) is not None:
            print(f"{layer} {name}: {str(problem)[:200]}", flush=True)
            continue
        for result in chain.results:
            result.fill_(float("nan"))
        us = microseconds([of_kernel(chain, future.result())])
        if not (error := chain.error()) < 1e-2:
            print(f"{layer} {m} {name}: WRONG, relative error {error:.2e}", flush=True)
            continue
        records.append({**base, "provider": CHAIN, "schedule": name, "us": us})
    best = sorted((r["us"], r["schedule"]) for r in records[1:])[:4]
    print(f"{(m, layer.n, layer.k)}: cublas {records[0]['us']:.2f} | {best}", flush=True)
    return records


def model(
    layers: Sequence[Layer], m: int, records: Sequence[dict[str, Any]], kernels: Kernels
) -> dict[str, Any]:
    """Microseconds of a model's products one after the other, each by its best kernel."""
    ours, theirs, names = [], [], []
    for layer in layers:
        own = [
            (r["us"], r["schedule"])
            for r in records
            if (r["m"], r["n"], r["k"], r["provider"]) == (m, layer.n, layer.k, CHAIN)
        ]
        names.append(min(own)[1])
        chain = Chain(layer, m)
        ours.append(of_kernel(chain, kernels[layer][names[-1]].result()))
        theirs.append(of_cublas(chain))
    found = {"m": m, "cublas": microseconds(theirs), "nvgpu": microseconds(ours), "by": names}
    print(f"{len(layers)} products, {m} rows: {found}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extra", type=GemmSchedule.parse, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after")
    parser.add_argument("--commit", help="of the sources, where they are no repository")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    layers = [Layer(*sizes) for sizes in (*LAYERS, *LARGER)]
    kernels = {layer: begin(layer, worth(layer, ROWS, arguments.extra)) for layer in layers}
    count = sum(map(len, kernels.values()))
    start = time.monotonic()
    wait([future for futures in kernels.values() for future in futures.values()])
    print(f"{count} kernels in {time.monotonic() - start:.1f} s", flush=True)
    records: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    for sizes in (LAYERS, LARGER):
        group = [Layer(*each) for each in sizes]
        for m in ROWS:
            if time.monotonic() > end:
                print("out of time", flush=True)
                break
            for layer in group:
                records += measure(layer, m, kernels[layer])
            models.append(model(group, m, records, kernels))
    result = {"environment": environment(), "models": models, "records": records}
    if arguments.commit:
        result["environment"]["commit"] = arguments.commit
    name = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "-").lower()
    path = arguments.output or RESULTS / f"gemm-chain-{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
