# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.cache`: how it is set up, and what it tells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shapejit import cache
from shapejit.cache.settings import Settings
from shapejit.errors import KnobError
from shapejit.knobs import knobs
from unit.cache_samples import content, sample_key

KEY = sample_key()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache that only this test uses."""
    for variable in list(os.environ):
        if variable.startswith("SHAPEJIT_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("SHAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_cache", None)
    monkeypatch.setattr(cache, "_settings", None)
    with knobs.scope():
        yield tmp_path / "cache"


def fill(*numbers: int) -> None:
    for number in numbers:
        key = sample_key(number)
        cache.object_cache().get_or_build(key, lambda key=key: content(key, 1000))


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.current().folder == tmp_path / "cache"
    monkeypatch.setenv("SHAPEJIT_CACHE_DIR", "~/here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.current().folder == tmp_path / "here"
    monkeypatch.delenv("SHAPEJIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Settings.current().folder == tmp_path / "xdg" / "shapejit"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert Settings.current().folder == tmp_path / ".cache" / "shapejit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Settings.current().folder == tmp_path / ".cache" / "shapejit"
    monkeypatch.setenv("SHAPEJIT_CACHE", "off")
    assert Settings.current().folder is None


def test_a_user_without_home_has_no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: object = None) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SHAPEJIT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    fill(0)
    assert cache.stats().disk_state == "off"


def test_the_environment_sets_everything_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_CACHE_MAX_BYTES", "3MiB")
    monkeypatch.setenv("SHAPEJIT_CACHE_MEMORY_BYTES", "2000")
    monkeypatch.setenv("SHAPEJIT_CACHE_READ_ONLY", "1")
    stats = cache.stats()
    assert (stats.disk_limit, stats.memory_limit) == (3 << 20, 2000)
    assert stats.disk_state == "read-only"


@pytest.mark.parametrize("text", ["-1", "1.5GiB", "1GB", "GiB", "many", "9999999TiB"])
def test_a_bad_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHAPEJIT_CACHE_MAX_BYTES", text)
    with pytest.raises(KnobError) as raised:
        cache.stats()
    assert str(raised.value) == (
        f'SJ-KNOB-001 SHAPEJIT_CACHE_MAX_BYTES is "{text}": it must be a number of bytes, such as '
        "1073741824, 512MiB or 1GiB. Set it to 4GiB, or unset it."
    )


def test_configure(folder: Path, tmp_path: Path) -> None:
    fill(0)
    cache.configure(max_bytes=1 << 20, memory_bytes=1 << 16)
    stats = cache.stats()
    assert (stats.disk_limit, stats.memory_limit) == (1 << 20, 1 << 16)
    assert stats.disk_entries == 1
    cache.configure(disk=tmp_path / "other")
    assert cache.stats().disk_path == str(tmp_path / "other")
    assert cache.stats().disk_limit == 1 << 20
    fill(0, 1)  # 0 is in memory
    assert [info.digest for info in cache.ls()] == [sample_key(1).digest]
    cache.configure(read_only=True)
    fill(2)
    assert cache.stats().disk_entries == 1
    cache.configure(disk=False)
    assert cache.stats().disk_state == "off"
    assert cache.ls() == []
    cache.configure(disk=True, read_only=False)
    assert cache.stats().disk_path == str(folder)


def test_counters_survive_a_change() -> None:
    fill(0, 1)
    cache.configure(disk=False)
    fill(0)
    assert (cache.stats().built, cache.stats().memory_hits) == (2, 1)


def test_a_bad_argument_changes_nothing() -> None:
    before = Settings.current()
    with pytest.raises(KnobError, match="SHAPEJIT_CACHE_MEMORY_BYTES"):
        cache.configure(max_bytes=5, memory_bytes=-1)
    with pytest.raises(KnobError, match="SHAPEJIT_CACHE_DIR"):
        cache.configure(max_bytes=5, disk="")
    with pytest.raises(KnobError, match="SHAPEJIT_CACHE_READ_ONLY"):
        cache.configure(read_only=1)  # type: ignore[arg-type]
    assert Settings.current() == before


def test_a_scope_of_knobs_is_followed() -> None:
    fill(0)
    with knobs.scope(cache=False):
        assert cache.stats().disk_state == "off"
        fill(1)
    assert [info.digest for info in cache.ls()] == [sample_key(0).digest]


def test_ls_show_verify(folder: Path) -> None:
    fill(0, 1, 2)
    infos = cache.ls()
    assert {info.digest for info in infos} == {sample_key(n).digest for n in range(3)}
    assert all(info.kind == "gemm" and info.bytes > 1000 for info in infos)
    (details,) = cache.show(KEY.digest[:16])
    assert details.info in infos
    assert details.record["text"] == "text of kernel 0"
    assert cache.show("no such") == []
    assert (cache.verify().entries, cache.verify().problems) == (3, ())
    path = folder / "objects" / f"{KEY.digest}.entry"
    path.write_bytes(path.read_bytes()[:-1])
    assert [problem.digest for problem in cache.verify(remove=True).problems] == [KEY.digest]
    assert cache.verify().entries == 2


def test_prune_and_clear() -> None:
    fill(0, 1, 2)
    size = cache.ls()[0].bytes
    assert cache.prune().removed == 0
    report = cache.prune(5 * size // 2)  # sizes differ by a few bytes of the header
    assert (report.removed, report.entries) == (1, 2)
    assert report.freed == pytest.approx(size, abs=20)
    assert cache.clear().removed == 2
    stats = cache.stats()
    assert (stats.disk_entries, stats.memory_entries, stats.memory_bytes) == (0, 0, 0)
    fill(0)
    assert cache.stats().built == 4


def test_without_disk_there_is_nothing_to_tell() -> None:
    cache.configure(disk=False)
    fill(0)
    assert (cache.ls(), cache.show(""), cache.verify().entries) == ([], [], 0)
    assert cache.prune(0).removed == cache.clear().removed == 0
    assert cache.stats().memory_entries == 0


def test_another_process_finds_what_this_one_built(folder: Path) -> None:
    fill(0)
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from shapejit import cache
from unit.cache_samples import content, sample_key
key = sample_key(0)
fetched = cache.object_cache().get_or_build(key, lambda: 1 / 0)
assert fetched.data == content(key, 1000)
print(fetched.origin, "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["disk", "False"]
