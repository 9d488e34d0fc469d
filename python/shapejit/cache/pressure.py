# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whether the system is short of memory, so that the cache should give some back."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

#: Short of memory: less than this part of it can be had without swapping.
SHORT = 0.05

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")  # of the own container, where there is one


def is_short(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> bool:
    """Whether the system or the container is short of memory; False where that is not known."""
    return any(
        total > 0 and free / total < SHORT
        for total, free in (_of_system(meminfo), _of_container(cgroup))
    )


def _of_system(meminfo: Path) -> tuple[int, int]:
    """Memory in all and memory to be had, in kibibytes; zeros if not known."""
    values = _pairs(meminfo)
    return values.get("MemTotal:", 0), values.get("MemAvailable:", values.get("MemTotal:", 0))


def _of_container(cgroup: Path) -> tuple[int, int]:
    """The limit of the container and what is left of it, in bytes; zeros if there is none."""
    with suppress(OSError, ValueError):  # "max" is no number: there is no limit
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        # Pages of files that nobody read lately count as used, but are there for the taking.
        reclaimable = _pairs(cgroup / "memory.stat").get("inactive_file", 0)
        return limit, limit - used + reclaimable
    return 0, 0


def _pairs(path: Path) -> dict[str, int]:
    """Lines ``name value ...`` of a file as a dict."""
    values = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) >= 2 and words[1].isdigit():
                values[words[0]] = int(words[1])
    return values
