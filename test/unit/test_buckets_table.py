# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Lookup tables over m agree with the model, and stay bounded."""

from __future__ import annotations

import dataclasses
import itertools
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapejit.passes.buckets import table as table_module
from shapejit.passes.buckets.device import H200
from shapejit.passes.buckets.model import CostModel
from shapejit.passes.buckets.problem import GemmSizes, GemmTraits
from shapejit.passes.buckets.table import ScheduleTable, choose
from shapejit.passes.nvgpu.schedule import CANDIDATES, GemmSchedule, worth_trying

lengths = st.sampled_from([8, 64, 768, 4096, 14336, 128256])
TABLE = ScheduleTable()


@settings(max_examples=25, deadline=None)
@given(lengths, lengths, st.sampled_from([1, 3]))
def test_intervals_cover_all_rows_once(n: int, k: int, batch: int) -> None:
    intervals = TABLE.intervals(n, k, batch)
    assert intervals[0].low == 0
    assert intervals[-1].high is None
    for left, right in itertools.pairwise(intervals):
        assert left.high is not None
        assert left.high + 1 == right.low
        assert left.low <= left.high
    assert len({row.schedule for row in intervals}) <= 16


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40_000), lengths, lengths)
def test_choose_reads_the_interval(m: int, n: int, k: int) -> None:
    [row] = [
        row for row in TABLE.intervals(n, k) if row.low <= m and (row.high is None or m <= row.high)
    ]
    assert TABLE.choose(m, n, k) is row.schedule
    assert choose(GemmSizes(m, n, k)) == row.schedule


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 16_000), lengths, lengths)
def test_the_choice_is_near_the_best_of_the_model(m: int, n: int, k: int) -> None:
    tried = worth_trying(CANDIDATES, weights=1)
    [times] = CostModel(H200, tried).times(GemmSizes(m, n, k))
    chosen = times[tried.index(TABLE.choose(m, n, k))]
    # Joined intervals, the limit of variants and a cell's middle all take a little.
    assert chosen <= 1.15 * times.min()


def test_schedules_for_pairs_serve_single_weights_only_alone() -> None:
    pair = GemmSchedule.parse("small_m_64x64x64_s8_w1")
    assert pair in CANDIDATES
    assert pair not in worth_trying(CANDIDATES, weights=1)
    assert worth_trying(CANDIDATES, weights=2) == CANDIDATES
    assert worth_trying([pair], weights=1) == (pair,)


def test_only_what_fits_is_chosen_for_gated_pairs() -> None:
    gated = ScheduleTable(GemmTraits(weights=2))
    assert {row.schedule for row in gated.intervals(4096, 4096)} <= {
        s for s in CANDIDATES if s.rows * s.columns <= 128 * 100 * s.consumers
    }
    large = GemmSchedule.parse("persistent_128x256x64_s4_w2")
    with pytest.raises(ValueError, match="no schedule of persistent_128x256x64_s4_w2 fits"):
        ScheduleTable(GemmTraits(weights=2), [large])


def test_the_way_to_start_is_chosen_by_size() -> None:
    table = ScheduleTable(max_variants=12, early=True)
    intervals = table.intervals(4096, 4096)
    assert len({dataclasses.replace(row.schedule, early=False) for row in intervals}) <= 12
    assert {row.schedule.early for row in intervals} == {False, True}
    for row, after in itertools.pairwise(intervals):
        assert row.schedule != after.schedule
    for row in intervals:
        if row.high is not None:
            middle = (row.low + row.high) // 2
            other = dataclasses.replace(row.schedule, early=not row.schedule.early)
            model = CostModel(H200, [row.schedule, other])
            # One evaluation stands for a cell.
            [[taken, left]] = model.times(GemmSizes(middle, 4096, 4096))
            assert taken <= 1.02 * left
    never = ScheduleTable(max_variants=12)
    assert not any(row.schedule.early for row in never.intervals(4096, 4096))
    assert never.description() != table.description()


def test_choices_with_the_way_to_start_are_adopted() -> None:
    table, other = (ScheduleTable(max_variants=12, early=True) for _ in range(2))
    intervals = table.intervals(1024, 4096)
    other.adopt(1024, 4096, 1, [(row.low, str(row.schedule)) for row in intervals])
    assert other.intervals(1024, 4096) == intervals


def test_one_candidate_is_one_interval() -> None:
    only = GemmSchedule.parse("swapped_128x128x64_s6_w2_stream")
    [row] = ScheduleTable(candidates=[only]).intervals(64, 64)
    assert (row.low, row.high, row.schedule) == (0, None, only)


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_MAX_ROWS", 3)
    small = ScheduleTable(candidates=CANDIDATES[:1])
    for n in range(1, 10):
        small.choose(1, n, 8)
        assert len(small._rows) <= 3
    assert small.choose(1, 1, 8) == CANDIDATES[0]  # made again


def test_threads_may_share_a_table() -> None:
    shared, alone = ScheduleTable(), ScheduleTable()
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(m for m in range(1, 3000, 371) if shared.choose(m, 768, 768) != expected[m])

    expected = {m: alone.choose(m, 768, 768) for m in range(1, 3000, 371)}
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
