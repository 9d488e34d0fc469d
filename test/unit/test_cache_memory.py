# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The memory tier: what stays, what goes first, and that what is in use never goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shapejit.cache import pressure
from shapejit.cache.memory import SMALL_BYTES, Lease, MemoryTier

KB = 1024
MEDIUM = SMALL_BYTES + KB


def add(tier: MemoryTier, name: str, size: int, seconds: float = 1.0) -> None:
    """Put code in that nothing uses."""
    tier.add(name, bytes(size), seconds)


def present(tier: MemoryTier, *names: str) -> list[str]:
    return [name for name in names if tier.get(name) is not None]


def test_what_is_added_is_found() -> None:
    tier = MemoryTier(1 << 20)
    lease = tier.add("a", b"code", 0.5)
    assert tier.get("a") is lease
    assert (lease.data, lease.seconds) == (b"code", 0.5)
    del lease
    again = tier.get("a")
    assert again is not None
    assert (again.data, again.seconds) == (b"code", 0.5)
    assert tier.get("b") is None
    assert len(tier) == 1


def test_the_bound_holds() -> None:
    tier = MemoryTier(1 << 20)
    for number in range(200):
        add(tier, str(number), 10 * MEDIUM // 4)
        assert tier.kept_bytes <= 1 << 20
    assert tier.evicted == 200 - len(tier)
    assert tier.evicted_bytes == tier.evicted * (10 * MEDIUM // 4)


def test_code_in_use_is_found_beyond_the_bound() -> None:
    tier = MemoryTier(10 * MEDIUM)
    leases = [tier.add(str(number), bytes(MEDIUM), 1.0) for number in range(50)]
    assert tier.kept_bytes <= 10 * MEDIUM
    assert tier.pinned_bytes == 50 * MEDIUM
    assert [tier.get(str(number)) for number in range(50)] == leases
    assert tier.evicted == 0
    leases.clear()
    assert tier.pinned_bytes == 0
    assert len(tier) == 10


def test_huge_code_is_used_and_freed() -> None:
    tier = MemoryTier(80 * MEDIUM)
    add(tier, "other", MEDIUM)
    lease = tier.add("huge", bytes(11 * MEDIUM), 100.0)
    assert tier.get("huge") is lease
    assert tier.kept_bytes == MEDIUM
    del lease
    assert present(tier, "huge", "other") == ["other"]
    assert len(tier) == 1


def test_what_is_cheap_for_its_size_goes_first() -> None:
    tier = MemoryTier(10 * MEDIUM)
    add(tier, "dear", MEDIUM, 9.0)
    for number in range(9):
        add(tier, f"cheap{number}", MEDIUM, 0.1)
    add(tier, "new", MEDIUM, 1.0)
    assert present(tier, "dear", "cheap0", "cheap1", "new") == ["dear", "cheap1", "new"]


def test_what_is_used_often_stays_longer() -> None:
    tier = MemoryTier(10 * MEDIUM)
    for number in range(10):
        add(tier, str(number), MEDIUM)
    for _ in range(3):
        tier.get("0")
    add(tier, "new", MEDIUM)
    assert present(tier, "0", "1") == ["0"]


def test_old_merits_fade() -> None:
    tier = MemoryTier(10 * MEDIUM)
    add(tier, "once dear", MEDIUM, 20.0)
    for number in range(2000):
        add(tier, str(number), MEDIUM, 1.0)
    assert present(tier, "once dear") == []


def test_small_code_stays_while_medium_code_passes_through() -> None:
    tier = MemoryTier(100 * MEDIUM)
    for number in range(20):
        add(tier, f"small{number}", KB, 0.001)
    for number in range(1000):
        add(tier, f"medium{number}", MEDIUM, 50.0)
    assert len(present(tier, *(f"small{n}" for n in range(20)))) == 20


def test_small_code_takes_no_more_than_its_share_from_medium_code() -> None:
    tier = MemoryTier(1 << 20)
    for number in range(10):
        add(tier, f"medium{number}", 64 * KB)
    for number in range(3000):
        add(tier, f"small{number}", KB, 50.0)
    assert len(present(tier, *(f"medium{n}" for n in range(10)))) == 10
    assert present(tier, "small0", "small2999") == ["small2999"]


def test_a_lower_bound_takes_effect_at_once() -> None:
    tier = MemoryTier(1 << 20)
    for number in range(10):
        add(tier, str(number), MEDIUM)
    tier.limit = 3 * MEDIUM
    assert len(tier) == 3
    tier.limit = 0
    assert len(tier) == 0
    lease = tier.add("a", b"code", 1.0)
    assert tier.get("a") is lease
    assert tier.kept_bytes == 0


def test_trim_lets_go_of_code_in_use_without_losing_it() -> None:
    tier = MemoryTier(1 << 20)
    lease = tier.add("used", bytes(MEDIUM), 1.0)
    add(tier, "unused", MEDIUM)
    tier.trim(0)
    assert tier.kept_bytes == 0
    assert tier.get("used") is lease
    assert tier.get("unused") is None
    del lease
    assert tier.get("used") is None


def test_replaced_code_leaves_its_holders_alone() -> None:
    tier = MemoryTier(1 << 20)
    first = tier.add("a", b"first", 1.0)
    second = tier.add("a", b"second", 1.0)
    assert first.data == b"first"
    del first
    add(tier, "b", 1)  # looks at what has ended
    assert tier.get("a") is second
    assert tier.kept_bytes == len(b"second") + 1


def test_clear_forgets_everything() -> None:
    tier = MemoryTier(1 << 20)
    lease = tier.add("a", b"code", 1.0)
    add(tier, "b", MEDIUM)
    tier.clear()
    assert (len(tier), tier.kept_bytes, tier.pinned_bytes) == (0, 0, 0)
    assert tier.get("a") is None
    assert lease.data == b"code"


class MemoryTierMachine(RuleBasedStateMachine):
    """Random use: the bound holds, leases are found, and what is found is right."""

    @initialize(limit=st.integers(0, 2 << 20))
    def start(self, limit: int) -> None:
        self.tier = MemoryTier(limit)
        self.sizes: dict[str, int] = {}
        self.held: dict[str, Lease] = {}

    names = st.sampled_from([str(number) for number in range(12)])
    sizes = st.one_of(st.integers(0, 4 * KB), st.integers(0, 600 * KB))

    @rule(name=names, size=sizes, seconds=st.floats(0, 10), hold=st.booleans())
    def add(self, name: str, size: int, seconds: float, hold: bool) -> None:
        self.held.pop(name, None)
        lease = self.tier.add(name, bytes(size), seconds)
        self.sizes[name] = size
        if hold:
            self.held[name] = lease

    @rule(name=names, hold=st.booleans())
    def get(self, name: str, hold: bool) -> None:
        lease = self.tier.get(name)
        if name in self.held:
            assert lease is self.held[name]
        if lease is not None:
            assert len(lease.data) == self.sizes[name]
            if hold:
                self.held[name] = lease

    @rule(name=names)
    def end(self, name: str) -> None:
        self.held.pop(name, None)

    @rule(limit=st.integers(0, 2 << 20))
    def change_limit(self, limit: int) -> None:
        self.tier.limit = limit

    @invariant()
    def bytes_are_right(self) -> None:
        if not hasattr(self, "tier"):
            return
        assert self.tier.kept_bytes <= self.tier.limit
        assert self.tier.pinned_bytes == sum(self.sizes[name] for name in self.held)
        slots = self.tier._slots
        assert self.tier.kept_bytes == sum(s.size for s in slots.values() if s.kept is not None)


MemoryTierMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
test_random_use = MemoryTierMachine.TestCase


# Memory pressure.


def meminfo(folder: Path, available: int) -> Path:
    path = folder / "meminfo"
    path.write_text(f"MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")
    return path


@pytest.mark.parametrize(("available", "short"), [(0, True), (49, True), (50, False), (900, False)])
def test_pressure_of_the_system(tmp_path: Path, available: int, short: bool) -> None:
    assert pressure.is_short(meminfo(tmp_path, available), tmp_path / "none") == short


@pytest.mark.parametrize(
    ("limit", "used", "reclaimable", "short"),
    [("1000", 960, 0, True), ("1000", 960, 100, False), ("max", 960, 0, False)],
)
def test_pressure_of_a_container(
    tmp_path: Path, limit: str, used: int, reclaimable: int, short: bool
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {reclaimable}\n")
    assert pressure.is_short(meminfo(tmp_path, 900), tmp_path) == short


def test_pressure_is_not_known(tmp_path: Path) -> None:
    assert not pressure.is_short(tmp_path / "none", tmp_path / "none")
