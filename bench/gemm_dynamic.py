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
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gemm import environment

from shapejit import cache, ops
from shapejit.codegen.builder import cubin_builder

RESULTS = Path(__file__).parent / "results"


def timed(function: Callable[[], Any]) -> float:
    """Microseconds until the result is there."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6


def compile_seconds(x: torch.Tensor, w: torch.Tensor) -> dict[str, Any]:
    """Seconds of `compile_gemm` with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        cache.configure(disk=folder)
        start = time.perf_counter()
        variants = ops.compile_gemm(x, w.mT)
        return {"cold_s": round(time.perf_counter() - start, 3), "variants": variants}


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
    arguments = parser.parse_args()
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(8192, arguments.k, device="cuda", generator=generator).bfloat16()
    w = torch.randn(arguments.n, arguments.k, device="cuda", generator=generator).bfloat16()
    result: dict[str, Any] = {"environment": environment(), "n": arguments.n, "k": arguments.k}
    if arguments.commit:
        result["environment"]["commit"] = arguments.commit
    result["compile"] = compile_seconds(x, w)
    built = cubin_builder().stats().built
    ms = random.Random(0).sample(range(1, 8193), arguments.calls)
    for m in (1, 100, 8000):
        timed(lambda m=m: ops.gemm(x[:m], w.mT))
    first = [timed(lambda m=m: ops.gemm(x[:m], w.mT)) for m in ms]
    again = [timed(lambda m=m: ops.gemm(x[:m], w.mT)) for m in ms]
    steady: dict[int, list[float]] = {}
    for m, value in zip(ms, again, strict=True):
        steady.setdefault(m.bit_length(), []).append(value)
    medians = {octave: statistics.median(values) for octave, values in steady.items()}
    ratios = sorted(value / medians[m.bit_length()] for m, value in zip(ms, first, strict=True))
    result["first calls over the steady median of their octave"] = {
        "p50": round(statistics.median(ratios), 3),
        "p99": round(ratios[int(0.99 * len(ratios))], 3),
        "p99.9": round(ratios[min(len(ratios) - 1, int(0.999 * len(ratios)))], 3),
        "max": round(ratios[-1], 3),
    }
    result["builds after compile"] = cubin_builder().stats().built - built
    out = torch.empty(16, arguments.n, device="cuda", dtype=torch.bfloat16)
    small, weight = x[:16], w.mT
    result["host us a call"] = {
        "gemm": host_microseconds(lambda: ops.gemm(small, weight)),
        "gemm, out=": host_microseconds(lambda: ops.gemm(small, weight, out=out)),
        "torch.mm": host_microseconds(lambda: torch.mm(small, weight)),
        "torch.mm, out=": host_microseconds(lambda: torch.mm(small, weight, out=out)),
    }
    name = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "-").lower()
    path = arguments.output or RESULTS / f"gemm-dynamic-{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
