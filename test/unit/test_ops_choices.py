# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Choices among schedules out of the cache: as the model makes them, and only for what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapejit.cache.disk import DiskTier
from shapejit.cache.objects import ObjectCache
from shapejit.ops import choices
from shapejit.ops.choices import ChoiceKey, recall
from shapejit.passes.buckets import table as table_module
from shapejit.passes.buckets.problem import GemmTraits
from shapejit.passes.buckets.table import ScheduleTable
from shapejit.passes.nvgpu.schedule import CANDIDATES

SIZES = (4096, 1024, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def new_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectCache:
    """A cache that has what is on the disk, and nothing in memory."""
    cache = ObjectCache(1 << 20, DiskTier(folder, 1 << 24))
    monkeypatch.setattr(choices, "object_cache", lambda: cache)
    return cache


def test_a_later_process_makes_no_choice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_process(folder, monkeypatch)
    table = ScheduleTable(max_variants=16)
    recall(table, *SIZES)
    expected = ScheduleTable(max_variants=16).intervals(*SIZES)
    assert table.intervals(*SIZES) == expected

    def refuse(*_: Any) -> Any:
        raise AssertionError("a choice is made")

    second = new_process(folder, monkeypatch)
    monkeypatch.setattr(table_module, "CostModel", refuse)
    again = ScheduleTable(max_variants=16)
    recall(again, *SIZES)
    assert again.intervals(*SIZES) == expected
    usable = {id(schedule) for schedule in CANDIDATES}
    assert all(id(each.schedule) in usable for each in again.intervals(*SIZES))
    for each in expected:
        assert again.choose(each.low, *SIZES) == each.schedule
    recall(again, *SIZES)  # known: nothing is asked
    [entry] = second.disk.details() if second.disk else []
    assert entry.info.kind == "choice"


def test_choices_are_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So counters of kernels leave them out."""
    for cache in (new_process(folder, monkeypatch), new_process(folder, monkeypatch)):
        for _ in range(2):
            recall(ScheduleTable(), *SIZES)
        stats = cache.stats()
        assert (stats.built, stats.memory_hits, stats.disk_hits) == (0, 0, 0)
        assert stats.program_built == stats.program_disk_hits == 0
        assert stats.disk_entries == 1


def test_another_table_makes_another_choice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_process(folder, monkeypatch)
    tables = [
        ScheduleTable(),
        ScheduleTable(max_variants=3),
        ScheduleTable(GemmTraits(result_bytes=4)),
        ScheduleTable(candidates=CANDIDATES[:10]),
    ]
    descriptions = [table.description() for table in tables]
    for number, description in enumerate(descriptions):
        assert description not in descriptions[:number]
    for table in tables:
        recall(table, *SIZES)
        recall(table, 1024, 4096, 1)
    assert cache.stats().disk_entries == 2 * len(tables)
    for table, made_again in zip(tables, descriptions, strict=True):
        assert table.description() == made_again


def test_other_sources_and_constants_make_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def constants(device: str) -> Any:
        return real(device).of_record({**real(device).record(), "latency": 0.123})

    real = table_module.constants_of
    before = ScheduleTable().description()
    monkeypatch.setattr(table_module, "constants_of", constants)
    after = ScheduleTable().description()
    assert ChoiceKey(before).digest != ChoiceKey(after).digest
    assert (
        ChoiceKey({**before, "passes": "1"}).digest != ChoiceKey({**before, "passes": "2"}).digest
    )
    assert ChoiceKey(before).record()["kind"] == "choice"


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([1, 64, 4096, 14336]), st.sampled_from([1, 64, 4096]), st.sampled_from([1, 3])
)
def test_what_a_table_takes_over_it_gives(n: int, k: int, batch: int) -> None:
    made, taken = ScheduleTable(), ScheduleTable()
    intervals = made.intervals(n, k, batch)
    assert not taken.knows(n, k, batch)
    taken.adopt(n, k, batch, [(each.low, str(each.schedule)) for each in intervals])
    assert taken.knows(n, k, batch)
    assert taken.intervals(n, k, batch) == intervals
