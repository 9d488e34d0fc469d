# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How good predictions are: their error, their order, and what choosing by them costs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from shapejit.passes.buckets.problem import Array


@dataclass(frozen=True)
class Quality:
    """Predictions against measurements, over some shapes.

    Attributes:
        shapes: with at least one measurement.
        points: measurements.
        error: geometric mean of max(predicted / measured, measured / predicted), minus 1.
        spearman: mean over the shapes with at least three measured candidates of the rank
            correlation between predicted and measured times; NaN if there is no such shape.
        loss: geometric mean of (measured time of the predicted best / best measured), minus 1.
        worst: the largest loss of one shape.
    """

    shapes: int
    points: int
    error: float
    spearman: float
    loss: float
    worst: float

    def record(self) -> dict[str, float | None]:
        """As JSON holds it, which has no NaN."""
        return {k: None if math.isnan(v) else round(v, 5) for k, v in asdict(self).items()}

    def __str__(self) -> str:
        return (
            f"{self.points} points of {self.shapes} shapes: error {self.error:.1%}, rank "
            f"correlation {self.spearman:.3f}, loss {self.loss:.2%}, worst {self.worst:.1%}"
        )


def spearman(first: Array, second: Array) -> float:
    """Rank correlation of two vectors; ties share the mean of their ranks."""
    ranks = np.stack([_ranks(first), _ranks(second)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    norms = np.sqrt((ranks**2).sum(axis=1))
    return float(ranks[0] @ ranks[1] / norms.prod()) if norms.all() else float("nan")


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Array = (last - (counts - 1) / 2)[inverse]
    return ranks


def assess(predicted: Array, measured: Array) -> Quality:
    """The quality of predictions; both are (shapes, schedules), NaN where not measured."""
    known = ~np.isnan(measured)
    errors = np.abs(np.log(predicted[known] / measured[known]))
    correlations, losses = [], []
    for p, t, k in zip(predicted, measured, known, strict=True):
        if k.sum() >= 3:
            correlations.append(spearman(p[k], t[k]))
        if k.any():
            losses.append(np.log(t[k][np.argmin(p[k])] / t[k].min()))
    return Quality(
        shapes=len(losses),
        points=int(known.sum()),
        error=float(np.expm1(errors.mean())),
        spearman=float(np.mean(correlations)) if correlations else float("nan"),
        loss=float(np.expm1(np.mean(losses))),
        worst=float(np.expm1(np.max(losses))),
    )
