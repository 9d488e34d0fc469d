# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs one batch through all systems: how long each takes, and whether ours is right."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shapejit.demo.batches import Batch, Shape

Embed = Callable[[Tensor, Tensor], Tensor]

OURS, EAGER, COMPILED = "shapejit", "PyTorch eager", "torch.compile"

MIN_COSINE = {torch.float32: 0.99999, torch.bfloat16: 0.999}
"""By the type that is computed in: a row whose cosine with the reference is lower is wrong."""

MAX_ERROR_RATIO = 1.2
"""How much farther than PyTorch's in the same type our results may be from the reference."""

_MOST_LATER = 9


@dataclass(frozen=True)
class Timing:
    """Wall time of calls at one shape, in milliseconds; ``later`` may be empty."""

    first: float
    later: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Of the later calls if there were any."""
        return statistics.median(self.later or (self.first,))

    @property
    def stall(self) -> float | None:
        """By how much the first call took longer than later ones, if there were any."""
        return self.first - self.median if self.later else None


@dataclass(frozen=True)
class Result:
    """What was seen at one shape.

    Attributes:
        timings: by system, ours first.
        cosines: a value a row of the batch: ours with the reference's.
        eager_cosines: the same of PyTorch in our type; empty where it is the reference itself.
    """

    shape: Shape
    texts: tuple[int, ...]
    timings: Mapping[str, Timing]
    cosines: tuple[float, ...]
    eager_cosines: tuple[float, ...] = ()

    @property
    def worst_cosine(self) -> float:
        return min(self.cosines)

    def speedup(self, peer: str = EAGER) -> float:
        """How many times faster than another system ours is, by medians."""
        return self.timings[peer].median / self.timings[OURS].median


@dataclass(frozen=True)
class Summary:
    """The demo's verdict over all shapes.

    Attributes:
        ready_seconds: by system, until it could serve: the compile, or the first call of all.
        min_cosine: what rows were held to.
        error_ratio: distance of our results from the reference over that of PyTorch's in the same
            type, over all rows; None if PyTorch in that type is the reference.
        speedups: by peer, the geometric mean over the shapes.
        longest_stall_ms: by system, by how much the first call at a shape took longer than later
            ones; empty if no shape had any.
    """

    shapes: int
    rows: int
    compiles: int
    ready_seconds: Mapping[str, float]
    min_cosine: float
    worst_cosine: float
    wrong_rows: int
    error_ratio: float | None
    speedups: Mapping[str, float]
    longest_stall_ms: Mapping[str, float]

    @property
    def passed(self) -> bool:
        precise = self.error_ratio is None or self.error_ratio <= MAX_ERROR_RATIO
        return self.compiles == 1 and self.wrong_rows == 0 and precise


@dataclass(frozen=True)
class Contest:
    """The systems that run every batch, on one device in one type.

    Attributes:
        systems: by name, ours first, on `device`.
        reference: what results are compared with; PyTorch itself, or None for `EAGER`.
        ready_seconds: see `Summary`; filled by `get_ready`.
    """

    device: torch.device
    dtype: torch.dtype
    systems: Mapping[str, Embed]
    reference: Embed | None = None
    ready_seconds: dict[str, float] = field(default_factory=dict)

    def get_ready(self, batch: Batch) -> None:
        """Calls PyTorch's systems once: it sets itself up then, which is no row's fault."""
        ids, mask = batch.ids.to(self.device), batch.mask.to(self.device)
        for name, system in self.systems.items():
            if name != OURS:
                start = time.perf_counter()
                system(ids, mask)
                self._synchronize()
                self.ready_seconds[name] = time.perf_counter() - start

    def measure(self, batch: Batch, budget_ms: float) -> Result:
        """Runs a batch. Its shape must be new to the systems for their first calls to count."""
        ids, mask = batch.ids.to(self.device), batch.mask.to(self.device)
        results: dict[str, Tensor] = {}
        timings: dict[str, Timing] = {}
        for name, system in self.systems.items():

            def call(system: Embed = system) -> Tensor:
                result = system(ids, mask)
                self._synchronize()
                return result

            results[name], timings[name] = time_calls(call, budget_ms)
        exact = results[EAGER] if self.reference is None else self.reference(ids, mask)
        if results[OURS].shape != exact.shape:
            raise SystemExit(
                f"shape {batch.shape}: the result is {tuple(results[OURS].shape)}, "
                f"PyTorch's is {tuple(exact.shape)}"
            )
        cosines = row_cosines(results[OURS], exact)
        eagers = () if self.reference is None else row_cosines(results[EAGER], exact)
        return Result(batch.shape, batch.texts, timings, cosines, eagers)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def time_calls(call: Callable[[], Tensor], budget_ms: float) -> tuple[Tensor, Timing]:
    """Calls once, then one to nine times more within about ``budget_ms``; not at all if that is 0.

    Returns:
        The first call's result, and the times.
    """
    start = time.perf_counter()
    result = call()
    first = (time.perf_counter() - start) * 1e3
    later: list[float] = []
    while budget_ms > 0 and len(later) < _MOST_LATER:
        start = time.perf_counter()
        call()
        later.append((time.perf_counter() - start) * 1e3)
        if sum(later) + later[-1] > budget_ms:
            break
    return result, Timing(first, tuple(later))


def row_cosines(ours: Tensor, reference: Tensor) -> tuple[float, ...]:
    """Cosine of each row of ``[batch, width]`` with the reference's, in float64.

    A row with a value that is not finite gives -1.
    """
    cosine = torch.nn.functional.cosine_similarity(ours.double(), reference.double(), dim=-1)
    values: list[float] = torch.nan_to_num(cosine, nan=-1.0).tolist()
    return tuple(values)


def error_ratio(results: Iterable[Result]) -> float | None:
    """Root of the summed squared distances of our unit vectors over that of PyTorch's."""
    ours = eager = 0.0
    for result in results:
        # The squared distance of two unit vectors is 2 - 2 * cosine.
        ours += sum(max(1 - cosine, 0.0) for cosine in result.cosines)
        eager += sum(max(1 - cosine, 0.0) for cosine in result.eager_cosines)
    return math.sqrt(ours / eager) if eager > 0 else None


def summarize(
    results: Iterable[Result],
    compiles: int,
    ready_seconds: Mapping[str, float],
    min_cosine: float = MIN_COSINE[torch.float32],
) -> Summary:
    """Draws the verdict from at least one result."""
    results = list(results)
    cosines = [cosine for result in results for cosine in result.cosines]
    names = list(results[0].timings)
    stalls = {name: _longest_stall(results, name) for name in names}
    return Summary(
        shapes=len({result.shape for result in results}),
        rows=len(cosines),
        compiles=compiles,
        ready_seconds=dict(ready_seconds),
        min_cosine=min_cosine,
        worst_cosine=min(cosines),
        wrong_rows=sum(cosine < min_cosine for cosine in cosines),
        error_ratio=error_ratio(results),
        speedups={
            name: math.exp(statistics.fmean(math.log(r.speedup(name)) for r in results))
            for name in names
            if name != OURS
        },
        longest_stall_ms={name: stall for name, stall in stalls.items() if stall is not None},
    )


def _longest_stall(results: Iterable[Result], name: str) -> float | None:
    stalls = (result.timings[name].stall for result in results)
    return max((stall for stall in stalls if stall is not None), default=None)
