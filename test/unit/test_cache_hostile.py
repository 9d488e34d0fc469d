# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Hostile folders and files: what others could have written is never given out."""

from __future__ import annotations

import os
import socket
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapejit.cache.disk import DiskTier
from shapejit.cache.entry import encode
from shapejit.cache.objects import ObjectCache
from shapejit.cache.reports import CacheWarning
from shapejit.cache.storage import RefusedError, Storage
from unit.cache_samples import content, header, sample_key

KEY = sample_key()
LIMIT = 1 << 30
STRANGER = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of files")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with one entry."""
    folder = tmp_path / "cache"
    DiskTier(folder, LIMIT).put(KEY.digest, header(KEY), content(KEY))
    return folder


def entry(folder: Path) -> Path:
    return folder / "objects" / f"{KEY.digest}.entry"


def fetch(folder: Path, *, read_only: bool = False) -> tuple[str, list[str]]:
    """Where a cache takes the entry from, and what it warns of; the content is always right."""
    cache = ObjectCache(1 << 20, DiskTier(folder, LIMIT, read_only=read_only))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fetched = cache.get_or_build(KEY, lambda: content(KEY))
    assert fetched.data == content(KEY)
    return fetched.origin, [str(warning.message) for warning in caught]


def replaced_by_link(folder: Path) -> None:
    entry(folder).rename(folder / "elsewhere")
    entry(folder).symlink_to(folder / "elsewhere")


def replaced_by_fifo(folder: Path) -> None:
    entry(folder).unlink()
    os.mkfifo(entry(folder))


def replaced_by_folder(folder: Path) -> None:
    entry(folder).unlink()
    entry(folder).mkdir()


