# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cache of compiled code, in memory and on disk.

It is used by itself and needs no set-up. To look at it or to change how it works::

    import shapejit.cache

    print(shapejit.cache.stats())
    shapejit.cache.configure(max_bytes=8 << 30, disk="/data/shapejit-cache")
    shapejit.cache.prune(max_bytes=1 << 30)

What is stored is native code, which is run when it is found: the folder belongs to its user alone,
and what others could have written is refused with a `CacheWarning`. ``docs/cache.md`` has the rest.
"""

from __future__ import annotations

import os
import threading

from shapejit.cache.disk import DiskTier
from shapejit.cache.key import TargetKey, VariantKey
from shapejit.cache.memory import Lease
from shapejit.cache.objects import Fetched, ObjectCache
from shapejit.cache.reports import (
    CacheStats,
    CacheWarning,
    EntryDetails,
    EntryInfo,
    Problem,
    PruneReport,
    VerifyReport,
)
from shapejit.cache.settings import Settings
from shapejit.knobs import knobs

__all__ = [
    "CacheStats",
    "CacheWarning",
    "EntryDetails",
    "EntryInfo",
    "Fetched",
    "Lease",
    "ObjectCache",
    "Problem",
    "PruneReport",
    "TargetKey",
    "VariantKey",
    "VerifyReport",
    "clear",
    "configure",
    "ls",
    "object_cache",
    "prune",
    "show",
    "stats",
    "verify",
]


def configure(
    *,
    max_bytes: int | None = None,
    disk: bool | str | os.PathLike[str] | None = None,
    read_only: bool | None = None,
    memory_bytes: int | None = None,
) -> None:
    """Change how the cache of this process works; what is not given stays as it is.

    Args:
        max_bytes: bound of the entries on disk, by all processes together.
        disk: False turns the disk off, True turns it on in the folder that the environment says,
            and a path turns it on in that folder.
        read_only: use what is on disk, and write nothing.
        memory_bytes: bound of what is kept in memory beyond what programs use; 0 for nothing.

    Raises:
        KnobError: a value is not one of those (SJ-KNOB-001); then nothing is changed.
    """
    before = dict(knobs.overrides)
    try:
        if max_bytes is not None:
            knobs.cache_max_bytes = max_bytes
        if read_only is not None:
            knobs.cache_read_only = read_only
        if memory_bytes is not None:
            knobs.cache_memory_bytes = memory_bytes
        if disk is not None:
            knobs.cache = disk is not False
            del knobs.cache_dir
            if not isinstance(disk, bool):
                knobs.cache_dir = os.fspath(disk)
    except BaseException:
        knobs.overrides.clear()
        knobs.overrides.update(before)
        raise
    object_cache()


def object_cache() -> ObjectCache:
    """The cache of this process, set up as the knobs say now.

    Raises:
        KnobError: an environment variable has a bad value (SJ-KNOB-001).
    """
    global _cache, _settings
    settings = Settings.current()
    with _lock:
        if _cache is None:
            _cache = ObjectCache(settings.memory_bytes, _disk_tier(settings))
        elif settings != _settings:
            same_disk = _settings is not None and _disk_part(settings) == _disk_part(_settings)
            disk = _cache.disk if same_disk else _disk_tier(settings)
            _cache.reconfigure(settings.memory_bytes, disk)
        _settings = settings
        return _cache


def stats() -> CacheStats:
    """What the cache did in this process, and what it holds."""
    return object_cache().stats()


def ls() -> list[EntryInfo]:
    """The entries on disk, the last used one first. Damaged ones are left out."""
    return [details.info for details in _details("")]


def show(key_prefix: str) -> list[EntryDetails]:
    """The entries on disk whose digest starts with `key_prefix`, with all that explains them."""
    return _details(key_prefix)


def verify(*, remove: bool = False) -> VerifyReport:
    """Check every byte of all entries on disk, and whether each is to be trusted.

    Args:
        remove: delete the entries that are not sound. Without it too, they are never loaded.
    """
    disk = object_cache().disk
    return VerifyReport(0, 0, (), 0) if disk is None else disk.verify(remove=remove)


def prune(max_bytes: int | None = None) -> PruneReport:
    """Delete the entries on disk that were not used for longest.

    Args:
        max_bytes: what may stay; None for the configured bound.
    """
    disk = object_cache().disk
    if disk is None:
        return PruneReport(0, 0, 0, 0)
    return disk.prune(disk.max_bytes if max_bytes is None else max_bytes)


def clear() -> PruneReport:
    """Delete all entries on disk, and forget those in memory. Programs keep what they use."""
    cache = object_cache()
    cache.clear_memory()
    return prune(0)


_lock = threading.Lock()
_cache: ObjectCache | None = None
_settings: Settings | None = None


def _disk_tier(settings: Settings) -> DiskTier | None:
    if settings.folder is None:
        return None
    return DiskTier(settings.folder, settings.max_bytes, read_only=settings.read_only)


def _disk_part(settings: Settings) -> tuple[object, ...]:
    return settings.folder, settings.max_bytes, settings.read_only


def _details(prefix: str) -> list[EntryDetails]:
    disk = object_cache().disk
    return [] if disk is None else disk.details(prefix)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
