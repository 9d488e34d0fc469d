# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Fits what convolution kernels take beyond matrix products to measurements.

``python -m shapejit.passes.buckets.fit_conv bench/results/conv-h200.json ..`` reads what
``bench/conv.py`` wrote and prints how good the factors on record are; with ``--write`` it replaces
them. Layers of the set ``known`` are fitted, those of ``others`` are held out.

What is minimised, over the logarithms of the factors, is the mean squared error of the logarithm of
time, where candidates that nobody would choose count little, the expected loss of a choice that is
as unsure as the model's error makes it, and a pull of each schedule towards the others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from shapejit.passes.buckets import conv_factors as kept
from shapejit.passes.buckets.conv_factors import COMMON, ConvFactors
from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.fit_common import (
    Judge,
    convolution_times,
    coordinate_search,
    layers_quality,
    losses_of,
    parse,
)
from shapejit.passes.buckets.halo import HaloTraits, ImageShapes
from shapejit.passes.buckets.model import CostModel, fitting
from shapejit.passes.buckets.problem import Array, GemmSizes, GemmTraits
from shapejit.passes.buckets.quality import Quality
from shapejit.passes.nvgpu.conv.halo_window import HaloWindow
from shapejit.passes.nvgpu.schedule import ALL_CANDIDATES, GemmSchedule

FITTED, HELD_OUT = "known", "others"

_BLOCK = 64  # channels, to multiples of which K is filled up
_JUDGE, _PULL = Judge(focus=6.0, unsure=0.02), 2e-3
_FIRST_STEP, _LAST_STEP = 0.1, 0.01
_KIND = re.compile(r"(\d+)x\d+(?:/(\d+))?")


@dataclass(frozen=True)
class Layer:
    """What was measured of a layer at one size.

    Attributes:
        sizes: as a product.
        schedules: that were measured and are candidates.
        times: of each, microseconds: the geometric mean of bursts and of what is sustained.
    """

    sizes: GemmSizes
    schedules: tuple[GemmSchedule, ...]
    times: Array


def read(device: Device, *paths: Path) -> dict[str, list[Layer]]:
    """The layers of files by their set, those of a window with taps over whole blocks of channels.

    Args:
        device: that was measured.
        paths: of the files; what a later one measured again replaces what an earlier one has.

    Raises:
        ValueError: there are none.
    """
    found: dict[tuple[Any, ...], dict[GemmSchedule, float]] = {}
    for record, time in convolution_times(paths):
        schedule = _candidate(record["variant"])
        if schedule is not None and (traced := _window(record["kind"])):
            key = (record["group"], *record["sizes"], *traced)
            found.setdefault(key, {})[schedule] = time
    layers: dict[str, list[Layer]] = {}
    for (group, *sizes), times in found.items():
        problem = product_of(*sizes)
        usable = fitting(device, tuple(times), problem.traits)
        measured = np.array([times[schedule] for schedule in usable])
        layers.setdefault(group, []).append(Layer(problem, usable, measured))
    if not layers:
        names = ", ".join(map(str, paths))
        raise ValueError(f"there are no times of schedules of convolutions in {names}")
    return layers


def _candidate(text: str) -> GemmSchedule | None:
    try:
        schedule = GemmSchedule.parse(text)
    except ValueError:  # of a family of its own
        return None
    return schedule if schedule in ALL_CANDIDATES else None


def _window(kind: str) -> tuple[int, int] | None:
    """Taps along a side and stride of ``3x3`` or ``3x3/2``; nothing of what is a product, or has
    kernels or a type of its own."""
    match = _KIND.fullmatch(kind)
    found = (int(match[1]), int(match[2] or 1)) if match else (1, 1)
    return None if found == (1, 1) else found


def product_of(
    images: int, height: int, width: int, channels: int, filters: int, taps: int, stride: int
) -> GemmSizes:
    """A layer with square taps as a product; its window is in the middle of the padding."""
    high, wide = -(-height // stride), -(-width // stride)
    pixels, blocks = images * high * wide, -(-channels // _BLOCK)
    halo = None
    if stride == 1:
        shapes = ImageShapes(*(np.array([float(each)]) for each in (pixels, high, wide)))
        halo = HaloTraits(HaloWindow((taps, taps), (1, 1), channels), filters, False, shapes)
    depth = taps * taps * blocks * _BLOCK
    share = min(stride * stride * channels / depth, 1.0)
    return GemmSizes(pixels, filters, depth, 1, GemmTraits(lhs_share=share, halo=halo, conv=True))


def predicted(layer: Layer, device: Device, factors: ConvFactors) -> Array:
    """Microseconds of each of a layer's schedules."""
    traits = layer.sizes.traits
    model = CostModel(device, layer.schedules, traits, conv_factors=factors)
    times: Array = model.times(layer.sizes)[0]
    return times


class Fit:
    """A search for factors.

    Args:
        device: the GPU that was measured.
        layers: what to fit.
    """

    def __init__(self, device: Device, layers: Sequence[Layer]) -> None:
        self._device, self._layers = device, layers
        halo = {str(s) for each in layers for s in each.schedules if s.family == "halo"}
        self._names = [*COMMON, *sorted(halo)]
        self._losses = [losses_of(each) for each in layers]

    def run(self) -> ConvFactors:
        """The factors that fit best."""
        point = coordinate_search(
            dict.fromkeys(self._names, 1.0), self._cost, self._names, _scaled,
            first=_FIRST_STEP, last=_LAST_STEP,
        )  # fmt: skip
        return ConvFactors(MappingProxyType(point))

    def _cost(self, point: Mapping[str, float]) -> float:
        factors = ConvFactors(point)
        total = sum(
            _JUDGE.cost(layer, losses, predicted(layer, self._device, factors))
            for layer, losses in zip(self._layers, self._losses, strict=True)
        )
        own = [point[name] for name in self._names if name not in COMMON]
        return total / len(self._layers) + _PULL * float((np.log(own) ** 2).sum())


def _scaled(point: dict[str, float], name: str, step: float) -> dict[str, float]:
    """Factors one of which is larger by a part; smaller, if it is negative."""
    return {**point, name: point[name] * (1 + step if step > 0 else 1 / (1 - step))}


def quality(device: Device, layers: Sequence[Layer], factors: ConvFactors) -> Quality:
    """How good the model is with these factors."""
    return layers_quality(layers, lambda layer: predicted(layer, device, factors))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    options, device = parse(
        arguments, "fit_conv", measured="what bench/conv.py wrote", fitted="factors"
    )
    layers = read(device, *options.measurements)
    for name, part in layers.items():
        on_record = kept.conv_factors_of(device.name)
        print(f"on record, {name}: {quality(device, part, on_record)}")
    factors = Fit(device, layers[FITTED]).run()
    report = {name: quality(device, part, factors) for name, part in layers.items()}
    for name, value in report.items():
        print(f"fitted to {FITTED}, {name}: {value}")
    if options.write:
        records = {name: value.record() for name, value in report.items()}
        kept.write(
            device.name,
            factors,
            {"sources": [path.name for path in options.measurements], **records},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
