# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the cache tells of itself: plain records, for programs and for the command line."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shapejit.errors import ShapeJitWarning


class CacheWarning(ShapeJitWarning):
    """The cache cannot be used as it should be; what is compiled is right all the same."""


def warn(text: str) -> None:
    """Warn of something that is wrong with the cache."""
    warnings.warn(f"shapejit's cache: {text}", CacheWarning, stacklevel=2)


class Record:
    """Base of the records below."""

    def to_dict(self) -> dict[str, Any]:
        """The record as dicts, lists, strings and numbers."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class CacheStats(Record):
    """The cache of this process. Counters run from the start of the process.

    Attributes:
        memory_hits: code found in memory.
        disk_hits: code read from disk.
        built: code that was compiled.
        shared: requests that waited for another thread's build of the same code.
        failed: builds that raised an error.
        rebuilt: entries on disk that were damaged, and hence built again.
        refused: entries on disk that were not to be trusted, and hence built again.
        evicted: entries that left memory for others, or because the system was short of memory.
        pruned: entries that this process deleted from disk to keep the bound.
        write_errors: entries that could not be written to disk.
        read_bytes, built_bytes, evicted_bytes, pruned_bytes: bytes of code of `disk_hits`,
            `built`, `evicted` and `pruned`.
        build_seconds: time spent in builds, summed over threads.
        saved_seconds: time that the builds of what was found had taken.
        program_memory_hits, program_disk_hits, program_built: the same of whole programs, which no
            counter of code above counts.
        memory_entries: entries held in memory now.
        memory_bytes: bytes of those that the cache itself keeps alive.
        pinned_bytes: bytes of entries that programs hold, kept by the cache or not.
        memory_limit: bound of `memory_bytes`.
        disk_entries, disk_bytes: what the folder holds, by all processes.
        disk_limit: bound of `disk_bytes`.
        disk_path: the folder, or None if there is none.
        disk_state: ``on``, ``read-only``, ``off``, or why it is not used.
    """

    memory_hits: int
    disk_hits: int
    built: int
    shared: int
    failed: int
    rebuilt: int
    refused: int
    evicted: int
    pruned: int
    write_errors: int
    read_bytes: int
    built_bytes: int
    evicted_bytes: int
    pruned_bytes: int
    build_seconds: float
    saved_seconds: float
    program_memory_hits: int
    program_disk_hits: int
    program_built: int
    memory_entries: int
    memory_bytes: int
    pinned_bytes: int
    memory_limit: int
    disk_entries: int
    disk_bytes: int
    disk_limit: int
    disk_path: str | None
    disk_state: str


@dataclass(frozen=True)
class EntryInfo(Record):
    """One entry on disk.

    Attributes:
        digest: digest of its key.
        kind: what the code does: ``gemm``, ``attention``, ``loop``, ``host``; ``program`` for all
            the code of a program.
        dtypes: element types of operands and results.
        cpu: the CPU that it is for.
        bytes: size of its file.
        seconds: time that it took to build.
        created: when, in seconds since the epoch.
        used: last use in seconds since the epoch.
        uses: how often it was read.
    """

    digest: str
    kind: str
    dtypes: tuple[str, ...]
    cpu: str
    bytes: int
    seconds: float
    created: float
    used: float
    uses: int


@dataclass(frozen=True)
class EntryDetails(Record):
    """One entry on disk with all that explains it.

    Attributes:
        info: the line of the listing.
        record: the record of its key.
        note: free text, such as the IR it was made from.
    """

    info: EntryInfo
    record: Mapping[str, Any]
    note: str


@dataclass(frozen=True)
class Problem(Record):
    """An entry on disk that would not be loaded.

    Attributes:
        digest: the digest that its file is named by.
        reason: why, as "it ...".
    """

    digest: str
    reason: str


@dataclass(frozen=True)
class VerifyReport(Record):
    """Result of a check of all entries on disk.

    Attributes:
        entries, bytes: the sound ones, and the bytes of their files.
        problems: the others.
        removed: how many of them were deleted.
    """

    entries: int
    bytes: int
    problems: tuple[Problem, ...]
    removed: int


@dataclass(frozen=True)
class PruneReport(Record):
    """Result of deleting entries from disk.

    Attributes:
        removed, freed: entries deleted, and the bytes of their files.
        entries, bytes: what is left.
    """

    removed: int
    freed: int
    entries: int
    bytes: int