def replaced_by_device(folder: Path) -> None:
    entry(folder).unlink()
    os.mknod(entry(folder), stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero


def replaced_by_socket(folder: Path) -> None:
    entry(folder).unlink()
    before = os.getcwd()
    os.chdir(folder / "objects")  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s")
        os.rename("s", entry(folder))
    finally:
        os.chdir(before)


def owned_by_a_stranger(folder: Path) -> None:
    os.chown(entry(folder), STRANGER, STRANGER)


def huge(folder: Path) -> None:
    os.truncate(entry(folder), 1 << 40)


def mode(bits: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        entry(folder).chmod(bits)

    return change


REFUSED_FILES = [
    pytest.param(replaced_by_link, "it is a symbolic link", id="link"),
    pytest.param(replaced_by_fifo, "it is not a plain file", id="fifo"),
    pytest.param(replaced_by_socket, "it is not a plain file", id="socket"),
    pytest.param(replaced_by_device, "it is not a plain file", id="device", marks=needs_root),
    pytest.param(
        owned_by_a_stranger,
        f"it belongs to uid {STRANGER}, not to this user (uid {os.geteuid()})",
        id="stranger",
        marks=needs_root,
    ),
    pytest.param(
        mode(0o620), "others than its owner may write to it (mode 0620)", id="group-writable"
    ),
    pytest.param(
        mode(0o602), "others than its owner may write to it (mode 0602)", id="world-writable"
    ),
    pytest.param(huge, f"it has {1 << 40} bytes, more than {1 << 30}", id="huge"),
]


@pytest.mark.parametrize(("attack", "reason"), REFUSED_FILES)
def test_a_file_not_to_be_trusted_is_built_again(
    folder: Path, attack: Callable[[Path], None], reason: str
) -> None:
    attack(folder)
    origin, warned = fetch(folder)
    assert origin == "built"
    assert warned == [
        f"shapejit's cache: entry {KEY.digest[:16]} in {folder} is refused and built again: "
        f"{reason}."
    ]
    # The new entry has taken its place, and is sound.
    assert fetch(folder) == ("disk", [])


@pytest.mark.parametrize(("attack", "reason"), REFUSED_FILES)
def test_a_file_not_to_be_trusted_is_left_alone_if_read_only(
    folder: Path, attack: Callable[[Path], None], reason: str
) -> None:
    attack(folder)
    for _ in range(2):
        origin, warned = fetch(folder, read_only=True)
        assert origin == "built"
        assert len(warned) == 1 and reason in warned[0]


def test_a_folder_in_the_place_of_a_file(folder: Path) -> None:
    replaced_by_folder(folder)
    origin, warned = fetch(folder)
    assert origin == "built"
    assert "refused and built again: it is not a plain file" in warned[0]
    assert "cannot be used (Is a directory)" in warned[1]


def test_a_link_to_a_sound_file_of_the_user_is_refused_too(folder: Path) -> None:
    """Where a link leads can be changed between check and use."""
    replaced_by_link(folder)
    with pytest.raises(RefusedError, match="symbolic link"):
        Storage(folder).read(KEY.digest)
    assert (folder / "elsewhere").read_bytes()


def test_a_link_is_replaced_and_not_written_through(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    entry(folder).unlink()
    entry(folder).symlink_to(precious)
    assert fetch(folder)[0] == "built"
    assert precious.read_text() == "precious"
    assert not entry(folder).is_symlink()


# Folders.


def test_a_linked_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    for path in (link, tmp_path / "link/"):
        origin, warned = fetch(path)
        assert origin == "built"
        assert warned == [
            f"shapejit's cache: folder {link} is refused: it is a symbolic link. Code is kept in "
            "memory only. Remove the folder, or set SHAPEJIT_CACHE_DIR to one of your own."
        ]


def test_a_linked_folder_of_entries_is_refused(folder: Path) -> None:
    (folder / "objects").rename(folder / "elsewhere")
    (folder / "objects").symlink_to(folder / "elsewhere")
    origin, warned = fetch(folder)
    assert origin == "built"
    assert "is refused: it is a symbolic link" in warned[0]


@pytest.mark.parametrize("part", ["", "objects"])
@pytest.mark.parametrize("bits", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, part: str, bits: int) -> None:
    (folder / part).chmod(bits)
    before = entry(folder).stat()
    origin, warned = fetch(folder)
    assert origin == "built"
    assert len(warned) == 1
    assert f"others than its owner may write to it (mode {bits:04o})" in warned[0]
    assert entry(folder).stat() == before, "nothing is written there"


@needs_root
@pytest.mark.parametrize("part", ["", "objects"])
def test_a_folder_of_another_is_refused(folder: Path, part: str) -> None:
    os.chown(folder / part, STRANGER, STRANGER)
    before = entry(folder).stat()
    origin, warned = fetch(folder)
    assert origin == "built"
    assert f"is refused: it belongs to uid {STRANGER}, not to this user (uid 0)" in warned[0]
    assert len(warned) == 1
    assert entry(folder).stat() == before


def test_a_refused_folder_is_not_used_in_any_way(folder: Path) -> None:
    folder.chmod(0o777)
    tier = DiskTier(folder, LIMIT)
    with pytest.warns(CacheWarning) as caught:
        assert tier.details() == []
        assert tier.usage() == (0, 0)
        assert tier.prune(0).removed == 0
        assert tier.verify(remove=True).removed == 0
        tier.put(KEY.digest, header(KEY), content(KEY))
        assert tier.get(KEY.digest).status == "missing"
    assert len(caught) == 1
    assert tier.state == "refused: others than its owner may write to it (mode 0777)"
    assert entry(folder).exists()


def test_a_folder_exchanged_while_it_is_used(folder: Path, tmp_path: Path) -> None:
    """The check is repeated for each use, and holds for the very folder that is read."""
    tier = DiskTier(folder, LIMIT)
    assert tier.get(KEY.digest).status == "hit"
    folder.rename(tmp_path / "old")
    folder.mkdir()
    (folder / "objects").mkdir()
    entry(folder).write_bytes((tmp_path / "old" / "objects" / entry(folder).name).read_bytes())
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match="others than its owner may write"):
        assert tier.get(KEY.digest).status == "missing"


# The index.


def test_a_linked_index_is_replaced(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"")
    index = folder / "index-1.sqlite"
    index.unlink()
    index.symlink_to(precious)
    tier = DiskTier(folder, LIMIT)
    with pytest.warns(CacheWarning, match="index .* is made again: it is a symbolic link"):
        assert len(tier.details()) == 1
    assert precious.read_bytes() == b""
    assert not index.is_symlink()


@needs_root
def test_an_index_of_another_is_replaced(folder: Path) -> None:
    os.chown(folder / "index-1.sqlite", STRANGER, STRANGER)
    with pytest.warns(CacheWarning, match=f"it belongs to uid {STRANGER}"):
        assert len(DiskTier(folder, LIMIT).details()) == 1
    assert (folder / "index-1.sqlite").stat().st_uid == 0


# Contents.


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_damaged_contents_are_built_again(folder: Path, data: st.DataObject) -> None:
    whole = encode(header(KEY), content(KEY))
    damaged = bytearray(whole)
    match data.draw(st.sampled_from(["flip", "cut", "add", "zeros"])):
        case "flip":
            bit = data.draw(st.integers(0, 8 * len(whole) - 1))
            damaged[bit // 8] ^= 1 << bit % 8
        case "cut":
            del damaged[data.draw(st.integers(0, len(whole) - 1)) :]
        case "add":
            damaged += data.draw(st.binary(min_size=1, max_size=9))
        case "zeros":
            start = data.draw(st.integers(0, len(whole) - 64))
            damaged[start : start + 64] = bytes(64)
    entry(folder).write_bytes(damaged)
    origin, warned = fetch(folder)
    assert origin == "built"
    assert len(warned) == 1
    assert f"entry {KEY.digest[:16]} in {folder} is built again: it" in warned[0]
    assert fetch(folder) == ("disk", [])


def test_a_sound_entry_under_anothers_name_is_built_again(folder: Path) -> None:
    other = sample_key(1)
    DiskTier(folder, LIMIT).put(other.digest, header(other), content(other))
    os.replace(folder / "objects" / f"{other.digest}.entry", entry(folder))
    origin, warned = fetch(folder)
    assert origin == "built"
    assert "it holds another key than its name says" in warned[0]


def test_another_format_is_built_again(folder: Path) -> None:
    whole = entry(folder).read_bytes()
    entry(folder).write_bytes(whole.replace(b"entry 1 ", b"entry 7 ", 1))
    origin, warned = fetch(folder)
    assert origin == "built"
    assert "it has format 7, this shapejit reads 1" in warned[0]


def test_damage_is_warned_of_once_and_counted(folder: Path) -> None:
    entry(folder).write_bytes(b"")
    cache = ObjectCache(0, DiskTier(folder, LIMIT, read_only=True))
    with pytest.warns(CacheWarning) as caught:
        for _ in range(3):
            assert cache.get(KEY) is None
            cache.get_or_build(KEY, lambda: content(KEY))
    assert len(caught) == 1
    stats = cache.stats()
    assert (stats.rebuilt, stats.refused, stats.built, stats.disk_hits) == (1, 0, 3, 0)


def test_keys_cannot_name_other_paths(folder: Path) -> None:
    """Digests are hexadecimal; a caller's odd string finds nothing outside."""
    (folder / "secret.entry").write_bytes(entry(folder).read_bytes())
    tier = DiskTier(folder, LIMIT)
    for name in ("../secret", "./../secret", f"{folder}/secret", "..", "", "a\0b"):
        with pytest.raises(ValueError, match="digest"):
            tier.get(name)
        with pytest.raises(ValueError, match="digest"):
            tier.put(name, header(KEY), b"")
