# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Several processes, each with several threads, on one cache folder at the same time.

Each runs for 2 seconds by default; ``CACHE_TEST_SECONDS=60`` makes it longer.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shapejit.cache.disk import DiskTier
from shapejit.cache.objects import ObjectCache
from unit.cache_samples import content, sample_key

PROCESSES = 4
THREADS = 3
KEYS = [sample_key(number) for number in range(50)]
ROOMY = 1 << 30
TIGHT = 400_000  # about a quarter of all keys


def work(folder: Path, limit: int, seconds: float, seed: int) -> None:
    """One of the processes: fetches keys at random and checks what it gets."""
    warnings.simplefilter("error")
    cache = ObjectCache(200_000, DiskTier(folder, limit))
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds
    building: set[str] = set()
    lock = threading.Lock()

    def fetch(thread: int) -> int:
        rng = random.Random(seed * 100 + thread)
        count = 0
        while time.monotonic() < end:
            key = rng.choice(KEYS)

            def build(key=key) -> bytes:  # type: ignore[no-untyped-def]
                with lock:
                    assert key.digest not in building, "built twice at the same time"
                    building.add(key.digest)
                time.sleep(rng.uniform(0, 0.001))
                with lock:
                    building.remove(key.digest)
                return content(key)

            assert cache.get_or_build(key, build).data == content(key)
            count += 1
            if rng.random() < 0.002:
                cache.clear_memory()
            if rng.random() < 0.001 and cache.disk is not None:
                cache.disk.prune(limit // 2)
                cache.disk.details()
        return count

    with ThreadPoolExecutor(THREADS) as pool:
        fetched = sum(pool.map(fetch, range(THREADS)))
    stats = cache.stats()
    assert stats.rebuilt == stats.refused == stats.write_errors == stats.failed == 0
    assert stats.memory_hits + stats.disk_hits + stats.built + stats.shared == fetched
    print(f"{fetched} fetched: {stats.built} built, {stats.disk_hits} from disk")


@pytest.mark.parametrize("limit", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_processes_writing_the_same_keys(tmp_path: Path, limit: int) -> None:
    seconds = os.environ.get("CACHE_TEST_SECONDS", "2")
    folder = tmp_path / "cache"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), str(limit), seconds, str(seed)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(PROCESSES)
    ]
    # They start together, however long their imports take.
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        output, errors = worker.communicate(timeout=float(seconds) + 120)
        print(output)
        assert worker.returncode == 0, errors
    tier = DiskTier(folder, limit)
    report = tier.verify(remove=False)
    assert report.problems == ()
    assert report.entries > 0
    # Writers pass the bound by what they are just writing at most, and the next one prunes.
    assert tier.prune(limit).bytes <= limit
    for key in KEYS:
        lookup = tier.get(key.digest)
        assert lookup.status == "missing" or lookup.payload == content(key)


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
