# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for GPUs built in the background: each once, never too many at a time, all delivered."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from shapejit.cache.cubins import CachedCubin
from shapejit.cache.disk import DiskTier
from shapejit.cache.objects import ObjectCache
from shapejit.codegen import builder as builder_module
from shapejit.codegen.builder import CubinBuilder, cubin_builder, process_workers
from shapejit.codegen.workers import Workers
from shapejit.errors import KnobError
from shapejit.knobs import knobs
from unit.cubin_samples import RESOURCES, Builds, sample_entry, sample_unit

SECONDS = 60.0


def builder_of(
    builds: Builds, cache: ObjectCache | None = None, *, limit: int = 2
) -> tuple[CubinBuilder, ObjectCache]:
    made = ObjectCache(1 << 20) if cache is None else cache
    return CubinBuilder(lambda: made, workers=Workers(lambda: limit), build=builds), made


def get(future: Future[CachedCubin]) -> CachedCubin:
    return future.result(timeout=SECONDS)


def wait_for(builds: Builds) -> None:
    """Waits for a build to begin."""
    end = time.monotonic() + SECONDS
    while not builds.order:
        assert time.monotonic() < end
        time.sleep(0.001)


def rest(builder: CubinBuilder) -> None:
    """Waits for the threads to end: until then, they may hold what they built last."""
    end = time.monotonic() + SECONDS
    while builder._workers.running:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_built_then_from_memory_then_from_disk(tmp_path: Path) -> None:
    unit, builds = sample_unit(), Builds()
    disk = DiskTier(tmp_path / "cache", 1 << 30)
    builder, cache = builder_of(builds, ObjectCache(1 << 20, disk))
    found = [get(builder.build_async(unit)) for _ in range(2)]
    other, _ = builder_of(builds, ObjectCache(1 << 20, DiskTier(tmp_path / "cache", 1 << 30)))
    found.append(get(other.build_async(unit)))
    assert [each.origin for each in found] == ["built", "memory", "disk"]
    entry = sample_entry(unit)
    for each in found:
        assert each.cubin == entry.cubin
        assert each.interface == entry.interface
        assert each.resources == RESOURCES
        assert (each.name, each.key) == ("gemm", unit.key)
    assert builds.counts == {unit.key.digest: 1}
    stats = builder.stats()
    assert (stats.requests, stats.built, stats.memory, stats.disk) == (2, 1, 1, 0)
    assert other.stats().disk == 1
    assert cache.stats().built == 1
    # The entry on disk says what it was made from.
    assert disk.details()[0].note == unit.text


def test_what_is_in_the_cache_needs_no_thread() -> None:
    builder, _ = builder_of(Builds())
    get(builder.build_async(sample_unit()))
    assert builder.build_async(sample_unit()).done()


def test_a_key_is_built_once_however_many_ask() -> None:
    unit, builds = sample_unit(), Builds(open=False)
    builder, _ = builder_of(builds, limit=4)
    futures: list[Future[CachedCubin]] = []
    start = threading.Barrier(16)

    def ask() -> None:
        start.wait()
        futures.extend(builder.build_async(unit) for _ in range(8))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(future.done() for future in futures)
    assert builder.stats().pending == 128
    builds.gate.set()
    found = [get(future) for future in futures]
    assert builds.counts == {unit.key.digest: 1}
    assert sorted({each.origin for each in found}) == ["built", "shared"]
    assert len({id(each.lease) for each in found}) == 1
    stats = builder.stats()
    assert (stats.requests, stats.built, stats.shared, stats.pending) == (128, 1, 127, 0)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_burst_never_runs_more_builds_than_the_limit(limit: int) -> None:
    builds = Builds(seconds=0.0005)
    builder, _ = builder_of(builds, limit=limit)
    units = [sample_unit(number) for number in range(120)]
    asked = units * 3
    random.Random(7).shuffle(asked)
    futures = [builder.build_async(unit) for unit in asked]
    for unit, future in zip(asked, futures, strict=True):
        assert get(future).cubin == sample_entry(unit).cubin
    assert builds.counts == {unit.key.digest: 1 for unit in units}
    stats = builder.stats()
    assert 1 <= builds.most <= limit
    assert stats.most_running == builds.most
    assert stats.running == stats.pending == 0
    assert stats.requests == stats.built + stats.shared + stats.memory == 360


def test_a_failure_goes_to_all_that_wait_and_is_not_kept() -> None:
    unit, builds = sample_unit(), Builds(open=False)
    builds.failing.add(unit.key.digest)
    builder, _ = builder_of(builds)
    futures = [builder.build_async(unit) for _ in range(3)]
    builds.gate.set()
    for future in futures:
        assert isinstance(future.exception(timeout=SECONDS), ArithmeticError)
    stats = builder.stats()
    assert (stats.failed, stats.built, stats.pending) == (3, 0, 0)
    with pytest.raises(ArithmeticError, match="no code for"):
        get(builder.build_async(unit))
    assert builds.counts[unit.key.digest] == 2
    builds.failing.clear()
    assert get(builder.build_async(unit)).origin == "built"


