# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Fits what parts of a depthwise convolution's time cost to measurements.

``python -m shapejit.passes.buckets.fit_depthwise bench/results/conv-depthwise-h200.json`` reads
what ``bench/conv.py --sets depthwise --nearest 1`` wrote and prints how good the costs on record
are; with ``--write`` it replaces them. Every second layer and size is fitted, the others are held
out.

What is minimised, over the logarithms of the costs, is the mean squared error of the logarithm of
time, where schedules that nobody would choose count little, the expected loss of a choice that is
as unsure as the model's error makes it, and a pull towards the starting values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlir.ir as ir
import numpy as np

from shapejit import ir as sir
from shapejit.passes.buckets import depthwise_rates as kept
from shapejit.passes.buckets.depthwise_rates import DepthwiseRates
from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.fit_common import (
    Judge,
    convolution_times,
    coordinate_search,
    layers_quality,
    losses_of,
    parse,
    shifted,
)
from shapejit.passes.buckets.problem import Array
from shapejit.passes.buckets.quality import Quality
from shapejit.passes.nvgpu.conv.depthwise_model import DepthwiseModel
from shapejit.passes.nvgpu.conv.depthwise_schedule import DepthwiseSchedule
from shapejit.passes.nvgpu.conv.problem import ConvProblem, conv_problem

_JUDGE, _PULL = Judge(focus=4.0, unsure=0.05), 1e-3
_FIRST_STEP, _LAST_STEP = 0.2, 0.005
_KIND = re.compile(r"depthwise (\d+)x\d+(?:/(\d+))?")


@dataclass(frozen=True)
class Layer:
    """What was measured of a layer at one size.

    Attributes:
        schedules: that were measured.
        parts: a row for each schedule, see `DepthwiseModel.parts`.
        times: of each, microseconds: the geometric mean of bursts and of what is sustained.
    """

    schedules: tuple[str, ...]
    parts: Array
    times: Array


def read(device: Device, *paths: Path) -> list[Layer]:
    """The depthwise layers of files, in order of their sizes.

    Args:
        device: that was measured.
        paths: of the files; what a later one measured again replaces what an earlier one has.

    Raises:
        ValueError: there are none.
    """
    found: dict[tuple[int, ...], dict[str, float]] = {}
    for record, time in convolution_times(paths):
        if match := _KIND.fullmatch(record["kind"]):
            key = (*record["sizes"][:4], int(match[1]), int(match[2] or 1))
            found.setdefault(key, {})[record["variant"]] = time
    if not found:
        names = ", ".join(map(str, paths))
        raise ValueError(f"there are no times of depthwise convolutions in {names}")
    return [_layer(device, key, times) for key, times in sorted(found.items())]


def _layer(device: Device, key: tuple[int, ...], times: dict[str, float]) -> Layer:
    images, height, width, channels, taps, stride = key
    pixels = (-(-height // stride), -(-width // stride))
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(_text(channels, taps, stride))
        conv: ConvProblem = conv_problem(sir.kernels(module)["k"])
        parts = [
            DepthwiseModel.of(conv, DepthwiseSchedule.parse(text)).parts(images, pixels, device)
            for text in times
        ]
    return Layer(tuple(times), np.array(parts), np.array(list(times.values())))


def _text(channels: int, taps: int, stride: int) -> str:
    """The kernel of a layer with square taps, whose window is in the middle of the padding."""
    pad = taps // 2
    lines = [f"(s{i} - 1) floordiv {stride} + 1" for i in (1, 2)]
    space = f"s0, {channels}, {lines[0]}, {lines[1]}, 1, 1, {taps}, {taps}"
    x, y = (
        f"tensor<?x?x?x{channels}xbf16, #shapejit.shape<[s0, {rows}, {columns}, {channels}]>>"
        for rows, columns in (("s1", "s2"), lines)
    )
    sizes = f"{taps}, {taps}, {channels}"
    w = f"tensor<{sizes.replace(', ', 'x')}xbf16, #shapejit.shape<[{sizes}]>>"
    return f"""
      shapejit.kernel @k symbols 3 (%x: {x}, %w: {w}) {{
        %0 = shapejit.conv over [{space}] image [s1, s2]
            stride [{stride}, {stride}] padding [({pad}, {pad}), ({pad}, {pad})]
          input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, g)> : {x})
          weight(%w at affine_map<(g, f, c, t, u) -> (t, u, g)> : {w})
          -> affine_map<(n, g, p, q, f) -> (n, p, q, g)> : {y}
        shapejit.yield %0 : {y}
      }}"""


class Fit:
    """A search for costs.

    Args:
        layers: what to fit.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._start = np.log(DepthwiseRates().values)
        self._losses = [losses_of(each) for each in layers]

    def run(self) -> DepthwiseRates:
        """The costs that fit best."""
        point = coordinate_search(
            self._start, self._cost, range(len(self._start)), shifted,
            first=_FIRST_STEP, last=_LAST_STEP,
        )  # fmt: skip
        return DepthwiseRates(*map(float, np.exp(point)))

    def _cost(self, point: Array) -> float:
        values = np.exp(point)
        total = sum(
            _JUDGE.cost(layer, losses, layer.parts @ values)
            for layer, losses in zip(self._layers, self._losses, strict=True)
        )
        pull = _PULL * ((point - self._start) ** 2).sum()
        return float(total / len(self._layers) + pull)


def quality(layers: Sequence[Layer], rates: DepthwiseRates) -> Quality:
    """How good the model is with these costs."""
    values = np.array(rates.values)
    return layers_quality(layers, lambda layer: layer.parts @ values)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    options, device = parse(
        arguments, "fit_depthwise", measured="what bench/conv.py wrote", fitted="costs"
    )
    layers = read(device, *options.measurements)
    parts = {"fitted": layers[0::2], "held_out": layers[1::2]}
    on_record = kept.depthwise_rates_of(device.name)
    print(f"on record, all layers: {quality(layers, on_record)}")
    rates = Fit(parts["fitted"]).run()
    report: dict[str, Any] = {"sources": [path.name for path in options.measurements]}
    for name, part in parts.items():
        found = quality(part, rates)
        print(f"{name}: {found}")
        report[name] = found.record()
    if options.write:
        kept.write(device.name, rates, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
