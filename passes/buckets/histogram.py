# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How often sizes are expected: the weights by which losses at different sizes are compared.

Without any knowledge every octave of sizes counts the same. What the user says, a histogram or the
`opt` of a symbol, gets most of the weight; the rest stays spread over all octaves, because sizes
that were not foreseen come as well and must not be slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from shapejit.ir import Symbol
from shapejit.passes.buckets.grid import FAR, Cells
from shapejit.passes.buckets.problem import Array
from shapejit.symbolic import Expr

Counts: TypeAlias = Mapping[int, float]
"""Sizes with how often each is expected, in any unit."""

_KNOWN_SHARE = 0.8
# Sizes of a symbol that are looked at when several make up one axis.
_MAX_SIZES = 256
_SPREAD = 16


def parse_histogram(text: str) -> dict[str, dict[int, float]]:
    """Reads ``"batch:1=10,8=5;seq:128=40,300=2.5"``: symbols with pairs of a size and a weight.

    Raises:
        ValueError: the text has another form, or a weight that is not positive.
    """
    found: dict[str, dict[int, float]] = {}
    for entry in filter(None, text.split(";")):
        name, colon, pairs = entry.partition(":")
        try:
            counts = {int(s): float(w) for s, w in (p.split("=") for p in pairs.split(","))}
        except ValueError:
            counts = {}
        if not (name and colon and counts) or min(counts) < 0 or min(counts.values()) <= 0:
            raise ValueError(
                f'"{entry}" is no histogram of a symbol; one is written name:size=weight,'
                "size=weight with sizes of at least 0 and weights above 0, as in "
                '"batch:1=10,8=5;seq:128=40"'
            )
        found[name] = counts
    return found


def expected_sizes(symbols: Iterable[Symbol], given: Mapping[str, Counts]) -> dict[int, Counts]:
    """What is expected of each symbol, by id; of one that is missing nothing is known.

    Args:
        symbols: of the module; their `opt` counts where `given` says nothing.
        given: histograms by the names of symbols.

    Raises:
        ValueError: a histogram is of a name that no symbol has, or has a size out of its range.
    """
    by_name = {symbol.name: symbol for symbol in symbols}
    for name, counts in given.items():
        symbol = by_name.get(name)
        if symbol is None:
            known = ", ".join(by_name) or "none"
            raise ValueError(f'the histogram is of "{name}", but the symbols are: {known}')
        for size in counts:
            if size < symbol.min or (symbol.max is not None and size > symbol.max):
                high = "any" if symbol.max is None else symbol.max
                raise ValueError(
                    f'the histogram of "{name}" has the size {size}, which is out of its range '
                    f"{symbol.min}..{high}"
                )
    expected: dict[int, Counts] = {}
    for symbol in by_name.values():
        if symbol.name in given:
            expected[symbol.id] = given[symbol.name]
        elif symbol.opt is not None:
            expected[symbol.id] = {symbol.opt: 1.0}
    return expected


def cell_weights(
    cells: Cells,
    sizes: Sequence[Expr],
    expected: Mapping[int, Counts],
    ranges: Mapping[int, tuple[int, int | None]],
) -> Array:
    """The weights of an axis's cells; they sum to 1.

    Args:
        cells: of the axis.
        sizes: what lies along the axis, expressions of the module's symbols.
        expected: by symbol.
        ranges: of the symbols, for those of which nothing is expected.
    """
    spread = cells.log_lengths()
    spread /= spread.sum()
    known = [size for size in sizes if any(symbol in expected for symbol in size.symbols())]
    if not known:
        return spread
    weights = (1 - _KNOWN_SHARE) * spread
    for size in known:
        weights += _KNOWN_SHARE / len(known) * _distribution(cells, size, expected, ranges)
    return weights


def _distribution(
    cells: Cells,
    size: Expr,
    expected: Mapping[int, Counts],
    ranges: Mapping[int, tuple[int, int | None]],
) -> Array:
    """The share of each cell if the symbols of `size` are independent of each other."""
    symbols = sorted(size.symbols())
    values: dict[int, Any] = {}
    weight = np.ones(())
    for axis, symbol in enumerate(symbols):
        counts = expected.get(symbol) or _spread_over(*ranges.get(symbol, (0, None)))
        heaviest = sorted(counts, key=lambda s: (-counts[s], s))[:_MAX_SIZES]
        spread = [1] * len(symbols)
        spread[axis] = len(heaviest)
        values[symbol] = np.array(heaviest, dtype=np.int64).reshape(spread)
        weight = weight * np.array([counts[s] for s in heaviest]).reshape(spread)
    at = np.broadcast_to(size.evaluate(values), weight.shape).ravel()
    places = np.clip(np.searchsorted(cells.starts, at, side="right") - 1, 0, len(cells) - 1)
    masses = np.bincount(places, weights=weight.ravel(), minlength=len(cells))
    shares: Array = masses / masses.sum()
    return shares


def _spread_over(low: int, high: int | None) -> Counts:
    """Sizes at about equal ratios over a range, the same weight each."""
    last = FAR if high is None else high
    sizes = np.geomspace(low + 1, max(last, low) + 1, _SPREAD) - 1
    return {int(size): 1.0 for size in np.unique(np.rint(sizes))}
