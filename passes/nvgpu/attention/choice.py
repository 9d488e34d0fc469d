# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule of an attention kernel serves which sizes, by a model of their times.

A multiprocessor holds a few CTAs, each with a tile of queries. Two things bound how fast tiles are
done: the *chain* of what a tile waits for (copies, a product, a softmax, a product, block after
block of keys), which the tiles that run side by side go through at once, and the *work* of all
tiles of a multiprocessor, which adds up::

    time = start + max(rounds * chain, tiles * work)

    rounds  tiles one after the other in the place of one CTA
    tiles   of a multiprocessor
    chain   = begin + blocks * (turn + keys * step)
    work    = place + blocks * keys * groups * rows * score

`_RATES` has the constants, fitted to measurements on an H200; see docs/cost-model.md for how gemms
are chosen, which is more elaborate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from shapejit.passes.buckets.device import Device
from shapejit.passes.buckets.grid import Cells, cut, max_cells
from shapejit.passes.buckets.partition import partition
from shapejit.passes.buckets.problem import Array
from shapejit.passes.nvgpu.attention.problem import AttentionProblem, attention_problem
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.attention.tiles import padded
from shapejit.symbolic import Expr, product

Bounds: TypeAlias = "tuple[int, int | None]"
Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"

# A kernel has few variants: each takes time to build, and its breakpoints make regions.
_MAX_VARIANTS = 3
_TOLERANCE = 0.06


@dataclass(frozen=True)
class Rates:
    """Constants of the model for one head size: microseconds.

    Attributes:
        start: of a kernel.
        begin: of a tile: until its first block is there, and from the last one to the result.
        turn: of a block of keys, whatever its size.
        step: of a key more in the block of a warpgroup.
        place: of a tile, shared by those of a multiprocessor.
        score: of a query and key, the same.
    """

    start: float
    begin: float
    turn: float
    step: float
    place: float
    score: float


def _all(*names: str) -> tuple[AttentionSchedule, ...]:
    return tuple(map(AttentionSchedule.parse, names))


#: Schedules to choose from, by the padded head size.
CANDIDATES: Final = {
    32: _all("tiles_64x64_c4", "tiles_64x128_c3", "tiles_64x64_g2_c2", "tiles_64x64_g4_c1"),
    64: _all("tiles_64x64_c3", "tiles_64x64_g2_c1", "tiles_128x64_c1"),
    128: _all("tiles_64x64_c2", "tiles_128x64_c1"),
}

_RATES: Final = {
    32: Rates(start=1.6, begin=0.7, turn=0.25, step=0.0035, place=0.05, score=3.6e-5),
    64: Rates(start=1.6, begin=0.8, turn=0.30, step=0.0040, place=0.06, score=4.5e-5),
    128: Rates(start=1.6, begin=1.0, turn=0.40, step=0.0055, place=0.08, score=8.0e-5),
}


# Times --------------------------------------------------------------------------------------------


def predict(
    schedule: AttentionSchedule,
    rates: Rates,
    device: Device,
    heads: Array,
    queries: Array,
    keys: Array,
) -> Array:
    """Microseconds of a kernel.

    Args:
        heads: in all batches.
        queries: of each.
        keys: that a query sees in the mean.
    """
    tiles = heads * np.ceil(queries / schedule.rows)
    blocks = np.maximum(np.ceil(keys / schedule.block), 1)
    rounds = np.ceil(tiles / (device.multiprocessors * schedule.ctas))
    chain = rates.begin + blocks * (rates.turn + rates.step * schedule.keys)
    each = rates.place + blocks * schedule.block * schedule.rows * rates.score
    work = np.ceil(tiles / device.multiprocessors) * each
    times: Array = rates.start + np.maximum(rounds * chain, work)
    return times


