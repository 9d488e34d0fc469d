# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Laws of partitions: every cell once, bounded loss, no regret from more variants or regions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shapejit.passes.buckets.grid import FAR, Cells, SizeOnAxis, cut, grid_sizes, tile_lengths
from shapejit.passes.buckets.partition import (
    Box,
    expected_loss,
    losses,
    merge_equal,
    partition,
    select_variants,
)
from shapejit.passes.buckets.problem import Array, GemmTraits
from shapejit.passes.buckets.regions import IndependentSizes, KernelTable, align_regions
from shapejit.passes.nvgpu.schedule import GemmSchedule

TOLERANCE = 0.02


@st.composite
def grids(draw: st.DrawFn, min_axes: int = 0, max_axes: int = 3) -> tuple[Array, Array]:
    """Times of some candidates over cells, and weights of the cells."""
    rank = draw(st.integers(min_axes, max_axes))
    longest = {0: 1, 1: 30, 2: 7, 3: 4}[rank]
    shape = tuple(draw(st.integers(1, longest)) for _ in range(rank))
    candidates = draw(st.integers(1, 6))
    # Few distinct values, so that ties and losses within the tolerance are common.
    values = st.sampled_from([1.0, 1.01, 1.015, 1.05, 1.2, 2.0, 3.0])
    times = draw(hnp.arrays(np.float64, (*shape, candidates), elements=values))
    weights = draw(hnp.arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.5, 1.0, 8.0])))
    return times, weights + 1e-3


def assert_covers(boxes: Sequence[Box], shape: tuple[int, ...]) -> None:
    """Every cell is in exactly one box."""
    count = np.zeros(shape, dtype=int)
    for box in boxes:
        count[box.index()] += 1
    assert (count == 1).all()


@given(grids(), st.integers(1, 8))
def test_every_cell_is_served_once_by_few_variants(grid: tuple[Array, Array], limit: int) -> None:
    times, weights = grid
    boxes = partition(times, weights, limit, TOLERANCE)
    assert_covers(boxes, weights.shape)
    assert len({box.candidate for box in boxes}) <= limit
    assert boxes == sorted(boxes)
    assert boxes == partition(times.copy(), weights.copy(), limit, TOLERANCE)


@given(grids(), st.integers(1, 8))
def test_joining_neighbours_loses_no_more_than_stated(
    grid: tuple[Array, Array], limit: int
) -> None:
    times, weights = grid
    boxes = partition(times, weights, limit, TOLERANCE)
    # Against the best of the variants that were selected: of those of some prefix, at least.
    selected = select_variants(times, weights, limit)
    prefixes = [selected[: n + 1] for n in range(len(selected))]

    def worst(variants: Sequence[int]) -> float:
        best = times[..., list(variants)].min(axis=-1)
        return max(float((times[(*b.index(), b.candidate)] / best[b.index()]).max()) for b in boxes)

    assert min(map(worst, prefixes)) <= 1 + TOLERANCE + 1e-9


@given(grids())
def test_more_variants_never_predict_worse(grid: tuple[Array, Array]) -> None:
    times, weights = grid
    expected = [
        expected_loss(times, weights, partition(times, weights, limit, TOLERANCE))
        for limit in range(1, times.shape[-1] + 1)
    ]
    assert all(b <= a + 1e-8 for a, b in itertools.pairwise(expected))


@given(grids())
def test_all_variants_without_tolerance_lose_nothing(grid: tuple[Array, Array]) -> None:
    times, weights = grid
    boxes = partition(times, weights, times.shape[-1], 0.0)
    # But for variants that would have saved less than they are worth.
    assert expected_loss(times, weights, boxes) <= 1e-3


def fewest_intervals(times: Array) -> int:
    """Of intervals in which some candidate is within the tolerance of the best everywhere."""
    best = times.min(axis=-1, keepdims=True)
    within = times <= best * (1 + TOLERANCE) * (1 + 1e-12)
    fewest = [0] + [len(times) + 1] * len(times)
    for end in range(1, len(fewest)):
        for start in range(end):
            if within[start:end].all(axis=0).any():
                fewest[end] = min(fewest[end], fewest[start] + 1)
    return fewest[-1]


