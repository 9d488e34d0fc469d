# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Processes killed while they write the cache never leave an entry that loads wrongly.

A writer is killed at a random moment, 40 times by default; ``CACHE_TEST_KILLS=500`` makes it more.
The writers are forked from a process of their own, which holds nothing but the cache.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from shapejit.cache.disk import DiskTier
from shapejit.cache.objects import ObjectCache
from unit.cache_samples import content, header, sample_key

KEYS = [sample_key(number) for number in range(40)]
LIMIT = 600_000  # less than all of them: writers prune, too


def write(folder: Path, seed: int) -> None:
    """Write keys at random until killed."""
    rng = random.Random(seed)
    tier = DiskTier(folder, LIMIT)
    while True:
        key = rng.choice(KEYS)
        tier.put(key.digest, header(key), content(key))
        tier.get(rng.choice(KEYS).digest)


def write_and_clear(folder: Path, seed: int) -> None:
    """Fetch keys at random, with deletions of all entries between, until killed."""
    rng = random.Random(seed)
    cache = ObjectCache(0, DiskTier(folder, LIMIT))
    while True:
        key = rng.choice(KEYS)
        assert cache.get_or_build(key, lambda key=key: content(key)).data == content(key)
        if rng.random() < 0.05 and cache.disk is not None:
            cache.disk.prune(LIMIT // 2)


def forked(act: Callable[[Path, int], None], folder: Path, seed: int) -> int:
    """The process id of a child that is in the midst of it."""
    ready, started = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(started, b"!")
            act(folder, seed)
        except BaseException as error:
            os.write(2, f"writer failed: {error!r}\n".encode())
        finally:
            os._exit(1)
    os.close(started)
    assert os.read(ready, 1) == b"!"
    os.close(ready)
    return child


def check(folder: Path) -> int:
    """The number of entries; each is right, and none is damaged."""
    tier = DiskTier(folder, LIMIT)
    found = 0
    for key in KEYS:
        lookup = tier.get(key.digest)
        assert lookup.status in ("hit", "missing"), lookup
        if lookup.status == "hit":
            assert lookup.payload == content(key)
            found += 1
    return found


def kill_writers(folder: Path, kills: int, seed: int) -> None:
    """The test's own process: forks writers, kills them, checks what they leave."""
    warnings.simplefilter("error")
    rng = random.Random(seed)
    found, half_written = 0, 0
    for number in range(kills):
        act = write if number % 2 else write_and_clear
        children = [forked(act, folder, rng.getrandbits(32)) for _ in range(1 + number % 2)]
        time.sleep(rng.uniform(0.0, 0.04))
        for child in children:
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        found += check(folder)
    objects = folder / "objects"
    half_written = sum(path.name.startswith(".tmp-") for path in objects.iterdir())
    # A new process goes on with what they left, index included.
    tier = DiskTier(folder, LIMIT)
    tier.put(KEYS[0].digest, header(KEYS[0]), content(KEYS[0]))
    assert tier.prune(LIMIT).bytes <= LIMIT
    assert tier.verify(remove=False).problems == ()
    index = sqlite3.connect(folder / "index-1.sqlite")
    assert index.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    print(f"{kills} kills, {found} entries checked, {half_written} half-written files left aside")


@pytest.mark.parametrize("seed", [1])
def test_killed_writers_leave_no_wrong_entry(tmp_path: Path, seed: int) -> None:
    kills = int(os.environ.get("CACHE_TEST_KILLS", "40"))
    command = [sys.executable, __file__, str(tmp_path / "cache"), str(kills), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=3600
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "writer failed" not in done.stderr


if __name__ == "__main__":
    kill_writers(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
