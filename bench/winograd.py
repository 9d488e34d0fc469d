# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions of float32 on a GPU: ours, by each algorithm, against cuDNN in IEEE arithmetic.

Layers of 3x3 taps from ResNet, VGG and UNets at several batches, channels last on both sides. One
program is compiled a layer and algorithm (direct, F(2x2,3x3), F(4x4,3x3)); its sizes are free.
cuDNN runs with benchmark on; of its times the least counts. Errors are against float64.

    python bench/winograd.py
    python bench/winograd.py --layers 256x256x28 --batches 1 16

Writes ``bench/results/winograd-<GPU>.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from gemm import RESULTS, environment
from torch import Tensor, nn
from torch.export import Dim

import shapejit

#: Channels, filters, rows and columns.
LAYERS = (
    (64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7),
    (64, 64, 224), (256, 256, 56), (512, 512, 28), (320, 320, 64), (512, 512, 64), (64, 128, 77),
)  # fmt: skip
ALGORITHMS: dict[str, dict[str, Any]] = {
    "direct": {"winograd": "off"},
    "F(2x2)": {"winograd": "force", "max_rel_error": 2e-6},
    "F(4x4)": {"winograd": "force", "max_rel_error": 1e-5},
    "auto": {"winograd": "auto"},
}
_ROUNDS, _CALLS = 9, 20
_MOST_CHECKED = 1 << 25  # elements of a result that are compared with float64


def layer_of(text: str) -> tuple[int, int, int]:
    """The layer that a text such as 64x128x56 names."""
    channels, filters, side = map(int, text.split("x"))
    return channels, filters, side


def time_of(call: Callable[[], Any]) -> float:
    """Microseconds of a call, of many in a row."""
    for _ in range(3):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / _CALLS


def error_of(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).norm() / exact.norm()).item()


class ChannelsLast(nn.Module):
    """A convolution of images [n, h, w, c]."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, image: Tensor) -> Tensor:
        return self.conv(image.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Layer:
    """A layer with its programs."""

    def __init__(self, sizes: tuple[int, int, int], algorithms: Sequence[str]) -> None:
        channels, filters, self.side = sizes
        self.channels, self.filters = channels, filters
        torch.manual_seed(channels + filters)
        conv = nn.Conv2d(channels, filters, 3, padding=1, bias=True)
        self.conv = conv.cuda().eval().to(memory_format=torch.channels_last)
        most = {0: ("n", 64), 1: ("h", 512), 2: ("w", 512)}
        dims = {dim: Dim(name, min=1, max=high) for dim, (name, high) in most.items()}
        example, layer = self.image(2), ChannelsLast(self.conv)
        self.programs, self.seconds = {}, {}
        for name in algorithms:
            options = ALGORITHMS[name]
            begin = time.perf_counter()
            self.programs[name] = shapejit.compile(
                layer, (example,), dynamic_shapes=({**dims},), target="cuda",
                float32_precision="ieee", **options,
            )  # fmt: skip
            self.seconds[name] = time.perf_counter() - begin

    def image(self, batch: int) -> Tensor:
        return torch.randn(batch, self.side, self.side, self.channels, device="cuda")

    def measure(self, batch: int, rng: random.Random) -> list[dict[str, Any]]:
        """Times and errors at a batch."""
        image = self.image(batch)
        last = image.permute(0, 3, 1, 2)  # torch's channels last
        calls: dict[str, Callable[[], Tensor]] = {
            "cudnn": lambda: self.conv(last).permute(0, 2, 3, 1)
        }
        for name, program in self.programs.items():
            calls[name] = lambda program=program: program(image)
        errors = {}
        if batch * self.filters * self.side**2 <= _MOST_CHECKED:
            exact = nn.functional.conv2d(
                last.double(), self.conv.weight.double(), self.conv.bias.double(), padding=1
            ).permute(0, 2, 3, 1)
            errors = {name: error_of(call(), exact) for name, call in calls.items()}
            del exact
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(_ROUNDS):
            order = list(calls)
            rng.shuffle(order)
            for name in order:
                times[name].append(time_of(calls[name]))
        return [
            {
                "channels": self.channels, "filters": self.filters, "side": self.side,
                "batch": batch, "provider": name,
                "us": round(min(each) if name == "cudnn" else statistics.median(each), 2),
                "error": errors.get(name), "compile_seconds": self.seconds.get(name),
            }
            for name, each in times.items()
        ]  # fmt: skip


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """cuDNN's time over ours, by algorithm."""
    cells: dict[tuple[int, ...], dict[str, float]] = {}
    for each in records:
        key = tuple(each[name] for name in ("channels", "filters", "side", "batch"))
        cells.setdefault(key, {})[each["provider"]] = each["us"]
    table = {}
    for name in ALGORITHMS:
        ratios = [cell["cudnn"] / cell[name] for cell in cells.values() if name in cell]
        if ratios:
            table[name] = {
                "geomean": round(statistics.geometric_mean(ratios), 3),
                "worst": round(min(ratios), 3),
                "cells": len(ratios),
            }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=layer_of, nargs="*", default=LAYERS)
    parser.add_argument("--batches", type=int, nargs="*", default=(1, 4, 16))
    parser.add_argument("--algorithms", choices=ALGORITHMS, nargs="*", default=list(ALGORITHMS))
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/winograd.py measures an NVIDIA GPU, and torch finds none: run it on one")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    gpu = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "-").lower()
    output = arguments.output or RESULTS / f"winograd-{gpu}.json"
    end, rng = time.monotonic() + arguments.seconds, random.Random(0)
    records: list[dict[str, Any]] = []
    with torch.no_grad():
        for sizes in arguments.layers:
            if time.monotonic() > end:
                print("out of time", flush=True)
                break
            layer = Layer(sizes, arguments.algorithms)
            for batch in arguments.batches:
                found = layer.measure(batch, rng)
                records += found
                text = " | ".join(f"{each['provider']} {each['us']}" for each in found)
                print(f"{sizes} x {batch}: {text}", flush=True)
            result = {"environment": environment(), "summary": summary(records), "records": records}
            output.write_text(json.dumps(result, indent=1) + "\n")
    for name, row in summary(records).items():
        print(name, row)


if __name__ == "__main__":
    main()