def test_what_is_urgent_goes_first_also_if_it_waits_already() -> None:
    builds = Builds(open=False)
    builder, _ = builder_of(builds, limit=1)
    units = [sample_unit(number) for number in range(6)]
    futures = [builder.build_async(units[0])]
    wait_for(builds)
    futures += [builder.build_async(unit) for unit in units[1:4]]
    futures.append(builder.build_async(units[4], urgent=True))
    futures.append(builder.build_async(units[2], urgent=True))
    builds.gate.set()
    for future in futures:
        get(future)
    expected = [units[number].key.digest for number in (0, 4, 2, 1, 3)]
    assert builds.order == expected


def test_all_of_several_by_key() -> None:
    builds = Builds()
    builder, _ = builder_of(builds)
    units = [sample_unit(number) for number in (0, 1, 0, 2)]
    found = builder.build_all(iter(units))
    assert list(found) == [units[0].key, units[1].key, units[3].key]
    for unit in units:
        assert found[unit.key].cubin == sample_entry(unit).cubin
    assert builder.stats().requests == 3
    assert builder.build_all([]) == {}


def test_one_failure_of_several_leaves_the_others_in_the_cache() -> None:
    builds = Builds()
    builder, _ = builder_of(builds)
    units = [sample_unit(number) for number in range(4)]
    builds.failing.add(units[1].key.digest)
    with pytest.raises(ArithmeticError, match=units[1].key.digest[:8]):
        builder.build_all(units)
    assert builder.build_async(units[3]).done()
    assert sum(builds.counts.values()) == 4


def test_futures_cannot_be_cancelled() -> None:
    builds = Builds(open=False)
    builder, _ = builder_of(builds)
    futures = [builder.build_async(sample_unit()) for _ in range(2)]
    assert [future.cancel() for future in futures] == [False, False]
    builds.gate.set()
    for future in futures:
        get(future)


def test_a_cache_that_cannot_be_had_is_told_by_the_future() -> None:
    def cache() -> ObjectCache:
        raise ArithmeticError("no cache")

    builder = CubinBuilder(cache, workers=Workers(lambda: 1), build=Builds())
    with pytest.raises(ArithmeticError, match="no cache"):
        get(builder.build_async(sample_unit()))
    assert (builder.stats().failed, builder.stats().pending) == (1, 0)


def test_a_limit_that_cannot_be_had_is_told_by_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(1 << 20)
    builder = CubinBuilder(lambda: cache, build=Builds())
    monkeypatch.setenv("SHAPEJIT_COMPILE_WORKERS", "many")
    with pytest.raises(KnobError, match="SJ-KNOB-001 SHAPEJIT_COMPILE_WORKERS"):
        get(builder.build_async(sample_unit()))
    monkeypatch.delenv("SHAPEJIT_COMPILE_WORKERS")
    assert get(builder.build_async(sample_unit())).origin == "built"


def test_whoever_holds_a_kernel_keeps_it() -> None:
    """Under a bound of nothing, only what is held is found again."""
    builds = Builds()
    builder, cache = builder_of(builds, ObjectCache(0))
    held = get(builder.build_async(sample_unit(0)))
    get(builder.build_async(sample_unit(1)))
    rest(builder)
    assert get(builder.build_async(sample_unit(0))).origin == "memory"
    assert get(builder.build_async(sample_unit(1))).origin == "built"
    rest(builder)
    assert cache.stats().pinned_bytes == len(held.lease.data)
    del held
    assert cache.stats().pinned_bytes == 0
    assert get(builder.build_async(sample_unit(0))).origin == "built"


def test_memory_stays_under_the_bound_while_many_kernels_come_and_go() -> None:
    builds = Builds()
    units = [sample_unit(number) for number in range(300)]
    sizes = [len(sample_entry(unit).encode()) for unit in units]
    bound = sum(sizes) // 2
    builder, cache = builder_of(builds, ObjectCache(bound))
    rng = random.Random(5)
    in_use: list[CachedCubin] = []
    for _ in range(3000):
        unit = units[min(int(rng.expovariate(1 / 80)), 299)]
        kernel = get(builder.build_async(unit))
        assert kernel.cubin == sample_entry(unit).cubin
        in_use.append(kernel)
        if len(in_use) > 10:
            in_use.pop(rng.randrange(10))
        del kernel
        assert cache.stats().memory_bytes <= bound
    rest(builder)
    stats = cache.stats()
    assert stats.evicted > 0
    assert stats.pinned_bytes <= sum(sorted(sizes)[-11:])
    assert sum(builds.counts.values()) > 300
    assert builder.stats().memory > 2000


def test_a_child_of_a_fork_asks_again() -> None:
    builds = Builds(open=False)
    builder, _ = builder_of(builds)
    future = builder.build_async(sample_unit())
    wait_for(builds)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert builder.stats().pending == 0
            builds.gate.set()
            kernel = get(builder.build_async(sample_unit()))
            assert kernel.cubin == sample_entry(sample_unit()).cubin
            assert kernel.origin == "built"
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    builds.gate.set()
    assert get(future).origin == "built"


def test_the_builder_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "_builders", {})
    plain = cubin_builder()
    assert cubin_builder() is plain
    with knobs.scope(dump_to=str(tmp_path)):
        dumping = cubin_builder()
        assert dumping is not plain
        assert cubin_builder() is dumping
    assert cubin_builder() is plain
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("-gpu-kernels")
    with knobs.scope(compile_workers=5):
        assert process_workers._limit() == 5
