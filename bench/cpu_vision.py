# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""ResNet-50 and a UNet on the CPU at images of many sizes: shapejit beside eager PyTorch.

Both run in one process, calls shuffled; figures are ratios of medians within the run. Eager gets
channels-last models and images, its faster way.

    python bench/cpu_vision.py
    python bench/cpu_vision.py --models unet --threads 2 --rounds 9

Writes ``bench/results/cpu-vision.json``.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import shapejit

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "test"))

from model.vision import UNet, resnet50  # noqa: E402

SIZES = [(1, 64, 64), (1, 224, 224), (1, 250, 333), (2, 160, 224), (1, 480, 352), (4, 96, 130)]
"""Batch, height and width."""

MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": resnet50,
    "unet": lambda: UNet(32, "nearest"),
    "unet-bilinear": lambda: UNet(32, "bilinear"),
}


def compiled(model: nn.Module) -> tuple[shapejit.Program, float]:
    """The program, and seconds of compilation, export included."""
    dims = {
        0: Dim("batch", min=1, max=16),
        2: Dim("height", min=32, max=1024),
        3: Dim("width", min=32, max=1024),
    }
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = shapejit.compile(model, (torch.randn(2, 3, 96, 128),), dynamic_shapes=(dims,))
    return program, time.perf_counter() - start


def seconds_of(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    start = time.perf_counter()
    call(x)
    return time.perf_counter() - start


def measure(systems: dict[str, Callable[[Tensor], Tensor]], rounds: int) -> dict[str, list[float]]:
    """Median seconds of every size by system; sizes and systems are shuffled."""
    images = [torch.randn(n, 3, h, w) for n, h, w in SIZES]
    last = [x.contiguous(memory_format=torch.channels_last) for x in images]
    inputs = {name: last if name == "eager" else images for name in systems}
    samples: dict[str, list[list[float]]] = {name: [[] for _ in SIZES] for name in systems}
    order = [(i, name) for i in range(len(SIZES)) for name in systems]
    draw = random.Random(0)
    for number in range(rounds + 1):
        draw.shuffle(order)
        for i, name in order:
            seconds = seconds_of(systems[name], inputs[name][i])
            if number:  # the first round is cold
                samples[name][i].append(seconds)
    return {name: [statistics.median(each) for each in rows] for name, rows in samples.items()}


def run(name: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = MODELS[name]().eval().requires_grad_(False)
    program, seconds = compiled(model)
    eager = copy.deepcopy(model).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        x = torch.randn(1, 3, 65, 70)
        error = float((program(x) - model(x)).abs().max() / model(x).abs().max())
        found = measure({"shapejit": program, "eager": eager}, rounds)
    ratios = [a / b for a, b in zip(found["shapejit"], found["eager"], strict=True)]
    print(f"{name}: compiled in {seconds:.1f} s, differs from eager by {error:.1e}")
    for size, ours, theirs in zip(SIZES, found["shapejit"], found["eager"], strict=True):
        print(f"  {size!s:<16}{1e3 * ours:9.1f} ms{1e3 * theirs:9.1f} ms{ours / theirs:7.2f}")
    geomean = math.exp(statistics.mean(map(math.log, ratios)))
    print(f"  geometric mean of the ratios {geomean:.3f}", flush=True)
    return {"compile_seconds": seconds, "seconds": found, "geomean_of_eager": geomean}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "cpu-vision.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {name: run(name, args.rounds) for name in args.models}
    report = {"torch": torch.__version__, "threads": args.threads, "sizes": SIZES, "models": found}
    args.output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
