# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.ops.gemm` when every call has another M: compiles, stalls, host time.

After one `compile_gemm` of a linear layer, 1000 calls with distinct M are timed one by one, then
the same calls again. Host time is that of a call that finds its kernel, with the GPU idle behind.

    python bench/gemm_dynamic.py

Writes ``bench/results/gemm-dynamic-<GPU>.json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from gemm import environment

from shapejit import cache, ops
from shapejit.codegen.builder import cubin_builder
from shapejit.ops.gemm import kernels_of
from shapejit.ops.gemm_operands import Operands, result_shape

RESULTS = Path(__file__).parent / "results"


def timed(function: Callable[[], Any]) -> float:
    """Microseconds until the result is there."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6


def compile_seconds(x: torch.Tensor, w: torch.Tensor, folder: str) -> dict[str, Any]:
    """Seconds of `compile_gemm` with an empty cache, and of new processes that find all in it."""
    cache.configure(disk=folder)
    start = time.perf_counter()
    variants = ops.compile_gemm(x, w.mT)
    found = {"cold_s": round(time.perf_counter() - start, 3)}
    sizes = ["--n", str(w.shape[0]), "--k", str(w.shape[1])]
    later = [_from_disk(folder, sizes) for _ in range(3)]
    found["from disk, in a new process_s"] = statistics.median(later)
    return {**found, "variants": variants}


def _from_disk(folder: str, sizes: list[str]) -> float:
    """Seconds of `compile_gemm` in a new process that has used its GPU, but not this package."""
    command = [sys.executable, __file__, *sizes, "--from-disk", folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def from_disk(n: int, k: int, folder: str) -> None:
    """What a process of `_from_disk` does."""
    x, w = (torch.zeros(rows, k, device="cuda").bfloat16() for rows in (8, n))
    torch.cuda.synchronize()
    cache.configure(disk=folder)
    start = time.perf_counter()
    ops.compile_gemm(x, w.mT)
    seconds = time.perf_counter() - start
    assert not cubin_builder().stats().built
    print(round(seconds, 4))


def host_microseconds(call: Callable[[], Any]) -> float:
    """Of a call, median over batches that the GPU's queue has room for."""
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            call()
        times.append((time.perf_counter() - start) * 1e4)
    return round(statistics.median(times), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--k", type=int, default=4096)
    parser.add_argument("--commit", help="of the sources, where they are no repository")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--from-disk", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.from_disk:
        from_disk(arguments.n, arguments.k, arguments.from_disk)
    else:
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Measures all, and writes it."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(8192, arguments.k, device="cuda", generator=generator).bfloat16()
    w = torch.randn(arguments.n, arguments.k, device="cuda", generator=generator).bfloat16()
    result: dict[str, Any] = {"environment": environment(), "n": arguments.n, "k": arguments.k}
    if arguments.commit:
        result["environment"]["commit"] = arguments.commit
    with tempfile.TemporaryDirectory() as folder:
        result["compile"] = compile_seconds(x, w, folder)
        _measure(result, x, w, arguments.calls)
    name = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "-").lower()
    path = arguments.output or RESULTS / f"gemm-dynamic-{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _measure(result: dict[str, Any], x: torch.Tensor, w: torch.Tensor, calls: int) -> None:
    built = cubin_builder().stats().built
    ms = random.Random(0).sample(range(1, 8193), calls)
    weight = w.mT
    everything = torch.empty(8192, w.shape[0], device="cuda", dtype=torch.bfloat16)
    del everything  # so that the allocator has room for every result
    for m in (1, 100, 8000):
        timed(lambda m=m: ops.gemm(x[:m], weight))
    collections: list[float] = []
    gc.callbacks.append(lambda *_: collections.append(time.perf_counter()))
    begins, first, reserved = [], [], []
    for m in ms:
        begins.append(time.perf_counter())
        first.append(timed(lambda m=m: ops.gemm(x[:m], weight)))
        reserved.append(torch.cuda.memory_reserved())
    begins.append(time.perf_counter())
    gc.callbacks.pop()
    slow = []
    seen: set[str] = set()
    for i, m in enumerate(ms):
        name = _schedule(x[:m], weight)
        notes = ["first of its variant"] * (name not in seen)
        notes += ["new memory"] * (reserved[i] != reserved[max(i - 1, 0)])
        collected = any(begins[i] <= at < begins[i + 1] for at in collections)
        notes += ["collection of garbage"] * collected
        seen.add(name)
        slow.append((m, name, notes))
    again = [timed(lambda m=m: ops.gemm(x[:m], weight)) for m in ms]
    theirs, theirs_again = (
        [timed(lambda m=m: torch.mm(x[:m], weight)) for m in ms] for _ in range(2)
    )
    title = "first calls over the steady median of their octave"
    ratios = _over_steady(ms, first, again)
    result[title] = _percentiles(ratios)
    result[title + ", the same calls again"] = _percentiles(_over_steady(ms, again, again))
    result[title + ", torch.mm"] = _percentiles(_over_steady(ms, theirs, theirs_again))
    order = sorted(range(len(ms)), key=lambda i: -ratios[i])[:15]
    result["slowest first calls"] = [
        {"m": slow[i][0], "us": round(first[i], 1), "ratio": round(ratios[i], 2),
         "variant": slow[i][1], "notes": slow[i][2]}
        for i in order
    ]  # fmt: skip
    result["builds after compile"] = cubin_builder().stats().built - built
    out = torch.empty(16, w.shape[0], device="cuda", dtype=torch.bfloat16)
    small = x[:16]
    result["host us a call"] = {
        "gemm": host_microseconds(lambda: ops.gemm(small, weight)),
        "gemm, out=": host_microseconds(lambda: ops.gemm(small, weight, out=out)),
        "torch.mm": host_microseconds(lambda: torch.mm(small, weight)),
        "torch.mm, out=": host_microseconds(lambda: torch.mm(small, weight, out=out)),
    }


def _schedule(x: torch.Tensor, weight: torch.Tensor) -> str:
    operands = Operands(x, weight, None, None, None, None, None)
    layout, kernels = kernels_of(operands, result_shape(operands), 0)
    return str(kernels.choose_rows(layout, layout.m))


def _over_steady(
    ms: Sequence[int], values: Sequence[float], steady: Sequence[float]
) -> list[float]:
    """Times over the steady median of the octave that their m lies in."""
    octaves: dict[int, list[float]] = {}
    for m, value in zip(ms, steady, strict=True):
        octaves.setdefault(m.bit_length(), []).append(value)
    medians = {octave: statistics.median(found) for octave, found in octaves.items()}
    return [value / medians[m.bit_length()] for m, value in zip(ms, values, strict=True)]


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    """By nearest rank."""
    ordered = sorted(values)
    return {
        name: round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
    }


if __name__ == "__main__":
    main()
