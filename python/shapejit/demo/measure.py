# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs one batch through both systems: how long each takes, and whether they agree."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shapejit.demo.batches import Batch, Shape

Embed = Callable[[Tensor, Tensor], Tensor]

MIN_COSINE = 0.99999
"""A row whose cosine with PyTorch's is lower counts as wrong."""


@dataclass(frozen=True)
class Timing:
    """Wall time of calls at one shape, in milliseconds; ``later`` may be empty."""

    first: float
    later: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Of the later calls if there were any."""
        return statistics.median(self.later or (self.first,))


@dataclass(frozen=True)
class Result:
    """What was seen at one shape; ``cosines`` has a value a row of the batch."""

    shape: Shape
    texts: tuple[int, ...]
    ours: Timing
    eager: Timing
    cosines: tuple[float, ...]

    @property
    def worst_cosine(self) -> float:
        return min(self.cosines)

    @property
    def speedup(self) -> float:
        """How many times faster than PyTorch eager, by medians."""
        return self.eager.median / self.ours.median


@dataclass(frozen=True)
class Summary:
    """The demo's verdict over all shapes.

    ``longest_stall_ms`` is by how much the first call at a shape took longer than later ones; None
    if no shape had any.
    """

    shapes: int
    rows: int
    compiles: int
    compile_seconds: float
    worst_cosine: float
    wrong_rows: int
    geomean_speedup: float
    longest_stall_ms: float | None

    @property
    def passed(self) -> bool:
        return self.compiles == 1 and self.wrong_rows == 0


def time_calls(call: Callable[[], Tensor], budget_ms: float) -> tuple[Tensor, Timing]:
    """Calls once, then one to nine times more within about ``budget_ms``.

    Only the first call is made if it took five times the budget: a long call is timed well enough
    by itself.

    Returns:
        The first call's result, and the times.
    """
    start = time.perf_counter()
    result = call()
    first = (time.perf_counter() - start) * 1e3
    if first >= 5 * budget_ms:
        return result, Timing(first)
    later = []
    for _ in range(min(max(int(budget_ms / first), 1), 9)):
        start = time.perf_counter()
        call()
        later.append((time.perf_counter() - start) * 1e3)
    return result, Timing(first, tuple(later))


def row_cosines(ours: Tensor, reference: Tensor) -> tuple[float, ...]:
    """Cosine of each row of ``[batch, width]`` with the reference's, in float64.

    A row with a value that is not finite gives -1.
    """
    cosine = torch.nn.functional.cosine_similarity(ours.double(), reference.double(), dim=-1)
    values: list[float] = torch.nan_to_num(cosine, nan=-1.0).tolist()
    return tuple(values)


def measure(batch: Batch, ours: Embed, eager: Embed, budget_ms: float) -> Result:
    """Runs a batch through both. The shape must be new to ``ours`` for its first call to count."""
    actual, our_timing = time_calls(lambda: ours(batch.ids, batch.mask), budget_ms)
    expected, eager_timing = time_calls(lambda: eager(batch.ids, batch.mask), budget_ms)
    if actual.shape != expected.shape:
        raise SystemExit(
            f"shape {batch.shape}: the result is {tuple(actual.shape)}, "
            f"PyTorch's is {tuple(expected.shape)}"
        )
    cosines = row_cosines(actual, expected)
    return Result(batch.shape, batch.texts, our_timing, eager_timing, cosines)


def summarize(results: Iterable[Result], compiles: int, compile_seconds: float) -> Summary:
    """Draws the verdict from at least one result."""
    results = list(results)
    cosines = [cosine for result in results for cosine in result.cosines]
    stalls = [r.ours.first - r.ours.median for r in results if r.ours.later]
    return Summary(
        shapes=len({result.shape for result in results}),
        rows=len(cosines),
        compiles=compiles,
        compile_seconds=compile_seconds,
        worst_cosine=min(cosines),
        wrong_rows=sum(cosine < MIN_COSINE for cosine in cosines),
        geomean_speedup=math.exp(statistics.fmean(math.log(r.speedup) for r in results)),
        longest_stall_ms=max(stalls, default=None),
    )