# Sizes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """What decides, as expressions of the kernel's symbols.

    Attributes:
        axes: of the buckets.
        heads, queries, keys: over the axes' values, given by number.
        is_causal: whether queries see half of the keys in the mean.
    """

    axes: tuple[Expr, ...]
    heads: Expr
    queries: Expr
    keys: Expr
    is_causal: bool

    @staticmethod
    def of(problem: AttentionProblem) -> _Sizes:
        batch, count, queries, keys, *_ = problem.space
        heads = product([batch, count])
        free = [size for size in dict.fromkeys((heads, queries, keys)) if size.constant is None]
        # The symbols, if every size depends on one of them; else the sizes themselves.
        axes = tuple(free)
        if all(len(size.symbols()) == 1 for size in free):
            axes = tuple(map(Expr.symbol, sorted({s for size in free for s in size.symbols()})))
        return _Sizes(axes, heads, queries, keys, problem.causal is not None)

    def value(self, size: Expr, grid: Sequence[Array]) -> Array:
        """A size at every point of a grid of the axes' values."""
        if size.constant is not None:
            return np.full(np.broadcast_shapes(*(each.shape for each in grid)), size.constant)
        if size in self.axes:
            return grid[self.axes.index(size)]
        [symbol] = size.symbols()
        # The arithmetic of expressions is that of Python's operators, so arrays will do.
        at: Mapping[int, Any] = {symbol: grid[self.axes.index(Expr.symbol(symbol))]}
        result: Any = size.evaluate(at)
        found: Array = result
        return found


def _cells(sizes: _Sizes, bounds: Mapping[int, Bounds]) -> list[Cells]:
    """The axes, cut where some count of tiles jumps."""
    cells = []
    for axis in sizes.axes:
        low, high = _bounds(axis, bounds)
        cells.append(cut(low, high, [(lambda size: size, 32)], max_cells(len(sizes.axes))))
    return cells


def _bounds(axis: Expr, bounds: Mapping[int, Bounds]) -> Bounds:
    symbol = axis.symbol_index
    if symbol is None:
        return 0, None
    low, high = bounds.get(symbol, (0, None))
    return max(low, 0), high


# The choice ---------------------------------------------------------------------------------------


def choose(
    kernel: Any, sizes: Mapping[int, Bounds], device: Device
) -> tuple[list[Expr], list[Bucket]]:
    """The variants of a kernel by its sizes.

    Args:
        kernel: ``shapejit.kernel`` with one attention.
        sizes: bounds of its symbols.
        device: the GPU.

    Returns:
        Axes, as expressions of the kernel's symbols, and buckets that cover all of their values.

    Raises:
        LoweringError: it cannot be lowered.
    """
    problem = attention_problem(kernel)
    width = max(padded(problem.head), padded(problem.value))
    candidates, rates = CANDIDATES[width], _RATES[width]
    decisive = _Sizes.of(problem)
    cells = _cells(decisive, sizes)
    grid = np.meshgrid(*(np.maximum(each.middles(), 1) for each in cells), indexing="ij")
    heads, queries, keys = (
        decisive.value(size, grid) for size in (decisive.heads, decisive.queries, decisive.keys)
    )
    if decisive.is_causal:
        keys = (keys + np.maximum(keys - queries, 0)) / 2
    times = np.stack(
        [predict(each, rates, device, heads, queries, keys) for each in candidates], axis=-1
    )
    weights = _weights(cells)
    boxes = partition(times, weights, _MAX_VARIANTS, _TOLERANCE)
    made = []
    for box in boxes:
        corner = tuple(int(each.starts[i]) for each, i in zip(cells, box.lower, strict=True))
        end = tuple(each.end(i) for each, i in zip(cells, box.upper, strict=True))
        reason = _reason(candidates, box.candidate, times[box.lower])
        made.append((corner, end, str(candidates[box.candidate]), reason))
    return _without_idle_axes(list(decisive.axes), made)


def _weights(cells: Sequence[Cells]) -> Array:
    """How much every cell counts: sizes are as likely in one octave as in the next."""
    weights: Array = np.ones(())
    for each in cells:
        weights = np.multiply.outer(weights, each.log_lengths())
    return weights


def _reason(candidates: Sequence[AttentionSchedule], number: int, times: Array) -> str:
    """What the model says of the first sizes of a bucket."""
    others = [i for i in np.argsort(times) if i != number]
    text = f"{times[number]:.1f} us"
    if others:
        text += f"; {candidates[others[0]]} {times[others[0]]:.1f}"
    return text


def _without_idle_axes(axes: list[Expr], buckets: list[Bucket]) -> tuple[list[Expr], list[Bucket]]:
    """The same buckets, without the axes along which none of them ends."""
    kept = [
        axis
        for axis in range(len(axes))
        if len({(lower[axis], upper[axis]) for lower, upper, _, _ in buckets}) > 1
    ]
    return [axes[axis] for axis in kept], [
        (tuple(lower[i] for i in kept), tuple(upper[i] for i in kept), variant, reason)
        for lower, upper, variant, reason in buckets
    ]
