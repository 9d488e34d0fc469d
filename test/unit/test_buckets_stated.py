# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels whose families state their buckets, among gemms whose buckets are chosen."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapejit.pass_host import PipelineError, run_pipeline
from shapejit.passes import choose_buckets  # noqa: F401 - registers the pass
from shapejit.passes.buckets.partition import Box
from shapejit.passes.buckets.regions import (
    IndependentSizes,
    SampledSizes,
    StatedTable,
    align_regions,
)
from shapejit.passes.host.dispatches import Dispatch, dispatches
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.families import LOOPS
from shapejit.symbolic import Expr

# Tables -------------------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> StatedTable:
    """A kernel with one or two axes of a few cells, cut into a grid of boxes."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    cuts = [sorted(draw(st.sets(st.integers(1, max(n - 1, 1)), max_size=2)) - {n}) for n in lengths]
    pieces = [
        list(zip([0, *c], [*(x - 1 for x in c), n - 1], strict=True))
        for n, c in zip(lengths, cuts, strict=True)
    ]
    boxes = [
        Box(tuple(a for a, _ in block), tuple(b for _, b in block), draw(st.integers(0, 2)))
        for block in itertools.product(*pieces)
    ]
    weights = tuple(
        np.array(draw(st.lists(st.floats(0.1, 1), min_size=n, max_size=n))) for n in lengths
    )
    stakes = tuple(draw(st.floats(0.1, 10.0)) for _ in boxes)
    axes, calls = tuple(range(len(lengths))), draw(st.integers(1, 3))
    return StatedTable(axes, weights, tuple(boxes), stakes, calls)


@given(tables(), st.data())
@settings(deadline=None)
def test_losses_of_blocks(table: StatedTable, data: st.DataObject) -> None:
    """A cell costs what is at stake wherever another variant serves it, by its weight."""
    cuts = [
        np.array(
            sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=3)) if n > 1 else []), int
        )
        for n in table.shape
    ]
    slabs = table.slabs(cuts)
    expected = np.zeros_like(slabs)
    for cell in np.ndindex(table.shape):
        block = tuple(
            int(np.searchsorted(c, i, side="right")) for c, i in zip(cuts, cell, strict=True)
        )
        weight = np.prod([w[i] for w, i in zip(table.weights, cell, strict=True)])
        [(serving, stake)] = [
            (b.candidate, stake)
            for b, stake in zip(table.boxes, table.stakes, strict=True)
            if all(a <= i <= z for a, i, z in zip(b.lower, cell, b.upper, strict=True))
        ]
        for number, variant in enumerate(table.variants()):
            expected[block][number] += weight * stake * (variant != serving)
    np.testing.assert_allclose(slabs, expected * table.calls, rtol=1e-9, atol=1e-12)


@given(tables())
@settings(deadline=None)
def test_one_region_is_served_by_the_variant_with_most_at_stake(table: StatedTable) -> None:
    [[box]] = align_regions([table], IndependentSizes([1] * len(table.axes)), 1)
    share = {
        variant: sum(
            stake
            * np.prod(
                [
                    w[a : z + 1].sum()
                    for w, a, z in zip(table.weights, b.lower, b.upper, strict=True)
                ]
            )
            for b, stake in zip(table.boxes, table.stakes, strict=True)
            if b.candidate == variant
        )
        for variant in table.variants()
    }
    assert share[box.candidate] == pytest.approx(max(share.values()))


@given(st.data())
@settings(deadline=None)
def test_only_regions_that_sizes_reach_count(data: st.DataObject) -> None:
    """Two axes: a batch, and what it is times a length."""
    batches = np.arange(1, 9)
    lengths = np.arange(1, 31)
    batch, rows = (
        column.ravel()
        for column in np.broadcast_arrays(batches[:, None], batches[:, None] * lengths)
    )
    sizes = SampledSizes((0, 1), np.array([batch, rows]), (1, 1))
    cuts = [
        np.array(sorted(data.draw(st.sets(st.integers(1, most), max_size=4))), int)
        for most in (8, 240)
    ]
    for merged in (sizes, sizes.merged(cuts)):
        for left in (cuts, [cuts[0], cuts[1][1:]], [cuts[0][:-1], cuts[1]]):
            reached = {
                (sum(b >= c for c in left[0]), sum(r >= c for c in left[1]))
                for b, r in zip(batch, rows, strict=True)
            }
            assert merged.regions(left) == len(reached)
    assert sizes.regions(cuts) <= IndependentSizes((1, 1)).regions(cuts)


def test_sizes_of_nothing() -> None:
    none = SampledSizes((), np.zeros((0,), np.int64), ())
    assert none.merged([]).regions([]) == 1


# The pass -----------------------------------------------------------------------------------------

MODULE = """
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
#id = affine_map<(d0, d1) -> (d0, d1)>
!x = tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>
!y = tensor<?x4096xbf16, #shapejit.shape<[s0 * s1, 4096]>>
!w = tensor<4096x4096xbf16, #shapejit.shape<[4096, 4096]>>
shapejit.symbol @batch {id = 0, min = 1, max = 8}
shapejit.symbol @tokens {id = 1, min = 1, max = 500}
shapejit.kernel @up symbols 1 (%x: !x, %w: !w) {
  %0 = shapejit.gemm over [s0, 4096, 4096] lhs(%x at #lhs : !x) rhs(%w at #rhs : !w) -> !x
  shapejit.yield %0 : !x
}
shapejit.kernel @rows symbols 1 (%x: !x) {
  %0 = shapejit.loop over [s0, 4096] ins(%x at #id : !x) outs(#id : !x) {
  ^bb0(%v: bf16):
    shapejit.yield %v : bf16
  }
  shapejit.yield %0 : !x
}
shapejit.kernel @grid symbols 2 (%x: !y) {
  %0 = shapejit.loop over [s0 * s1, 4096] ins(%x at #id : !y) outs(#id : !y) {
  ^bb0(%v: bf16):
    %1 = arith.negf %v : bf16
    shapejit.yield %1 : bf16
  }
  shapejit.yield %0 : !y
}
func.func @main(%x: !y, %w: !w) -> !y {
  %0 = shapejit.launch @up affine_map<()[s0, s1] -> (s0 * s1)> (%x, %w) : (!y, !w) -> !y
  %1 = shapejit.launch @rows affine_map<()[s0, s1] -> (s0 * s1)> (%0) : (!y) -> !y
  %2 = shapejit.launch @grid affine_map<()[s0, s1] -> (s0, s1)> (%1) : (!y) -> !y
  return %2 : !y
}
"""


class Stand:
    """Stands for the family of loops."""

    def __init__(self) -> None:
        self.asked: dict[str, Mapping[int, Any]] = {}

    def choose(self, kernel: Any, sizes: Mapping[int, Any], device: Any) -> Any:
        name = ir.StringAttr(kernel.attributes["sym_name"]).value
        self.asked[name] = sizes
        s0, s1 = Expr.symbol(0), Expr.symbol(1)
        if name == "rows":
            buckets = [((0,), (99,), "warp", "few"), ((100,), (None,), "cta", "many")]
            return [s0], buckets
        return [s1, s0 * s1], [
            ((1, 0), (128, None), "short", "short rows"),
            ((129, 0), (None, 1000), "long", "long rows"),
            ((129, 1001), (None, None), "both", "long rows, and many"),
        ]


def chosen(monkeypatch: pytest.MonkeyPatch, stand: Any, options: str = "") -> dict[str, Dispatch]:
    """The dispatches of the module."""
    monkeypatch.setitem(vars(LOOPS), "_functions", stand)
    with ir.Context():
        module = ir.Module.parse(MODULE)
        run_pipeline(module, f"shapejit-choose-buckets{{{options}}}", stage="test")
        return dispatches(module)


def served(dispatch: Dispatch, sizes: Sequence[int]) -> str:
    found = [bucket for bucket in dispatch.buckets if bucket.holds(sizes)]
    assert len(found) == 1, sizes
    return found[0].variant


def test_stated_buckets_are_kept_where_regions_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand()
    found = chosen(monkeypatch, stand, "max-regions=1000")
    assert stand.asked == {"rows": {0: (1, 4000)}, "grid": {0: (1, 8), 1: (1, 500)}}
    rows, grid = found["rows"], found["grid"]
    assert [(b.lower, b.upper, b.variant, b.reason) for b in rows.buckets] == [
        ((1,), (99,), "warp", "few"),
        ((100,), (4000,), "cta", "many"),
    ]
    assert grid.axes == (Expr.symbol(1), Expr.symbol(0) * Expr.symbol(1))
    for batch, tokens in itertools.product(range(1, 9), range(1, 501)):
        rows_now = batch * tokens
        assert served(rows, [rows_now]) == ("warp" if rows_now < 100 else "cta")
        long = "long" if rows_now <= 1000 else "both"
        assert served(grid, [tokens, rows_now]) == ("short" if tokens <= 128 else long)


@pytest.mark.parametrize("limit", [1, 2, 5, 12])
def test_regions_are_limited_for_all_kernels_together(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    found = chosen(monkeypatch, Stand(), f"max-regions={limit}")
    assert set(found) == {"up", "rows", "grid"}
    regions = {
        (
            served(found["up"], [batch * tokens]),
            served(found["rows"], [batch * tokens]),
            served(found["grid"], [tokens, batch * tokens]),
        )
        for batch, tokens in itertools.product(range(1, 9), range(1, 501))
    }
    assert len(regions) <= limit
    assert len(regions) >= min(limit, 4), "regions that no size reaches do not count"


def test_what_a_family_refuses_is_said_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(*_: Any) -> Any:
        raise LoweringError("reads complex numbers")

    with pytest.raises(PipelineError, match="this kernel reads complex numbers"):
        chosen(monkeypatch, SimpleNamespace(choose=choose))
