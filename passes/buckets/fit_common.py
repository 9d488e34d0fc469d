# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the fits of the cost models share: options, a search, and how layers are judged."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from shapejit.passes.buckets.device import DEVICES, Device
from shapejit.passes.buckets.problem import Array
from shapejit.passes.buckets.quality import Quality, assess

CHOICE_WEIGHT = 0.5
"""What a choice loses counts so much, beside the errors of times."""

_LEAST_GAIN = 1e-3  # of a round of steps, as part of the cost; with less the steps are halved
# Of other providers, which are no schedules under a constant graph.
_OTHER_FORM = "by value"

Point = TypeVar("Point")
Coordinate = TypeVar("Coordinate")


def parse(
    arguments: Sequence[str] | None, module: str, *, measured: str, fitted: str
) -> tuple[argparse.Namespace, Device]:
    """The options of a fit's command line, and the device that they name.

    Args:
        arguments: those of the command; None for the process's own.
        module: the fit's name among the modules here.
        measured: what is read, in words.
        fitted: what is made of it, in words.
    """
    parser = argparse.ArgumentParser(prog=f"python -m shapejit.passes.buckets.{module}")
    parser.add_argument("measurements", type=Path, nargs="+", help=f"{measured}, the latest last")
    parser.add_argument("--device", choices=[d.name for d in DEVICES], default=DEVICES[0].name)
    parser.add_argument("--write", action="store_true", help=f"replace the {fitted} on record")
    options = parser.parse_args(arguments)
    return options, next(d for d in DEVICES if d.name == options.device)


def coordinate_search(
    point: Point,
    cost: Callable[[Point], float],
    coordinates: Sequence[Coordinate],
    moved: Callable[[Point, Coordinate, float], Point],
    *,
    first: float,
    last: float,
) -> Point:
    """The point of least cost that steps along one coordinate at a time lead to.

    It needs no derivatives: what choices lose has no useful ones.

    Args:
        point: to start from.
        cost: of a point.
        coordinates: along which there are steps.
        moved: a point one step further along a coordinate; back, if the step is negative.
        first, last: lengths of steps; they are halved in between.
    """
    step, least = first, cost(point)
    while step > last:
        before = least
        for coordinate, change in itertools.product(coordinates, (step, -step)):
            other = moved(point, coordinate, change)
            if (found := cost(other)) < least:
                point, least = other, found
        if before - least < _LEAST_GAIN * least:
            step /= 2
    return point


def shifted(point: Array, number: int, change: float) -> Array:
    """A vector one of whose numbers has changed."""
    other = point.copy()
    other[number] += change
    return other


def convolution_times(paths: Sequence[Path]) -> Iterator[tuple[dict[str, Any], float]]:
    """The records of `bench/conv.py` of kernels of ours under a constant graph, with their times in
    microseconds: the geometric mean of bursts and of what is sustained."""
    for record in (r for path in paths for r in json.loads(path.read_text())["records"]):
        if record["variant"] and _OTHER_FORM not in record["provider"]:
            yield record, float(np.sqrt(record["burst_us"] * record["sustained_us"]))


class Measured(Protocol):
    """A layer at one size: the schedules that were measured, and their times."""

    @property
    def schedules(self) -> Sequence[Any]: ...
    @property
    def times(self) -> Array: ...


def losses_of(layer: Measured) -> Array:
    """Logarithms of the times of schedules over the best one's."""
    losses: Array = np.log(layer.times / layer.times.min())
    return losses


@dataclass(frozen=True)
class Judge:
    """How wrong predictions for a layer are.

    Attributes:
        focus: how fast the weight of a schedule's error falls with its loss.
        unsure: predictions whose logarithms differ by less are a coin toss.
    """

    focus: float
    unsure: float

    def cost(self, layer: Measured, losses: Array, predicted: Array) -> float:
        """Weighted errors of the logarithm of time, and what a choice by the predictions loses.

        Args:
            layer: which was measured.
            losses: see `losses_of`.
            predicted: times of its schedules.
        """
        weight = np.exp(-self.focus * losses)
        error = (weight * np.log(predicted / layer.times) ** 2).sum() / weight.sum()
        chance = (predicted.min() / predicted) ** (1 / self.unsure)
        return float(error + CHOICE_WEIGHT * (chance * losses).sum() / chance.sum())


Layer = TypeVar("Layer", bound=Measured)


def layers_quality(layers: Sequence[Layer], predict: Callable[[Layer], Array]) -> Quality:
    """How good predictions for layers are.

    Args:
        layers: that were measured.
        predict: times of a layer's schedules.
    """
    columns = {s: i for i, s in enumerate(dict.fromkeys(s for e in layers for s in e.schedules))}
    guess = np.full((len(layers), len(columns)), np.nan)
    times = guess.copy()
    for row, layer in enumerate(layers):
        places = [columns[schedule] for schedule in layer.schedules]
        guess[row, places] = predict(layer)
        times[row, places] = layer.times
    return assess(guess, times)
