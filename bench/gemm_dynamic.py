# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.ops.gemm` when every call has another M: compiles, stalls, host time.

After one `compile_gemm` of a linear layer, 1000 calls with distinct M are timed one by one until
their result is there, then the same calls again and again: with results that torch allocates, and
with ``out=``, where all that a first call could take longer for is ours. Notes say what else went
on: collections of garbage, memory that torch asked the driver for, time in which the thread had no
CPU. Host time is that of a call that finds its kernel, with the GPU idle behind.

    python bench/gemm_dynamic.py

Writes ``bench/results/gemm-dynamic-<GPU>.json``.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
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


class Timed:
    """Calls one after the other, timed until their results are there.

    Of a call there are only numbers: objects would bring a collection of garbage about.

    Attributes:
        us: microseconds until the result was there.
        host: of these, until the call returned.
        notes: what else happened, by the call's place.
    """

    def __init__(self) -> None:
        self.us, self.host = array("d"), array("d")
        self.notes: dict[int, list[str]] = {}
        self._started = 0.0

    def run(self, call: Callable[[int], Any], ms: Sequence[int]) -> Timed:
        """Makes a call with each m."""
        gc.callbacks.append(self._collected)
        for m in ms:
            self._run(call, m)
        gc.callbacks.remove(self._collected)
        return self

    def _run(self, call: Callable[[int], Any], m: int) -> None:
        torch.cuda.synchronize()
        reserved = torch.cuda.memory_reserved()
        cpu, start = time.thread_time(), time.perf_counter()
        call(m)
        returned = time.perf_counter()
        torch.cuda.synchronize()
        end, used = time.perf_counter(), time.thread_time() - cpu
        if torch.cuda.memory_reserved() != reserved:
            self._note("new memory")
        if (off := (end - start - used) * 1e6) > _OFF_US:
            self._note(f"no CPU: {off:.0f} us")
        self.us.append((end - start) * 1e6)
        self.host.append((returned - start) * 1e6)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._started = now
        else:
            took = (now - self._started) * 1e6
            self._note(f"collection of garbage {info['generation']}: {took:.0f} us")

    def _note(self, text: str) -> None:
        self.notes.setdefault(len(self.us), []).append(text)


# Clocks of threads and of the machine differ by less.
_OFF_US = 10.0


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
    series = {
        "": lambda m: ops.gemm(x[:m], weight),
        ", out=": lambda m: ops.gemm(x[:m], weight, out=everything[:m]),
        ", torch.mm": lambda m: torch.mm(x[:m], weight),
        ", torch.mm, out=": lambda m: torch.mm(x[:m], weight, out=everything[:m]),
    }
    # So that the allocator has room for every result, and the GPU runs as fast as it will.
    held = [torch.empty_like(everything) for _ in range(2)]
    del held
    for name, call in series.items():
        _warm(call)
        first, *later = (Timed().run(call, ms) for _ in range(3))
        _report(result, name, ms, first, later)
        if not name:
            variants = [_schedule(x[:m], weight) for m in ms]
            result["slowest first calls"] = _slowest(ms, first, later, variants)
    result["builds after compile"] = cubin_builder().stats().built - built
    out, small = everything[:16], x[:16]
    result["host us a call"] = {
        "gemm": host_microseconds(lambda: ops.gemm(small, weight)),
        "gemm, out=": host_microseconds(lambda: ops.gemm(small, weight, out=out)),
        "torch.mm": host_microseconds(lambda: torch.mm(small, weight)),
        "torch.mm, out=": host_microseconds(lambda: torch.mm(small, weight, out=out)),
    }


def _warm(call: Callable[[int], Any]) -> None:
    """Half a second of calls with the same few m."""
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        for m in (1, 100, 8000):
            call(m)
        torch.cuda.synchronize()


_TITLE = "first calls over the steady median of their octave"


def _report(
    result: dict[str, Any],
    name: str,
    ms: Sequence[int],
    first: Timed,
    later: Sequence[Timed],
) -> None:
    """Adds what a series of calls gave.

    Args:
        result: to add to.
        name: of the series, as it follows a title.
        ms: of the calls.
        first, later: the calls, and the same ones again and again.
    """
    pooled = [us for again in later for us in again.us]
    ratios = _over_steady(ms, first.us, pooled)
    slow = [place for place, ratio in enumerate(ratios) if ratio > 2]
    result[_TITLE + name] = {
        **_percentiles(ratios),
        "above 2": len(slow),
        "above 2, of which the host took half of it": sum(
            first.host[place] > first.us[place] / 2 for place in slow
        ),
        "above 2, with a note": sum(place in first.notes for place in slow),
    }
    repeated = [ratio for again in later for ratio in _over_steady(ms, again.us, pooled)]
    result[f"{_TITLE}{name}, the same calls again"] = {
        **_percentiles(repeated),
        "above 2, of a thousand": round(1000 * sum(r > 2 for r in repeated) / len(repeated), 1),
    }
    same = [statistics.median(us) for us in zip(*(again.us for again in later), strict=True)]
    result["first calls over the same calls again" + name] = _percentiles(
        [one / other for one, other in zip(first.us, same, strict=True)]
    )
    result[f"host us{name}"] = {
        "first calls": _percentiles(first.host),
        "the same calls again": _percentiles([us for again in later for us in again.host]),
    }


def _slowest(
    ms: Sequence[int],
    first: Timed,
    later: Sequence[Timed],
    variants: Sequence[str],
) -> list[dict[str, Any]]:
    """The first calls that took longest for their octave."""
    pooled = [us for again in later for us in again.us]
    ratios = _over_steady(ms, first.us, pooled)
    return [
        {
            "place": i,
            "m": ms[i],
            "us": round(first.us[i], 1),
            "host us": round(first.host[i], 1),
            "ratio": round(ratios[i], 2),
            "variant": variants[i],
            "notes": first.notes.get(i, [])
            + ["first of its variant"] * (variants[i] not in variants[:i]),
        }
        for i in sorted(range(len(ms)), key=lambda i: -ratios[i])[:15]
    ]


def _schedule(x: torch.Tensor, weight: torch.Tensor) -> str:
    operands = Operands(x, weight, None, None, None, None, None)
    layout, kernels = kernels_of(operands, result_shape(operands), 0)
    return str(kernels.choose_rows(layout, layout.m))


def _over_steady(
    ms: Sequence[int], values: Sequence[float], steady: Sequence[float]
) -> list[float]:
    """Times over the steady median of the octave that their m lies in.

    Args:
        ms: of the calls.
        values: their times.
        steady: times of the same calls, once or several times over.
    """
    octaves: dict[int, list[float]] = {}
    for m, value in zip(itertools.cycle(ms), steady, strict=False):
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
