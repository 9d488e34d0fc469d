# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cache over both tiers: each key is built once, and threads and forks get what is right."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shapejit.cache import pressure
from shapejit.cache.disk import DiskTier
from shapejit.cache.objects import Fetched, ObjectCache
from unit.cache_samples import content, sample_key

KEY = sample_key()


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(64 << 20, DiskTier(tmp_path / "cache", 1 << 30))


def on_same_disk(cache: ObjectCache) -> ObjectCache:
    """A cache with nothing in memory, as a new process has it."""
    assert cache.disk is not None
    return ObjectCache(64 << 20, DiskTier(cache.disk.root, 1 << 30))


def never() -> bytes:
    raise AssertionError("built again")


def test_where_code_comes_from(cache: ObjectCache) -> None:
    assert cache.get(KEY) is None
    built = cache.get_or_build(KEY, lambda: content(KEY), note="why")
    assert (built.origin, built.data) == ("built", content(KEY))
    again = cache.get_or_build(KEY, never)
    assert (again.origin, again.data) == ("memory", content(KEY))
    assert again.lease is built.lease
    other = on_same_disk(cache)
    assert other.get_or_build(KEY, never).origin == "disk"
    found = other.get(KEY)
    assert found is not None and found.origin == "memory"
    assert other.disk is not None
    assert other.disk.details()[0].note == "why"


def test_counters(cache: ObjectCache) -> None:
    def slowly() -> bytes:
        time.sleep(0.05)
        return content(KEY)

    cache.get_or_build(KEY, slowly)
    cache.get_or_build(KEY, never)
    stats = cache.stats()
    assert (stats.built, stats.memory_hits, stats.disk_hits, stats.failed) == (1, 1, 0, 0)
    assert stats.built_bytes == len(content(KEY))
    assert 0.05 <= stats.build_seconds < 5
    assert stats.saved_seconds == pytest.approx(stats.build_seconds)
    assert (stats.memory_entries, stats.disk_entries) == (1, 1)
    assert stats.disk_bytes > stats.memory_bytes == len(content(KEY))
    assert stats.disk_state == "on"
    other = on_same_disk(cache)
    other.get_or_build(KEY, never)
    stats = other.stats()
    assert (stats.built, stats.disk_hits, stats.read_bytes) == (0, 1, len(content(KEY)))
    assert 0.05 <= stats.saved_seconds < 5, "the time that the build had taken is in the entry"
    assert stats.to_dict()["disk_hits"] == 1


def test_what_happens_is_logged(cache: ObjectCache, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "shapejit.cache"):
        cache.get_or_build(KEY, lambda: content(KEY, 500))
        cache.get(KEY)
        assert cache.disk is not None
        cache.disk.prune(0)
    written, built, found, deleted = (record.getMessage() for record in caplog.records)
    assert written.startswith(f"{KEY.digest[:16]} written, ")
    assert built.startswith(f"gemm {KEY.digest[:16]}: built, 500 bytes that take 0.")
    assert found.startswith(f"gemm {KEY.digest[:16]}: memory, 500 bytes that take 0.")
    assert deleted.startswith(f"1 entries deleted from {cache.disk.root}, ")


def test_without_disk() -> None:
    cache = ObjectCache(1 << 20)
    cache.get_or_build(KEY, lambda: content(KEY))
    assert cache.get_or_build(KEY, never).origin == "memory"
    stats = cache.stats()
    assert (stats.disk_state, stats.disk_path, stats.disk_entries) == ("off", None, 0)


def test_programs_keep_what_they_use() -> None:
    cache = ObjectCache(0)
    fetched = cache.get_or_build(KEY, lambda: content(KEY))
    cache.clear_memory()
    assert fetched.data == content(KEY)
    second = cache.get_or_build(KEY, lambda: content(KEY))
    assert second.origin == "built"
    cache.trim(0)
    assert cache.get_or_build(KEY, never).lease is second.lease
    assert cache.stats().pinned_bytes == len(content(KEY))
    del second
    gc.collect()
    assert cache.get(KEY) is None


def test_memory_is_given_back_under_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    short = False
    monkeypatch.setattr(pressure, "is_short", lambda: short)
    monkeypatch.setattr("shapejit.cache.objects._PRESSURE_SECONDS", 0.0)
    cache = ObjectCache(1 << 20)
    for number in range(8):
        cache.get_or_build(sample_key(number), lambda: bytes(100_000))
    assert cache.stats().memory_bytes == 800_000
    short = True
    cache.get_or_build(sample_key(8), lambda: bytes(100_000))
    assert cache.stats().memory_bytes <= (1 << 20) // 8
    assert cache.stats().evicted >= 7


# Threads.


def in_threads(count: int, act: Callable[[int], object]) -> list[object]:
    """The results of `act`, or the exceptions that it raises, in threads that start together."""
    barrier = threading.Barrier(count)

    def run(number: int) -> object:
        barrier.wait()
        try:
            return act(number)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_each_key_is_built_once_at_a_time(cache: ObjectCache) -> None:
    builds: list[int] = []

    def fetch(thread: int) -> list[Fetched]:
        fetched = []
        for step in range(20):
            number = (thread + step) % 20

            def build(number: int = number) -> bytes:
                builds.append(number)
                time.sleep(0.002)
                return content(sample_key(number))

            fetched.append(cache.get_or_build(sample_key(number), build))
            assert fetched[-1].data == content(sample_key(number))
        return fetched

    for result in in_threads(12, fetch):
        assert isinstance(result, list), result
    assert sorted(builds) == list(range(20))
    stats = cache.stats()
    assert stats.built == 20
    assert stats.built + stats.shared + stats.memory_hits == 12 * 20
    assert stats.shared > 0


