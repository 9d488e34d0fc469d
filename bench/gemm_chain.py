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
from pathlib import Path
from typing import Any

import torch
from gemm import Shape, environment, shape_of
from torch import Tensor

from shapejit.cache.cubins import CachedCubin, CubinRecipe, unit_of
from shapejit.codegen.builder import cubin_builder
from shapejit.codegen.ptxas import find_ptxas
from shapejit.gpu.driver import driver
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.ops.gemm_kernels import LOWERING, problem_of_kind
from shapejit.ops.gemm_layout import GemmLayout, gemm_layout
from shapejit.ops.gemm_operands import Operands, product, result_shape
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


class Chain:
    """Operands of a shape: one input, some weights, two results by turns."""

    def __init__(self, shape: Shape) -> None:
        m, n, k = shape
        generator = torch.Generator("cuda").manual_seed(m * 31 + n * 7 + k)

        def noise(*sizes: int) -> Tensor:
            return torch.randn(*sizes, device="cuda", generator=generator).bfloat16()

        self.shape = shape
        self.x, self.bias = noise(m, k), noise(n)
        self.weights = [noise(n, k) for _ in range(_WEIGHTS)]
        self.results = [torch.empty(m, n, device="cuda").bfloat16() for _ in range(2)]
        operands = Operands(self.x, self.weights[0].mT, self.bias, None, None, None, None)
        self.layout: GemmLayout = gemm_layout(product(operands, result_shape(operands), 0))

    def addresses(self, number: int) -> list[int]:
        weight, result = self.weights[number % _WEIGHTS], self.results[number % 2]
        return [tensor.data_ptr() for tensor in (self.x, weight, self.bias, result)]

    def error(self) -> float:
        """Of the last launch's result."""
        last = _LAUNCHES - 1
        expected = self.x.float() @ self.weights[last % _WEIGHTS].float().mT + self.bias.float()
        result = self.results[last % 2].float()
        return float((result - expected).norm() / expected.norm())


def of_cublas(chain: Chain) -> Callable[[], None]:
    """Launches of torch's products."""

    def launch() -> None:
        for number in range(_LAUNCHES):
            weight, result = chain.weights[number % _WEIGHTS], chain.results[number % 2]
            torch.addmm(chain.bias, chain.x, weight.mT, out=result)

    return launch


def of_kernel(chain: Chain, cubin: CachedCubin) -> Callable[[], None]:
    """Launches of a kernel of ours, each with its entry in a block."""
    kernel = Kernel(cubin.interface, Module(cubin.cubin, driver().device(0)))
    values = [Expr.parse(text).evaluate(chain.layout.symbols) for text in cubin.interface.values]
    size = -(-cubin.interface.block_bytes // _ALIGNMENT) * _ALIGNMENT
    host = torch.zeros(_LAUNCHES * size + _ALIGNMENT, dtype=torch.uint8)
    host = host[-host.data_ptr() % _ALIGNMENT :][: _LAUNCHES * size]
    scratch = torch.zeros(max(kernel.workspace_bytes, 1), dtype=torch.uint8, device="cuda")
    workspace = scratch.data_ptr() if kernel.workspace_bytes else None
    for number in range(_LAUNCHES):
        entry = host.data_ptr() + number * size
        kernel.fill_block(chain.addresses(number), values, entry, workspace)
    block = host.cuda()

    def launch() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        assert scratch is not None
        for number in range(_LAUNCHES):
            kernel.launch_block(block.data_ptr() + number * size, stream)

    return launch


def microseconds(launch: Callable[[], None]) -> float:
    """Of one launch: the median over replays of a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        launch()
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


def build(schedules: Sequence[GemmSchedule]) -> dict[str, CachedCubin]:
    """The kernels by schedule; what cannot be built is reported and left out."""
    kind = Chain((8, 64, 64)).layout.kind
    problem, tool, arch = problem_of_kind(kind), find_ptxas(), driver().device(0).arch
    futures = {}
    for schedule in schedules:
        recipe = CubinRecipe(
            schedule=str(schedule),
            arch=arch,
            parameters="block",
            programmatic=True,
            constant_weights=True,
        )
        unit = unit_of(problem, LOWERING, recipe, tool)
        futures[str(schedule)] = cubin_builder().build_async(unit, urgent=True)
    found = {}
    for name, future in futures.items():
        if (error := future.exception()) is None:
            found[name] = future.result()
        else:
            print(f"{name}: {str(error)[:200]}", flush=True)
    return found


def measure(shape: Shape, kernels: dict[str, CachedCubin]) -> list[dict[str, Any]]:
    """A record for cuBLAS and for each kernel that is right."""
    chain = Chain(shape)
    m, n, k = shape
    base = {"m": m, "n": n, "k": k, "batch": 1, "dtype": "bf16"}
    us = microseconds(of_cublas(chain))
    records: list[dict[str, Any]] = [{**base, "provider": "cublas", "schedule": None, "us": us}]
    for name, cubin in kernels.items():
        for result in chain.results:
            result.fill_(float("nan"))
        us = microseconds(of_kernel(chain, cubin))
        if not (error := chain.error()) < 1e-2:
            print(f"{shape} {name}: WRONG, relative error {error:.2e}", flush=True)
            continue
        records.append({**base, "provider": "nvgpu, chain", "schedule": name, "us": us})
    best = sorted((r["us"], r["schedule"]) for r in records[1:])[:5]
    print(f"{shape}: cublas {records[0]['us']:.2f} | {best}", flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=shape_of, nargs="*", help="these shapes, as m,n,k")
    parser.add_argument("--extra", type=GemmSchedule.parse, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after")
    parser.add_argument("--commit", help="of the sources, where they are no repository")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    cells = arguments.cells or [(m, n, k) for n, k in (*LAYERS, *LARGER) for m in ROWS]
    kernels = build(worth_trying([*CANDIDATES, *arguments.extra], 1))
    records: list[dict[str, Any]] = []
    for shape in cells:
        if time.monotonic() > end:
            print("out of time", flush=True)
            break
        records += measure(shape, kernels)
    result = {"environment": environment(), "records": records}
    if arguments.commit:
        result["environment"]["commit"] = arguments.commit
    name = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "-").lower()
    path = arguments.output or RESULTS / f"gemm-chain-{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