@given(grids(min_axes=1, max_axes=1))
def test_an_axis_has_the_fewest_intervals(grid: tuple[Array, Array]) -> None:
    times, weights = grid
    assert len(partition(times, weights, 1, TOLERANCE)) == 1
    selected = select_variants(times, weights, 6)
    boxes = partition(times, weights, 6, TOLERANCE)
    # Which of the sets of variants was taken is not told.
    possible = [fewest_intervals(times[..., list(selected[: n + 1])]) for n in range(len(selected))]
    assert min(possible) <= len(boxes) <= max(possible)


def test_equal_neighbours_become_one_box() -> None:
    cells = [Box((i, j), (i, j), 0 if j < 2 else 1) for i in range(2) for j in range(3)]
    assert merge_equal(cells) == [Box((0, 0), (1, 1), 0), Box((0, 2), (1, 2), 1)]
    assert merge_equal([]) == []


def test_a_variant_that_saves_nothing_is_not_built() -> None:
    times = np.array([[1.0, 1.0002], [1.0001, 1.0]])
    assert select_variants(times, np.ones(2), 8) == (0,)


# Cells --------------------------------------------------------------------------------------------

tiles = st.lists(st.integers(1, 300), min_size=1, max_size=5)


@given(st.integers(0, 3000), st.one_of(st.none(), st.integers(0, 5000)), tiles)
def test_no_tile_count_changes_within_a_cell(
    low: int, length: int | None, lengths: list[int]
) -> None:
    high = None if length is None else low + length
    cells = cut(low, high, [(lambda size: 3 * size, tile) for tile in lengths], 1 << 20)
    assert cells.starts[0] == low
    assert (np.diff(cells.starts) > 0).all()
    assert cells.end(len(cells) - 1) == high
    for cell in range(len(cells) - (high is None)):
        start, end = int(cells.starts[cell]), cells.end(cell)
        assert end is not None
        for tile in lengths:
            assert -(-3 * max(start, 1) // tile) == -(-3 * max(end, 1) // tile)
    middles = cells.middles()
    assert (middles >= cells.starts).all()
    ends = [cells.end(cell) for cell in range(len(cells))]
    assert all(e is None or m <= e for m, e in zip(middles, ends, strict=True))


@given(st.integers(0, 100), st.integers(1, 40))
def test_thinned_cells_keep_the_first_size_and_the_limit(low: int, limit: int) -> None:
    cells = cut(low, None, [(lambda size: size, 1)], limit)
    assert len(cells) <= limit
    assert cells.starts[0] == low
    assert cells.starts[-1] <= FAR
    assert cells.end(len(cells) - 1) is None
    assert (cells.log_lengths() > 0).all()


@given(st.integers(1, 3 * FAR), st.integers(FAR, 1 << 24))
def test_cells_far_out_have_a_small_ratio(low: int, more: int) -> None:
    """So that pixels of many images are not all one cell."""
    high = low + more
    cells = cut(low, high, [(lambda size: size, 1 << 30)], 1 << 20)
    assert cells.end(len(cells) - 1) == high
    far = float(max(FAR, low))
    starts = np.array([far, *cells.starts[cells.starts > far]])
    assert (starts[1:] / starts[:-1] < 1.05).all()
    assert (high + 1) / starts[-1] < 1.05


def test_an_axis_of_one_size_and_one_that_starts_far_out() -> None:
    assert list(cut(7, 7, [(lambda size: size, 4)], 10).starts) == [7]
    far = cut(3 * FAR, None, [(lambda size: size, 4)], 10)
    assert (list(far.starts), far.high) == ([3 * FAR], None)
    with pytest.raises(ValueError, match="no sizes from 5 to 4"):
        cut(5, 4, [], 10)


def test_sizes_of_a_grid() -> None:
    rows, columns = Cells(np.array([0, 5]), 9), Cells(np.array([1]), 1)
    sizes, shape = grid_sizes(
        [rows, columns],
        {
            "m": SizeOnAxis(0, lambda s: 2 * s),
            "n": 8,
            "k": SizeOnAxis(1, lambda s: s),
            "batch": 3,
        },
        GemmTraits(result_bytes=4),
    )
    assert shape == (2, 1)
    assert [a.ravel().tolist() for a in sizes.arrays()] == [[4, 14], [8, 8], [1, 1], [3, 3]]
    assert sizes.traits.result_bytes == 4
    zero, _ = grid_sizes(
        [Cells(np.array([0]), 0)],
        {"m": SizeOnAxis(0, lambda s: s), "n": 1, "k": 1, "batch": 1},
        GemmTraits(),
    )
    assert zero.arrays()[0].ravel().tolist() == [1]


def test_tile_lengths() -> None:
    names = (
        "persistent_128x256x64_s4_w2_c2",
        "small_m_64x16x64_s9_w1_k2",
        "small_m_64x32x64_s9_w1_r2",
    )
    schedules = [GemmSchedule.parse(name) for name in names]
    assert tile_lengths(schedules, "m") == [16, 64, 256]
    assert tile_lengths(schedules, "n") == [64, 256]
    assert tile_lengths(schedules, "k") == [64, 128]
    assert tile_lengths(schedules, "batch") == [1]


# Regions ------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[KernelTable], list[int]]:
    """Kernels over one or two shared axes."""
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=2))
    copies = [draw(st.integers(1, 2)) for _ in lengths]
    tables = []
    for _ in range(draw(st.integers(1, 3))):
        axes = tuple(draw(st.permutations(range(len(lengths))))[: draw(st.integers(0, 2))])
        shape = tuple(lengths[a] for a in axes)
        candidates = draw(st.integers(1, 4))
        elements = st.floats(1, 3)
        times = draw(hnp.arrays(np.float64, (*shape, candidates), elements=elements))
        weights = np.ones(shape) / np.prod(shape)
        boxes = tuple(partition(times, weights, 4, TOLERANCE))
        tables.append(KernelTable(axes, times, weights, boxes, draw(st.integers(1, 3))))
    return tables, copies


