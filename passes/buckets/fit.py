# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Fits the constants of the cost model to measurements.

``python -m shapejit.passes.buckets.fit run.json later.json`` prints how good the constants on
record are; with ``--write`` it replaces them by the fitted ones and keeps the report beside them.
Only candidates count. Every second shape, in order of (n, k, batch, m), is fitted; the others are
held out.

What is minimised, over the logarithms of the constants, is the mean squared error of the logarithm
of time, where candidates that nobody would choose count little, plus a pull towards the starting
values, which decides what the measurements leave open; then, from there, the same plus the expected
loss of a choice that is as unsure as the model's error makes it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from shapejit.passes.buckets import constants as kept
from shapejit.passes.buckets.constants import Constants, factor_key
from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.fit_common import CHOICE_WEIGHT, coordinate_search, parse, shifted
from shapejit.passes.buckets.measurements import Measurements, read
from shapejit.passes.buckets.model import CostModel
from shapejit.passes.buckets.problem import Array
from shapejit.passes.buckets.quality import Quality, assess
from shapejit.passes.nvgpu.schedule import CANDIDATES

# Candidates whose predictions differ by less than this are a coin toss.
_UNSURE = 0.02
# How fast the weight of a candidate falls with its loss.
_FOCUS = 6.0
_PULL = 1e-4
_FACTOR_PULL = 5e-3
_FIRST_STEP, _LAST_STEP = 0.05, 0.003
_ITERATIONS = 40
_DIFFERENCE = 1e-3
_LONGEST = 0.5
_SMALLEST_GAIN, _MOST_DAMPING = 1e-4, 1e4


class Fit:
    """A search for constants.

    Args:
        device: the GPU that was measured.
        measured: what to fit.
        start: the constants to start from, towards which the fit is pulled.
    """

    def __init__(self, device: Device, measured: Measurements, start: Constants) -> None:
        self._device, self._measured = device, measured
        self._sizes = measured.sizes()
        self._texts = tuple(dict.fromkeys(map(factor_key, measured.schedules)))
        self._start = self._vector(start)
        self._known = ~np.isnan(measured.times)
        best = np.nanmin(measured.times, axis=1, keepdims=True)
        self._loss = np.where(self._known, np.log(measured.times / best), 0.0)
        weight = np.where(self._known, np.exp(-_FOCUS * self._loss), 0.0)
        self._weight = np.sqrt(weight / weight.sum())
        scalars = len(Constants.names())
        self._pull = np.sqrt([_PULL] * scalars + [_FACTOR_PULL] * len(self._texts))

    def run(self) -> Constants:
        """The constants that fit best, as rounded as they are kept."""
        point = self._improve_choice(self._least_squares(self._start))
        return Constants.of_record(self._constants(point).record())

    def _least_squares(self, point: Array) -> Array:
        """Levenberg and Marquardt's method, with differences for derivatives."""
        damping, residuals = 1e-2, self._residuals(point)
        for _ in range(_ITERATIONS):
            moves = _DIFFERENCE * np.eye(len(point))
            jacobian = np.stack(
                [(self._residuals(point + move) - residuals) / _DIFFERENCE for move in moves], 1
            )
            normal, gradient = jacobian.T @ jacobian, jacobian.T @ residuals
            damped = normal + damping * np.diag(np.diag(normal))
            moved = point - np.clip(np.linalg.solve(damped, gradient), -_LONGEST, _LONGEST)
            after = self._residuals(moved)
            gain = 1 - (after @ after) / (residuals @ residuals)
            if gain > 0:
                point, residuals, damping = moved, after, damping / 3
            else:
                damping *= 4
            if 0 < gain < _SMALLEST_GAIN or damping > _MOST_DAMPING:
                break
        return point

    def _improve_choice(self, point: Array) -> Array:
        """A coordinate search that minds what choices lose, which has no useful derivatives."""
        return coordinate_search(
            point, self._cost, range(len(point)), shifted, first=_FIRST_STEP, last=_LAST_STEP
        )

    def _vector(self, constants: Constants) -> Array:
        scalars = [getattr(constants, name) for name in Constants.names()]
        factors = [constants.factors.get(text, 1.0) for text in self._texts]
        vector: Array = np.log(np.array(scalars + factors))
        return vector

    def _constants(self, point: Array) -> Constants:
        values = list(map(float, np.exp(point)))
        names = Constants.names()
        factors = dict(zip(self._texts, values[len(names) :], strict=True))
        scalars = dict(zip(names, values[: len(names)], strict=True))
        return Constants(**scalars, factors=MappingProxyType(factors))

    def _predicted(self, point: Array) -> Array:
        constants = self._constants(point)
        model = CostModel(self._device, self._measured.schedules, constants=constants)
        logarithms: Array = np.log(model.times(self._sizes))
        return logarithms

    def _residuals(self, point: Array) -> Array:
        """Weighted errors of the logarithm of time, then the pulls; one vector."""
        return self._residuals_of(point, self._predicted(point))

    def _residuals_of(self, point: Array, predicted: Array) -> Array:
        error = np.where(self._known, predicted - np.log(self._measured.times), 0.0)
        return np.concatenate([(self._weight * error).ravel(), self._pull * (point - self._start)])

    def _cost(self, point: Array) -> float:
        predicted = self._predicted(point)
        residuals = self._residuals_of(point, predicted)
        likely = np.where(self._known, predicted, np.inf)
        chance = np.exp((likely.min(axis=1, keepdims=True) - likely) / _UNSURE)
        chance /= chance.sum(axis=1, keepdims=True)
        choice = float((chance * self._loss).sum(axis=1).mean())
        return float(residuals @ residuals) + CHOICE_WEIGHT * choice


def quality(device: Device, measured: Measurements, constants: Constants) -> Quality:
    """How good the model is with these constants."""
    model = CostModel(device, measured.schedules, constants=constants)
    return assess(model.times(measured.sizes()), measured.times)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    options, device = parse(
        arguments, "fit", measured="JSON files of measured times", fitted="constants"
    )
    measured = read(*options.measurements).of(CANDIDATES)
    fitted, held_out = measured.part(0, 2), measured.part(1, 2)
    try:
        recorded = kept.constants_of(device.name)
        print(f"on record, all shapes: {quality(device, measured, recorded)}")
    except (OSError, ValueError) as error:
        print(f"on record: nothing that this model takes: {error}")
    constants = Fit(device, fitted, Constants()).run()
    report = {
        "sources": [path.name for path in options.measurements],
        "fitted": quality(device, fitted, constants),
        "held_out": quality(device, held_out, constants),
    }
    for name, value in report.items():
        print(f"{name}: {value}")
    if options.write:
        kept.write(
            device.name,
            constants,
            {
                name: value.record() if isinstance(value, Quality) else value
                for name, value in report.items()
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
