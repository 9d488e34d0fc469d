# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Regions of a program: against what each launch's buckets say, at every size."""

from __future__ import annotations

import itertools

import mlir.ir as ir
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit.passes.buckets.samples import Samples, spread_samples
from shapejit.passes.host.dispatches import Bucket, Dispatch
from shapejit.passes.host.regions import MOST_CELLS, BoundLaunch, Regions
from shapejit.passes.host.words import Address, WordTable, is_fixed
from shapejit.symbolic import Expr

S0, S1 = Expr.symbol(0), Expr.symbol(1)

BATCHES, TOKENS = range(1, 7), range(1, 26)


@st.composite
def partitions(draw: st.DrawFn, name: str) -> Dispatch:
    """A kernel of one or two axes, cut into a grid of buckets."""
    axes = draw(st.sampled_from([(S0,), (S1,), (S0 * S1,), (S0, S1), (S1, S0 * S1)]))
    intervals = []
    for _ in axes:
        cuts = sorted(draw(st.sets(st.integers(2, 60), max_size=2)))
        last = draw(st.sampled_from([None, 1000]))
        intervals.append(list(zip([1, *cuts], [*(c - 1 for c in cuts), last], strict=True)))
    buckets = [
        Bucket(
            tuple(low for low, _ in box),
            tuple(high for _, high in box),
            draw(st.sampled_from("abc")),
            "",
        )
        for box in itertools.product(*intervals)
    ]
    return Dispatch(name, axes, tuple(buckets))


@st.composite
def programs(draw: st.DrawFn) -> list[BoundLaunch]:
    kernels = [draw(partitions(name)) for name in "xyz"[: draw(st.integers(1, 3))]]
    sizes = st.sampled_from([(S0, S1), (S1, S0), (S0 * S1, Expr.const(7))])
    return [
        BoundLaunch(draw(st.sampled_from(kernels)), draw(sizes))
        for _ in range(draw(st.integers(1, 4)))
    ]


def served(launch: BoundLaunch, symbols: tuple[int, int]) -> int:
    """The number of the variant of a launch, found without regions."""
    local = [size.evaluate(symbols=symbols) for size in launch.sizes]
    at = [axis.evaluate(symbols=local) for axis in launch.dispatch.axes]
    fitting = [
        bucket
        for bucket in launch.dispatch.buckets
        if all(
            low <= size and (high is None or size <= high)
            for size, low, high in zip(at, bucket.lower, bucket.upper, strict=True)
        )
    ]
    return launch.dispatch.variants.index(fitting[0].variant)


def region_of(regions: Regions, symbols: tuple[int, int]) -> int:
    """The region of a call, as the host program works it out."""
    cell = 0
    for axis in regions.axes:
        size = axis.size.evaluate(symbols=symbols)
        cell = cell * (len(axis.breakpoints) + 1) + sum(size >= b for b in axis.breakpoints)
    return regions.of_cell[cell]


@given(programs())
def test_variants_of_regions(launches: list[BoundLaunch]) -> None:
    regions = Regions.of(launches)
    for symbols in itertools.product(BATCHES, TOKENS):
        found = regions.variants[region_of(regions, symbols)]
        assert found == tuple(served(launch, symbols) for launch in launches)
    assert len(set(regions.variants)) == len(regions.variants), "equal regions are one"


@given(programs())
def test_samples_of_regions(launches: list[BoundLaunch]) -> None:
    regions = Regions.of(launches)
    every = np.array(list(itertools.product(BATCHES, TOKENS)), dtype=np.int64)
    samples = regions.first_samples(Samples({0: every[:, 0], 1: every[:, 1]}, complete=True))
    counts = [region_of(regions, (int(b), int(t))) for b, t in every]
    assert set(samples) == set(counts)
    for region, values in samples.items():
        assert region_of(regions, (values[0], values[1])) == region
    assert [counts.count(region) for region in samples] == sorted(
        map(counts.count, samples), reverse=True
    )


def test_without_free_sizes() -> None:
    launch = BoundLaunch(Dispatch("k", (), (Bucket((), (), "only", ""),)), ())
    regions = Regions.of([launch, launch])
    assert (regions.axes, regions.of_cell, regions.variants) == ((), (0,), ((0, 0),))
    assert regions.first_samples(Samples({}, complete=True)) == {0: {}}


