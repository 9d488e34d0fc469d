# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit cache`` on a cache with three entries, and ``shapejit demo`` as far as it is ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shapejit import cache
from shapejit.cli.cache import _age_text
from shapejit.knobs import knobs
from unit.cache_samples import content, sample_key
from unit.cli_commands import document, error, output, shapejit

KEYS = [sample_key(number) for number in range(3)]
SIZE = 1000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, with three entries."""
    monkeypatch.setenv("SHAPEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_cache", None)
    monkeypatch.setattr(cache, "_settings", None)
    with knobs.scope():
        for key in KEYS:
            cache.object_cache().get_or_build(
                key, lambda key=key: content(key, SIZE), note="the IR of it"
            )
        yield tmp_path / "cache"


def damage(folder: Path) -> str:
    """Flips a byte of one entry: its digest."""
    digest = KEYS[0].digest
    (path,) = (p for p in folder.rglob("*") if p.is_file() and digest in p.name)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return digest


def test_stats(folder: Path) -> None:
    stats = document("cache", "stats")
    assert (stats["disk_entries"], stats["disk_path"]) == (3, str(folder))
    printed = output("cache", "stats")
    assert f"folder     {folder}\nstate      on\non disk    3 entries, " in printed


def test_ls(folder: Path) -> None:
    entries = document("cache", "ls")
    assert {entry["digest"] for entry in entries} == {key.digest for key in KEYS}
    printed = output("cache", "ls")
    assert all(key.digest[:16] in printed for key in KEYS)
    assert "gemm" in printed


def test_an_empty_cache(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert output("cache", "ls", "--dir", elsewhere) == "The cache is empty.\n"
    assert document("cache", "stats", "--dir", elsewhere)["disk_path"] == str(elsewhere)
    assert knobs.cache_dir != str(elsewhere)


def test_show() -> None:
    digest = KEYS[1].digest
    (entry,) = document("cache", "show", digest[:12])
    assert entry["info"]["digest"] == digest
    assert entry["note"] == "the IR of it"
    printed = output("cache", "show", digest)
    assert printed.startswith(f"key     {digest}\n")
    assert printed.endswith("note\nthe IR of it\n")
    result = shapejit("cache", "show", "nothing")
    assert result.exit_code == 2
    assert "No entry has a key that starts with 'nothing'" in result.stderr


def test_verify(folder: Path) -> None:
    assert output("cache", "verify").startswith("3 sound entries, ")
    digest = damage(folder)
    result = shapejit("cache", "verify")
    assert result.exit_code == 1
    assert result.stdout.startswith("2 sound entries, ")
    assert f"{digest[:16]} is not sound: its payload " in result.stdout
    printed = output("cache", "verify", "--remove")
    assert printed.endswith("1 deleted\n")
    assert document("cache", "verify")["entries"] == 2


def test_prune_keeps_the_size_given() -> None:
    one = document("cache", "stats")["disk_bytes"] // 3
    removed = document("cache", "prune", "--max-bytes", str(one + 16))
    assert (removed["removed"], removed["entries"]) == (2, 1)
    assert output("cache", "prune", "--max-bytes", "1GiB").startswith("0 entries deleted, 0 B; 1 ")
    assert output("cache", "prune").startswith("0 entries deleted")
    result = shapejit("cache", "prune", "--max-bytes", "much")
    assert result.exit_code == 2
    assert "'much' is no number of bytes, such as 512MiB" in result.stderr


def test_clear_asks() -> None:
    assert shapejit("cache", "clear").exit_code == 1  # nobody answers
    assert document("cache", "stats")["disk_entries"] == 3
    assert output("cache", "clear", "--yes").startswith("3 entries deleted, ")
    assert document("cache", "stats")["disk_entries"] == 0


def test_a_cache_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_CACHE", "off")
    assert "state      off" in output("cache", "stats")
    assert output("cache", "ls") == "The cache is empty.\n"


def test_ages() -> None:
    assert [_age_text(s) for s in (-1, 0, 59, 60, 3599, 3600, 86400, 2 * 86400, 9e6)] == [
        *("0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "24 h", "2 days", "104 days")
    ]
    assert time.time() > 0


# The demo.


def test_the_demo_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from shapejit.demo import __main__ as demo

    seen: list[list[str]] = []
    status = [0]

    def main(arguments: list[str]) -> int:
        demo.parse_arguments(arguments)
        seen.append(arguments)
        return status[0]

    monkeypatch.setattr(demo, "main", main)
    given = ["--device", "cpu", "--shapes", "7", "--threads", "2", "--out", "o"]
    given += ["--no-compare-compile", "--query", "a b", "--query", "c"]
    assert output("demo", *given, "--quick") == ""
    assert output("demo", "--compare-compile") == ""
    assert output("demo") == ""
    assert seen == [[*given, "--quick"], ["--compare-compile"], []]
    status[0] = 1
    assert shapejit("demo").exit_code == 1


def test_the_demo_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    from shapejit.demo import __main__ as demo

    def main(_: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")

    monkeypatch.setattr(demo, "main", main)
    assert error("demo") == (
        'SJ-CLI-008 `shapejit demo` needs the package "tokenizers", which is not installed. Run '
        "pip install 'shapejit[demo]'."
    )
