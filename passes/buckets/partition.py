# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which candidate serves which cells: few variants, few boxes, little loss.

All functions take `times` of shape (cells of axis 0, cells of axis 1, .., candidates) and `weights`
of its shape without the last axis. The loss of a candidate at a cell is the logarithm of its time
over the best one's. Everything is deterministic: ties go to the candidate that is listed first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shapejit.passes.buckets.problem import Array

# One more variant costs a build: it has to save at least this share of the expected time.
_MIN_GAIN = 2e-4
# Boxes of a partition with several axes; beyond this a table is no longer read at a glance.
_MAX_BOXES = 64


@dataclass(frozen=True, order=True)
class Box:
    """A block of cells and the candidate that serves it.

    Attributes:
        lower: the first cell on each axis.
        upper: the last cell on each axis.
        candidate: its number.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    candidate: int

    def index(self) -> tuple[Any, ...]:
        """The cells, as an index of an array."""
        return tuple(slice(a, b + 1) for a, b in zip(self.lower, self.upper, strict=True))


def losses(times: Array) -> Array:
    """The loss of every candidate at every cell."""
    loss: Array = np.log(times / times.min(axis=-1, keepdims=True))
    return loss


def expected_loss(times: Array, weights: Array, boxes: Iterable[Box]) -> float:
    """The weighted mean loss of a partition."""
    loss = losses(times)
    total = sum(
        float((loss[(*box.index(), box.candidate)] * weights[box.index()]).sum()) for box in boxes
    )
    return total / float(weights.sum())


def select_variants(times: Array, weights: Array, limit: int) -> tuple[int, ...]:
    """Up to `limit` candidates, each chosen as the one that lowers the expected loss most.

    So a larger limit only adds candidates to what a smaller one gives.
    """
    loss = losses(times).reshape(-1, times.shape[-1])
    weight = (weights / weights.sum()).reshape(-1, 1)
    chosen: list[int] = []
    served = np.full((len(loss), 1), np.inf)
    expected = np.inf
    while len(chosen) < min(limit, loss.shape[1]):
        with_each = (np.minimum(served, loss) * weight).sum(axis=0)
        best = int(np.argmin(with_each))
        if expected - with_each[best] < _MIN_GAIN:
            break
        chosen.append(best)
        expected = float(with_each[best])
        served = np.minimum(served, loss[:, [best]])
    return tuple(chosen)


def partition(times: Array, weights: Array, max_variants: int, tolerance: float) -> list[Box]:
    """Boxes that cover every cell once, with at most `max_variants` distinct candidates.

    Neighbours that one variant serves within `tolerance` (0.02: 2 %) of the best chosen variant at
    each of their cells become one box. Of the sets of 1, 2, .. variants the one with the least
    expected loss is taken, so more variants never predict worse.
    """
    variants = select_variants(times, weights, max_variants)
    loss = losses(times)
    best: list[Box] = []
    least = np.inf
    for count in range(len(variants), 0, -1):
        # Without a limit of boxes; fewer variants only lose more.
        bound = (loss[..., list(variants[:count])].min(axis=-1) * weights).sum() / weights.sum()
        if bound >= least:
            break
        boxes = _boxes(times, weights, variants[:count], tolerance)
        if (expected := expected_loss(times, weights, boxes)) < least:
            best, least = boxes, expected
    return best


def _boxes(times: Array, weights: Array, variants: Sequence[int], tolerance: float) -> list[Box]:
    own = losses(times[..., list(variants)])
    split = _runs if times.ndim == 2 else _tree
    boxes = (
        Box(box.lower, box.upper, variants[box.candidate])
        for box in split(own, weights, np.log1p(tolerance) + 1e-12)
    )
    return merge_equal(boxes)


# One axis -----------------------------------------------------------------------------------------


def _runs(loss: Array, weights: Array, tolerance: float) -> Iterator[Box]:
    """The fewest intervals in each of which one candidate is within the tolerance everywhere.

    Going as far as any candidate allows is optimal: an interval that ends later can only start the
    next one later.
    """
    start, count = 0, len(loss)
    within = loss <= tolerance
    while start < count:
        # For each candidate, how many cells from the start on it can serve.
        rest = within[start:]
        reach = np.where(rest.all(axis=0), len(rest), np.argmin(rest, axis=0))
        length = int(reach.max())
        cells = slice(start, start + length)
        mean = (loss[cells] * weights[cells, np.newaxis]).sum(axis=0)
        best = int(np.argmin(np.where(reach == length, mean, np.inf)))
        yield Box((start,), (start + length - 1,), best)
        start += length


# Several axes -------------------------------------------------------------------------------------


def _tree(loss: Array, weights: Array, tolerance: float) -> Iterator[Box]:
    """Boxes from splitting, again and again, the one that loses most where it helps most."""
    order = itertools.count()
    whole = Box((0,) * weights.ndim, tuple(n - 1 for n in weights.shape), 0)
    waiting: list[tuple[float, int, Box]] = []
    finished: list[Box] = []

    def add(box: Box) -> None:
        block, weight = loss[box.index()], weights[box.index()][..., np.newaxis]
        flat = block.reshape(-1, block.shape[-1])
        mean = (block * weight).reshape(flat.shape).sum(axis=0)
        worst = flat.max(axis=0)
        feasible = worst <= tolerance
        best = int(np.argmin(np.where(feasible, mean, np.inf) if feasible.any() else mean))
        served = Box(box.lower, box.upper, best)
        if feasible.any():
            finished.append(served)
        else:
            heapq.heappush(waiting, (-float(mean[best]), next(order), served))

    add(whole)
    while waiting and len(finished) + len(waiting) < _MAX_BOXES:
        for half in _halves(loss, weights, heapq.heappop(waiting)[2]):
            add(half)
    yield from finished
    yield from (box for _, _, box in waiting)


def _halves(loss: Array, weights: Array, box: Box) -> tuple[Box, Box]:
    """The box cut in two such that the best candidates of both parts lose least together."""
    weighted = loss[box.index()] * weights[box.index()][..., np.newaxis]
    best: tuple[float, int, int] | None = None
    for axis in range(weighted.ndim - 1):
        others = tuple(i for i in range(weighted.ndim - 1) if i != axis)
        below = np.cumsum(weighted.sum(axis=others), axis=0)
        if len(below) < 2:
            continue
        total = below[:-1].min(axis=-1) + (below[-1] - below[:-1]).min(axis=-1)
        cell = int(np.argmin(total))
        candidate = (float(total[cell]), axis, cell)
        best = candidate if best is None or candidate < best else best
    assert best is not None, "a box of one cell is served within any tolerance"
    _, axis, cell = best
    at = box.lower[axis] + cell
    upper = tuple(at if i == axis else u for i, u in enumerate(box.upper))
    lower = tuple(at + 1 if i == axis else v for i, v in enumerate(box.lower))
    return Box(box.lower, upper, box.candidate), Box(lower, box.upper, box.candidate)


def merge_equal(boxes: Iterable[Box]) -> list[Box]:
    """The same cover with neighbours of one candidate joined where they form a box; sorted."""
    merged = sorted(boxes)
    axes = range(len(merged[0].lower)) if merged else range(0)
    changed = True
    while changed:
        changed = False
        for axis in axes:
            joined = _merged_along(merged, axis)
            changed |= len(joined) < len(merged)
            merged = joined
    return sorted(merged)


def _merged_along(boxes: Sequence[Box], axis: int) -> list[Box]:
    def others(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return box.lower[:axis] + box.lower[axis + 1 :], box.upper[:axis] + box.upper[axis + 1 :]

    merged: list[Box] = []
    for box in sorted(boxes, key=lambda b: (others(b), b.lower[axis])):
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.candidate == box.candidate
            and others(last) == others(box)
            and last.upper[axis] + 1 == box.lower[axis]
        ):
            merged[-1] = Box(last.lower, box.upper, box.candidate)
        else:
            merged.append(box)
    return merged