def regions_of(
    tables: Sequence[KernelTable], boxes: Sequence[Sequence[Box]], copies: Sequence[int]
) -> int:
    """How many regions the boxes make, counted anew."""
    starts: list[set[int]] = [{0} for _ in copies]
    for table, own in zip(tables, boxes, strict=True):
        for axis, shared in enumerate(table.axes):
            starts[shared] |= {box.lower[axis] for box in own}
    return int(np.prod([len(s) ** n for s, n in zip(starts, copies, strict=True)]))


def program_loss(tables: Sequence[KernelTable], boxes: Sequence[Sequence[Box]]) -> float:
    return sum(
        table.mean_time() * expected_loss(table.times, table.weights, own)
        for table, own in zip(tables, boxes, strict=True)
    )


@given(programs(), st.integers(1, 12))
def test_regions_are_limited_and_all_is_covered(
    program: tuple[list[KernelTable], list[int]], limit: int
) -> None:
    tables, copies = program
    aligned = align_regions(tables, IndependentSizes(copies), limit)
    assert regions_of(tables, aligned, copies) <= limit
    for table, boxes in zip(tables, aligned, strict=True):
        assert_covers(boxes, table.weights.shape)
        assert {box.candidate for box in boxes} <= set(table.variants())
    assert aligned == align_regions(tables, IndependentSizes(copies), limit)


@given(programs())
def test_enough_regions_change_nothing(program: tuple[list[KernelTable], list[int]]) -> None:
    tables, copies = program
    own = [list(table.boxes) for table in tables]
    assert align_regions(tables, IndependentSizes(copies), 10**9) == own


@given(programs())
def test_more_regions_never_predict_worse(program: tuple[list[KernelTable], list[int]]) -> None:
    tables, copies = program
    expected = [
        program_loss(tables, align_regions(tables, IndependentSizes(copies), limit))
        for limit in (1, 2, 4, 8, 16)
    ]
    # A table left as it is may lose up to the tolerance where a piece of its own would not.
    spare = sum(table.mean_time() for table in tables) * np.log1p(TOLERANCE)
    assert all(b <= a + spare + 1e-9 for a, b in itertools.pairwise(expected))


def test_the_cheapest_breakpoint_goes_first() -> None:
    near = np.array([[1.0, 1.1], [1.2, 1.0], [3.0, 1.0]])
    far = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])
    tables = [
        KernelTable((0,), t, np.full(3, 1 / 3), tuple(partition(t, np.full(3, 1 / 3), 2, 0.0)))
        for t in (near, far)
    ]
    assert [box.lower for box in tables[0].boxes] == [(0,), (1,)]
    assert [box.lower for box in tables[1].boxes] == [(0,), (2,)]
    first, second = align_regions(tables, IndependentSizes([1]), 2)
    # Both change at the third cell or never: the loss of 10 % is the smaller one.
    assert second == list(tables[1].boxes)
    assert first == [Box((0,), (2,), 1)]


def test_losses_are_relative_to_the_best() -> None:
    np.testing.assert_allclose(losses(np.array([[2.0, 4.0]])), [[0.0, np.log(2)]])
