# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The disk tier: entries survive, the bound holds, and no trouble of the disk stops a compiler."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shapejit.cache.disk import DiskTier
from shapejit.cache.entry import Header
from shapejit.cache.index import FILE_NAME
from shapejit.cache.key import VariantKey
from shapejit.cache.reports import CacheWarning
from unit.cache_samples import content, header, sample_key

LIMIT = 1 << 30


@pytest.fixture(autouse=True)
def _no_unexpected_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def put(tier: DiskTier, key: VariantKey, size: int | None = None) -> None:
    tier.put(key.digest, header(key), content(key, size))


def found(tier: DiskTier, *numbers: int) -> list[int]:
    """Which of the sample keys have a right entry; there may be no wrong one."""
    right = []
    for number in numbers:
        lookup = tier.get(sample_key(number).digest)
        if lookup.status == "hit":
            size = len(lookup.payload)
            assert lookup.payload == content(sample_key(number), size)
            right.append(number)
    return right


def as_nobody(code: str, *arguments: object) -> str:
    """Runs code in a process of another user, who can import what we import."""
    program = f"""
import os, sys, warnings
sys.path[:0] = {sys.path!r}
from pathlib import Path
from shapejit.cache.disk import DiskTier
from unit.cache_samples import content, header, sample_key
warnings.simplefilter("always")
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
{code}
"""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of files")


# What is written is read.


def test_an_entry_is_read_by_another_tier(folder: Path) -> None:
    key = sample_key()
    put(DiskTier(folder, LIMIT), key)
    lookup = DiskTier(folder, LIMIT).get(key.digest)
    assert lookup.status == "hit"
    assert lookup.payload == content(key)
    assert lookup.header is not None
    assert lookup.header.seconds == 0.25
    assert DiskTier(folder, LIMIT).get(sample_key(1).digest).status == "missing"


def test_folder_and_files_are_the_users_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        put(DiskTier(folder, LIMIT), sample_key())
    finally:
        os.umask(before)
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o022 == 0, path
        if path.name != FILE_NAME:  # SQLite's own mode; nobody else gets into the folder
            assert mode & 0o077 == 0, path
    assert (
        (folder / "CACHEDIR.TAG")
        .read_text()
        .startswith("Signature: 8a477f597d28d172789f06886806bc55")
    )