def test_one_key_in_all_threads_from_disk(cache: ObjectCache) -> None:
    cache.get_or_build(KEY, lambda: content(KEY))
    other = on_same_disk(cache)
    for result in in_threads(12, lambda _: other.get_or_build(KEY, never).data):
        assert result == content(KEY)
    assert other.stats().disk_hits == 1


def test_waiting_threads_get_the_same_exception(cache: ObjectCache) -> None:
    started = threading.Event()
    builds = []

    def fail() -> bytes:
        builds.append(1)
        started.set()
        time.sleep(0.2)
        raise ZeroDivisionError("no such kernel")

    def fetch(number: int) -> object:
        if number:
            started.wait()
        return cache.get_or_build(KEY, fail)

    results = in_threads(6, fetch)
    assert builds == [1]
    assert isinstance(results[0], ZeroDivisionError)
    assert all(result is results[0] for result in results)
    assert cache.stats().failed == 1
    # A failure is not remembered.
    assert cache.get_or_build(KEY, lambda: content(KEY)).origin == "built"


def test_an_interrupted_build_is_taken_over_by_a_waiting_thread(cache: ObjectCache) -> None:
    started = threading.Event()

    def interrupted() -> bytes:
        started.set()
        time.sleep(0.2)
        raise KeyboardInterrupt

    def fetch(number: int) -> object:
        if number == 0:
            return cache.get_or_build(KEY, interrupted)
        started.wait()
        return cache.get_or_build(KEY, lambda: content(KEY)).data

    first, *others = in_threads(5, fetch)
    assert isinstance(first, KeyboardInterrupt)
    assert others == [content(KEY)] * 4
    assert cache.stats().built == 1


def test_waiting_threads_do_not_wait_for_the_disk(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, write = threading.Event(), threading.Event()

    def slow_put(*_: object) -> None:
        writing.set()
        assert write.wait(30)

    monkeypatch.setattr(cache.disk, "put", slow_put)
    with ThreadPoolExecutor(1) as pool:
        builder = pool.submit(cache.get_or_build, KEY, lambda: content(KEY))
        assert writing.wait(30)
        assert cache.get_or_build(KEY, never).origin == "memory"
        assert not builder.done()
        write.set()


def test_a_build_may_build_others_but_not_itself(cache: ObjectCache) -> None:
    def nested() -> bytes:
        return cache.get_or_build(sample_key(1), lambda: b"inner").data + b" and outer"

    assert cache.get_or_build(KEY, nested).data == b"inner and outer"
    other = sample_key(2)
    with pytest.raises(RuntimeError, match=f"{other.digest[:16]} asks for that entry"):
        cache.get_or_build(other, lambda: cache.get_or_build(other, never).data)


def test_a_build_that_gives_no_bytes_is_refused(cache: ObjectCache) -> None:
    with pytest.raises(TypeError, match="must be built as bytes, got str"):
        cache.get_or_build(KEY, lambda: "code")  # type: ignore[arg-type, return-value]
    assert cache.get(KEY) is None


def test_the_disk_may_be_changed_while_in_use(cache: ObjectCache, tmp_path: Path) -> None:
    stop = threading.Event()

    def fetch(_: int) -> object:
        number = 0
        while not stop.is_set():
            key = sample_key(number % 30)
            assert cache.get_or_build(key, lambda key=key: content(key)).data == content(key)
            number += 1
        return number

    def change(_: int) -> object:
        for number in range(10):
            cache.reconfigure(number << 16, DiskTier(tmp_path / f"cache{number % 3}", 1 << 20))
            time.sleep(0.02)
        stop.set()
        return None

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(fetch, number) for number in range(3)]
        pool.submit(change, 0).result(60)
        assert all(worker.result(60) for worker in workers)


# Forks.


def in_child(act: Callable[[], None]) -> int:
    """The exit status of a forked child that runs `act`."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def test_a_child_forked_during_a_build_does_not_wait_for_it(cache: ObjectCache) -> None:
    started, finish = threading.Event(), threading.Event()

    def slow() -> bytes:
        started.set()
        assert finish.wait(60)
        return content(KEY)

    def act() -> None:
        assert cache.get_or_build(KEY, lambda: content(KEY)).origin == "built"
        assert cache.get_or_build(sample_key(1), lambda: content(sample_key(1))).origin == "built"

    with ThreadPoolExecutor(1) as pool:
        builder = pool.submit(cache.get_or_build, KEY, slow)
        assert started.wait(30)
        assert in_child(act) == 0
        finish.set()
        assert builder.result(30).data == content(KEY)
    # What the child wrote is there.
    assert cache.get_or_build(sample_key(1), never).origin == "disk"


def test_children_forked_from_a_busy_process(cache: ObjectCache) -> None:
    """Whatever other threads hold at the moment of the fork, the child goes on."""
    stop = threading.Event()

    def busy(thread: int) -> None:
        number = thread
        while not stop.is_set():
            key = sample_key(number % 50)
            assert cache.get_or_build(key, lambda key=key: content(key)).data == content(key)
            if number % 7 == 0:
                cache.clear_memory()
            number += 1

    def act() -> None:
        for number in range(20):
            key = sample_key(number)
            assert cache.get_or_build(key, lambda key=key: content(key)).data == content(key)
        cache.stats()

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(busy, number) for number in range(3)]
        try:
            for _ in range(15):
                assert in_child(act) == 0
        finally:
            stop.set()
        for worker in workers:
            worker.result(60)