def test_constant_sizes_are_no_axes() -> None:
    dispatch = Dispatch("k", (S0,), (Bucket((1,), (8,), "a", ""), Bucket((9,), (None,), "b", "")))
    regions = Regions.of([BoundLaunch(dispatch, (Expr.const(n),)) for n in (8, 9)])
    assert (regions.axes, regions.variants) == ((), ((0, 1),))


def test_too_many_cells() -> None:
    buckets = tuple(Bucket((n,), (n,), "a", "") for n in range(MOST_CELLS + 1))
    with pytest.raises(ValueError, match=f"into {MOST_CELLS + 1} cells, .* a smaller max-regions"):
        Regions.of([BoundLaunch(Dispatch("k", (S0,), buckets), (S0,))])


# Samples ------------------------------------------------------------------------------------------


def samples(text: str) -> dict[int, list[int]]:
    with ir.Context():
        found = spread_samples(ir.Module.parse(text))
    return {symbol: column.tolist() for symbol, column in found.values.items()}


def is_complete(text: str) -> bool:
    with ir.Context():
        return spread_samples(ir.Module.parse(text)).complete


def test_few_combinations_are_all_looked_at() -> None:
    found = samples(
        """
        shapejit.symbol @batch {id = 0, min = 2, max = 8, divisor = 3}
        shapejit.symbol @tokens {id = 1, min = 0, max = 4}
        shapejit.symbol @same {id = 2, min = 0, max = 4, equal_to = 1}
        shapejit.symbol @rest {id = 3, min = 1} = max(s1 - 2, 0)
        """
    )
    assert found == {0: [3, 3, 6, 6], 1: [3, 4, 3, 4], 2: [3, 4, 3, 4], 3: [1, 2, 1, 2]}


def test_constraints_are_kept() -> None:
    found = samples(
        """
        shapejit.symbol @a {id = 0, min = 1, max = 5}
        shapejit.symbol @b {id = 1, min = 1, max = 5}
        shapejit.constraint affine_set<()[s0, s1] : (s0 - s1 - 3 >= 0)>
        """
    )
    assert list(zip(found[0], found[1], strict=True)) == [(4, 1), (5, 1), (5, 2)]


def test_wide_ranges_are_spread() -> None:
    found = samples("shapejit.symbol @a {id = 0, min = 5, max = 1000000, divisor = 5}")[0]
    assert (found[0], found[-1]) == (5, 1000000)
    assert all(value % 5 == 0 for value in found)
    assert 1000 < len(found) <= 1 << 16
    several = samples(
        "\n".join(f"shapejit.symbol @s{i} {{id = {i}, min = 1, max = 100000}}" for i in range(3))
    )
    assert len(several[0]) <= 1 << 16
    assert {several[i][-1] for i in range(3)} == {100000}


def test_no_symbols() -> None:
    assert samples("") == {}
    assert is_complete("")


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("min = 3, max = 500", True),
        ("min = 8, max = 64000, divisor = 8", True),
        ("min = 3, max = 70000", False),
        ("min = 3", False),
    ],
)
def test_completeness(symbol: str, expected: bool) -> None:
    assert is_complete(f"shapejit.symbol @a {{id = 0, {symbol}}}") is expected


@given(programs())
def test_the_most_in_each_region(launches: list[BoundLaunch]) -> None:
    regions = Regions.of(launches)
    every = list(itertools.product(BATCHES, TOKENS))
    columns = np.array(every, dtype=np.int64)
    samples = Samples({0: columns[:, 0], 1: columns[:, 1]}, complete=True)
    most = regions.most(samples.evaluate(S0 * S1), samples)
    for number, found in enumerate(most):
        inside = [b * t for b, t in every if region_of(regions, (b, t)) == number]
        assert found == max(inside, default=0)


# Words --------------------------------------------------------------------------------------------


def test_words_of_a_call_come_first() -> None:
    needed = [
        Expr.const(64),
        S0,
        Address("weight", 0),
        Address("input", 0),
        S0,
        Address("arena", 1),
        Expr.const(64),
        Address("copy", 0),
        Address("output", 0),
    ]
    table = WordTable(needed)
    assert list(map(str, table.words)) == [
        "s0", "input 0", "arena 1", "output 0", "64", "weight 0", "copy 0",
    ]  # fmt: skip
    assert table.call_words == 4
    assert [table.number(word) for word in needed] == [4, 0, 5, 1, 0, 2, 4, 6, 3]
    assert [is_fixed(word) for word in table.words] == [False] * 4 + [True] * 3
