# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How the cache is set up: the knobs, with the folder resolved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shapejit.knobs import knobs


@dataclass(frozen=True)
class Settings:
    """How the cache is set up.

    Attributes:
        memory_bytes: bound of the memory tier.
        folder: folder of the disk tier; None if it is off or there is no home to put it into.
        max_bytes: bound of the disk tier.
        read_only: never write to disk.
    """

    memory_bytes: int
    folder: Path | None
    max_bytes: int
    read_only: bool

    @staticmethod
    def current() -> Settings:
        """What the knobs say now.

        Raises:
            KnobError: an environment variable has a bad value (SJ-KNOB-001).
        """
        return Settings(
            memory_bytes=knobs.cache_memory_bytes,
            folder=_folder() if knobs.cache else None,
            max_bytes=knobs.cache_max_bytes,
            read_only=knobs.cache_read_only,
        )


def _folder() -> Path | None:
    try:
        if knobs.cache_dir is not None:
            return Path(os.path.abspath(Path(knobs.cache_dir).expanduser()))
        shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if shared.is_absolute():  # the standard says to ignore it otherwise
            return shared / "shapejit"
        return Path(os.path.abspath(Path.home())) / ".cache" / "shapejit"
    except RuntimeError:  # this user has no home
        return None