def test_nothing_is_made_by_looking(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    assert tier.get(sample_key().digest).status == "missing"
    assert tier.usage() == (0, 0)
    assert tier.details() == []
    assert tier.prune(0).removed == 0
    assert tier.verify(remove=True).entries == 0
    tier.close()
    assert not folder.exists()


def test_a_folder_deleted_at_any_time_is_made_again(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    put(tier, sample_key(0))
    subprocess.run(["rm", "-r", str(folder)], check=True)
    assert found(tier, 0) == []
    put(tier, sample_key(1))
    assert found(tier, 0, 1) == [1]
    assert tier.state == "on"


def test_a_folder_with_odd_characters(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "a?b#c%20d é", LIMIT)
    put(tier, sample_key())
    assert found(tier, 0) == [0]
    assert tier.details()[0].info.digest == sample_key().digest


# Listing.


def test_entries_are_listed_with_what_explains_them(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    for number in range(3):
        put(tier, sample_key(number), 1000)
    found(tier, 1)
    found(tier, 1)
    details = tier.details()
    assert details[0].info.digest == sample_key(1).digest
    info = details[0].info
    assert (info.kind, info.dtypes, info.cpu) == ("gemm", ("f32", "f32", "f32"), "znver4")
    assert (info.seconds, info.uses) == (0.25, 2)
    assert info.bytes > 1000
    assert abs(info.used - time.time()) < 60
    assert details[0].note == "made for a test"
    assert details[0].record["text"] == "text of kernel 1"
    assert details[0].to_dict()["info"]["kind"] == "gemm"
    prefix = sample_key(2).digest[:12]
    assert [each.info.digest for each in tier.details(prefix)] == [sample_key(2).digest]
    assert tier.details("../") == []


def test_verify_tells_sound_entries_from_others(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    for number in range(4):
        put(tier, sample_key(number), 1000)
    damaged, link = (folder / "objects" / f"{sample_key(n).digest}.entry" for n in (1, 2))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    link.unlink()
    link.symlink_to("/dev/zero")
    (folder / "objects" / "README").write_text("not an entry")
    report = tier.verify(remove=False)
    assert (report.entries, report.removed) == (2, 0)
    assert {problem.digest: problem.reason for problem in report.problems} == {
        sample_key(1).digest: "its payload has 999 bytes where its header states 1000",
        sample_key(2).digest: "it is a symbolic link",
    }
    assert tier.verify(remove=True).removed == 2
    assert tier.verify(remove=False).problems == ()
    assert found(tier, 0, 1, 2, 3) == [0, 3]


# Pruning.


def test_the_bound_holds_and_what_was_used_last_stays(folder: Path) -> None:
    tier = DiskTier(folder, 100_000)
    for number in range(30):
        put(tier, sample_key(number), 10_000)
        found(tier, 0)
        assert tier.usage()[1] <= 100_000
    assert found(tier, 0, 1, 29) == [0, 29]
    assert tier.pruned == 30 - tier.usage()[0]
    assert tier.pruned_bytes > 10_000 * tier.pruned


def test_uses_by_another_process_count(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    for number in range(3):
        put(tier, sample_key(number), 1000)
    reader = DiskTier(folder, LIMIT)
    found(reader, 0)
    reader.close()
    assert tier.prune(2500).removed == 2
    assert found(tier, 0, 1, 2) == [0]


def test_uses_are_noted_at_exit(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    for number in range(3):
        put(tier, sample_key(number), 1000)
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from shapejit.cache.disk import DiskTier
tier = DiskTier(Path(sys.argv[1]), 1 << 30)
assert tier.get(sys.argv[2]).status == "hit"
"""
    command = [sys.executable, "-c", code, str(folder), sample_key(0).digest]
    subprocess.run(command, check=True, timeout=60)
    (info,) = [d.info for d in tier.details(sample_key(0).digest)]
    assert info.uses == 1


def test_prune_enters_what_the_index_lacks(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    for number in range(4):
        put(tier, sample_key(number), 1000)
    with closing(sqlite3.connect(folder / FILE_NAME)) as index:
        index.execute("DELETE FROM entries WHERE digest = ?", (sample_key(0).digest,))
        index.execute("INSERT INTO entries VALUES ('gone', 5, 5, 5)")
        index.commit()
    report = tier.prune(LIMIT)
    assert (report.removed, report.entries) == (0, 4)
    with closing(sqlite3.connect(folder / FILE_NAME)) as index:
        digests = {row[0] for row in index.execute("SELECT digest FROM entries")}
    assert digests == {sample_key(number).digest for number in range(4)}


def test_prune_to_nothing(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    for number in range(3):
        put(tier, sample_key(number), 1000)
    report = tier.prune(0)
    assert (report.removed, report.entries, report.bytes) == (3, 0, 0)
    assert report.freed > 3000
    assert list((folder / "objects").iterdir()) == []


def test_an_entry_beyond_the_bound_is_not_written(folder: Path) -> None:
    tier = DiskTier(folder, 5000)
    put(tier, sample_key(0), 1000)
    put(tier, sample_key(1), 6000)
    assert found(tier, 0, 1) == [0]


def test_an_entry_that_cannot_be_described_is_not_written(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    with pytest.warns(CacheWarning, match="cannot be stored: the record of a key takes"):
        tier.put(sample_key().digest, Header({"kind": "x" * (1 << 20)}, 0.0, 0.0), b"code")
    assert not folder.exists()


def test_what_killed_writers_left_is_swept(folder: Path) -> None:
    put(DiskTier(folder, LIMIT), sample_key(0))
    old, new = (folder / "objects" / f".tmp-1-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half an entry")
    os.utime(old, (time.time() - 7200,) * 2)
    tier = DiskTier(folder, LIMIT)
    put(tier, sample_key(1))
    assert not old.exists()
    assert new.exists(), "its writer may be at work"
    assert tier.usage()[0] == 2


# The index is a hint.


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE entries",
        "DROP TABLE entries; CREATE TABLE entries (other)",
        "DROP TABLE entries; CREATE VIEW entries AS SELECT 1",
        "UPDATE entries SET used = 'then'",
        "UPDATE entries SET used = 9e999",
        b"not a database at all" * 100,
        b"",
    ],
    ids=lambda damage: repr(damage)[:40],
)
def test_a_damaged_index_is_made_again(folder: Path, damage: str | bytes) -> None:
    tier = DiskTier(folder, LIMIT)
    for number in range(3):
        put(tier, sample_key(number), 1000)
    path = folder / FILE_NAME
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        with closing(sqlite3.connect(path)) as index:
            index.executescript(damage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(tier.details()) == 3
        put(tier, sample_key(3), 1000)
        assert tier.prune(4000).removed == 2
    # A missing table is only a new index.
    if damage not in (b"", "DROP TABLE entries"):
        (warning,) = caught
        assert str(warning.message).startswith(
            f"shapejit's cache: the index in {folder} is made again: "
        )
    assert found(tier, 0, 1, 2, 3)[-1] == 3


def test_pages_of_the_index_overwritten_at_random(folder: Path) -> None:
    tier = DiskTier(folder, LIMIT)
    for number in range(20):
        put(tier, sample_key(number), 300)
    path = folder / FILE_NAME
    whole = path.read_bytes()
    for offset in range(0, len(whole), 511):
        path.write_bytes(whole[:offset] + os.urandom(64) + whole[offset + 64 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            put(tier, sample_key(20), 300)
            tier.details()
            tier.prune(LIMIT)
    assert found(tier, *range(21)) == list(range(21))


def test_a_busy_index_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapejit.cache.index._BUSY_SECONDS", 0.05)
    tier = DiskTier(folder, LIMIT)
    put(tier, sample_key(0), 1000)
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        put(tier, sample_key(1), 1000)
        assert found(tier, 0, 1) == [0, 1]
        assert len(tier.details()) == 2
        assert tier.prune(2500).removed == 1
        other.execute("ROLLBACK")
    assert tier.prune(LIMIT).entries == 1


def test_a_forked_child_does_without_the_index(folder: Path) -> None:
    """It keeps the bound all the same, and what it used counts as used."""
    tier = DiskTier(folder, 20_000)
    for number in range(3):
        put(tier, sample_key(number), 1000)
        os.utime(folder / "objects" / f"{sample_key(number).digest}.entry", (1000 + number,) * 2)
    os.unlink(folder / FILE_NAME)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            copy = tier.copy()
            assert found(copy, 0) == [0]
            for number in range(3, 30):
                put(copy, sample_key(number), 1000)
                assert copy.usage()[1] <= 20_000
            assert found(copy, 0, 1, 2, 29) == [29]
            assert found(copy, 28) == [28]
            copy.prune(6000)
            copy.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not (folder / FILE_NAME).exists()
    assert found(tier, 28, 29) == [28, 29]


# Folders that cannot be written.


def test_an_impossible_folder_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tier = DiskTier(tmp_path / "file" / "cache", LIMIT)
    with pytest.warns(CacheWarning) as caught:
        for number in range(3):
            assert tier.get(sample_key(number).digest).status == "missing"
            put(tier, sample_key(number))
        tier.prune(0)
        tier.details()
    assert [str(w.message) for w in caught] == [
        f"shapejit's cache: folder {tier.root} cannot be used (Not a directory). New code is kept "
        "in memory only. Set SHAPEJIT_CACHE_DIR to a folder that can be written, or SHAPEJIT_CACHE "
        "to off."
    ]
    assert tier.write_errors == 1
    assert tier.state == "not usable: Not a directory"


@needs_root
def test_a_folder_of_another_that_cannot_be_written_serves_what_it_has(tmp_path: Path) -> None:
    """Root may provide a cache for everyone."""
    folder = tmp_path / "cache"
    put(DiskTier(folder, LIMIT), sample_key(0))
    shared = Path(tempfile.gettempdir())
    for path in (*tmp_path.parents, tmp_path, folder, *folder.rglob("*")):
        if shared in path.parents:
            path.chmod(0o755 if path.is_dir() else 0o644)
    output = as_nobody(
        """
tier = DiskTier(Path(sys.argv[1]), 1 << 30)
key, other = sample_key(0), sample_key(1)
assert tier.get(key.digest).payload == content(key)
for _ in range(3):
    tier.put(other.digest, header(other), content(other))
assert tier.get(other.digest).status == "missing"
assert tier.details()[0].info.digest == key.digest
""",
        folder,
    )
    assert output.count("CacheWarning") == 1
    assert "cannot be used (Permission denied)" in output
    assert found(DiskTier(folder, LIMIT), 0, 1) == [0]


def test_read_only_writes_nothing(folder: Path) -> None:
    put(DiskTier(folder, LIMIT), sample_key(0))
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}
    tier = DiskTier(folder, 10, read_only=True)
    assert tier.state == "read-only"
    put(tier, sample_key(1))
    assert found(tier, 0, 1) == [0]
    assert tier.prune(0).removed == 0
    assert tier.verify(remove=True).entries == 1
    assert len(tier.details()) == 1
    tier.close()
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]} == before


def test_a_full_disk_leaves_no_half_entry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = DiskTier(folder, LIMIT)
    put(tier, sample_key(0))

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", no_space)
    with pytest.warns(CacheWarning, match="No space left on device"):
        put(tier, sample_key(1))
    put(tier, sample_key(2))
    assert tier.write_errors == 1
    assert [path.suffix for path in (folder / "objects").iterdir()] == [".entry"]
    assert found(tier, 0, 1, 2) == [0]
