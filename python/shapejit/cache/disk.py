# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The disk tier: entries that outlive the process and are shared by all processes of the user.

Nothing here raises when the disk fails: a compiler must not stop for its cache. Trouble with the
folder is warned of once, trouble with an entry once an entry.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shapejit import logs
from shapejit.cache.entry import (
    MAX_HEAD,
    CorruptEntryError,
    Header,
    decode,
    decode_header,
    encode,
)
from shapejit.cache.index import Index, UnavailableError, Use
from shapejit.cache.reports import (
    EntryDetails,
    EntryInfo,
    Problem,
    PruneReport,
    VerifyReport,
    warn,
)
from shapejit.cache.storage import MAX_ENTRY_BYTES, RefusedError, Storage, StoredFile

_LOG = logs.logger("cache")

_PRUNE_TO = 0.9  # of the bound: the next writes should not have to prune again
_MAX_PENDING = 256


@dataclass(frozen=True)
class Lookup:
    """Result of a look at the disk; a hit has payload and header."""

    status: Literal["hit", "missing", "damaged", "refused"]
    payload: bytes = b""
    header: Header | None = None


class DiskTier:
    """Cache entries in a folder. Safe to use from several threads and processes.

    Args:
        root: the folder, an absolute path; it need not exist.
        max_bytes: bound of all entries' files together.
        read_only: never write anything.
    """

    def __init__(self, root: Path, max_bytes: int, *, read_only: bool = False) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.read_only = read_only
        self.pruned = 0
        self.pruned_bytes = 0
        self.write_errors = 0
        self._storage = Storage(root)
        self._index = Index(self._storage, self._warn_of_index)
        self._lock = threading.Lock()  # of the counters and what follows
        self._refusal: str | None = None
        self._trouble: str | None = None
        self._writable = not read_only
        self._rejected: set[str] = set()  # not to be looked at, nor warned of, again
        self._swept = False
        self._uses = _PendingUses()
        # At exit too: a process that only reads is to count as a user of what it read.
        self._finish = weakref.finalize(
            self, _finish, self._uses, self._index, self._storage, os.getpid()
        )

    @property
    def state(self) -> str:
        """``on``, ``read-only``, or why it is not used."""
        if self._refusal is not None:
            return f"refused: {self._refusal}"
        if self._trouble is not None:
            return f"not usable: {self._trouble}"
        return "read-only" if self.read_only else "on"

    def copy(self) -> DiskTier:
        """A tier of the same folder for a forked child: locks and pending uses are the parent's."""
        tier = DiskTier(self.root, self.max_bytes, read_only=self.read_only)
        tier._refusal, tier._trouble = self._refusal, self._trouble
        tier._writable = self._writable
        tier._rejected = set(self._rejected)
        return tier

    # One entry.

    def get(self, digest: str) -> Lookup:
        """Look for an entry. One that is damaged or not to be trusted is warned of."""
        if self._refusal is not None or digest in self._rejected:
            return Lookup("missing")
        try:
            data = self._storage.read(digest)
            if data is None:
                return Lookup("missing")
            header, payload = decode(data, digest)
        except RefusedError as error:
            self._refuse(error, digest)
            return Lookup("missing" if error.folder else "refused")
        except CorruptEntryError as error:
            self._rejected.add(digest)
            warn(f"entry {digest[:16]} in {self.root} is built again: {error}.")
            return Lookup("damaged")
        except OSError as error:
            self._fail(error)
            return Lookup("missing")
        if not self.read_only and self._uses.add(digest) >= _MAX_PENDING:
            self.flush()
        return Lookup("hit", payload, header)

    def put(self, digest: str, header: Header, payload: bytes) -> None:
        """Write an entry, if that is allowed and possible."""
        if not self._writable or self._refusal is not None:
            return
        try:
            data = encode(header, payload)
        except ValueError as error:
            warn(f"entry {digest[:16]} cannot be stored: {error}.")
            return
        if len(data) > min(self.max_bytes, MAX_ENTRY_BYTES):
            return
        try:
            self._write(digest, data)
        except RefusedError as error:
            self._refuse(error, digest)
        except OSError as error:
            with self._lock:
                self._writable = False
                self.write_errors += 1
            self._fail(error)
        else:
            self._rejected.discard(digest)
            _LOG.debug("%s written, %d bytes", digest[:16], len(data))
            self._account(digest, len(data))

    def _write(self, digest: str, data: bytes) -> None:
        try:
            self._storage.write(digest, data)
        except FileNotFoundError:  # the folder was deleted meanwhile, which is allowed
            self._storage.write(digest, data)

    def _account(self, digest: str, size: int) -> None:
        """Enter a new file into the index, and prune if the bound is passed."""
        with self._lock:
            first, self._swept = not self._swept, True
        if first:
            _attempt(self._storage.sweep)
        self.flush()
        try:
            total = self._index.add(digest, size, time.time_ns())
        except UnavailableError:
            total = self.usage()[1]
        if total > self.max_bytes:
            self.prune(int(self.max_bytes * _PRUNE_TO))

    # All entries.

    def usage(self) -> tuple[int, int]:
        """Number and bytes of all entries' files."""
        files = self._files()
        return len(files), sum(file.bytes for file in files)

    def prune(self, max_bytes: int) -> PruneReport:
        """Delete the entries that were not used for longest until the rest fits `max_bytes`."""
        removed: list[StoredFile] = []
        kept: list[StoredFile] = []

        def choose(uses: dict[str, Use]) -> Iterable[StoredFile]:
            kept.clear()
            size = 0
            for file in _last_used_first(self._files(), uses):
                size += file.bytes
                if size <= max_bytes or not self._remove(file.digest):
                    kept.append(file)
                else:
                    removed.append(file)
            return kept

        if self._writable and self._exists():
            self.flush()
            _attempt(self._storage.sweep)
            try:
                self._index.select(choose)
            except UnavailableError:
                choose({})
        else:
            kept = self._files()
        freed = sum(file.bytes for file in removed)
        with self._lock:
            self.pruned += len(removed)
            self.pruned_bytes += freed
        if removed:
            _LOG.info("%d entries deleted from %s, %d bytes", len(removed), self.root, freed)
        return PruneReport(len(removed), freed, len(kept), sum(file.bytes for file in kept))

    def details(self, prefix: str = "") -> list[EntryDetails]:
        """Entries whose digest starts with `prefix`, the last used one first.

        Payloads are not looked at; entries with a damaged header are left out, `verify` tells of
        them.
        """
        uses = self._known_uses()
        found = []
        for file in _last_used_first(self._files(), uses):
            if not file.digest.startswith(prefix):
                continue
            try:
                data = self._storage.read(file.digest, MAX_HEAD)
                if data is not None:
                    header = decode_header(data, file.digest)
                    found.append(_details(file, header, uses.get(file.digest)))
            except (RefusedError, CorruptEntryError, OSError):
                continue
        return found

    def verify(self, *, remove: bool) -> VerifyReport:
        """Check every byte of all entries; with `remove`, delete those that are not sound."""
        sound: list[StoredFile] = []
        problems = []
        for file in self._files():
            try:
                data = self._storage.read(file.digest)
                if data is not None:
                    decode(data, file.digest)
                    sound.append(file)
            except (RefusedError, CorruptEntryError) as error:
                problems.append(Problem(file.digest, str(error)))
            except OSError as error:
                reason = f"it cannot be read ({error.strerror or error})"
                problems.append(Problem(file.digest, reason))
        removed = 0
        if remove and self._writable:
            removed = sum(self._remove(problem.digest) for problem in problems)
        return VerifyReport(len(sound), sum(f.bytes for f in sound), tuple(problems), removed)

    def flush(self) -> None:
        """Note pending uses in the index."""
        _note(self._uses, self._index, self._storage)

    def close(self) -> None:
        """Note pending uses in the index, for the last time."""
        self._finish()

    # Helpers.

    def _files(self) -> list[StoredFile]:
        if self._refusal is not None:
            return []
        try:
            return self._storage.files()
        except RefusedError as error:
            self._refuse(error)
        except OSError as error:
            self._fail(error)
        return []

    def _remove(self, digest: str) -> bool:
        """Delete an entry's file; whether it is gone."""
        return _attempt(lambda: self._storage.remove(digest))

    def _exists(self) -> bool:
        """Whether the folder exists and is to be trusted."""
        try:
            return self._storage.exists()
        except RefusedError as error:
            self._refuse(error)
        except OSError as error:
            self._fail(error)
        return False

    def _known_uses(self) -> dict[str, Use]:
        if self.read_only or not self._exists():
            return {}
        self.flush()
        try:
            return self._index.uses()
        except UnavailableError:
            return {}

    # Trouble.

    def _refuse(self, error: RefusedError, digest: str = "") -> None:
        if not error.folder:
            self._rejected.add(digest)
            warn(f"entry {digest[:16]} in {self.root} is refused and built again: {error}.")
            return
        with self._lock:
            first, self._refusal = self._refusal is None, str(error)
        if first:
            warn(
                f"folder {self.root} is refused: {error}. Code is kept in memory only. Remove the "
                "folder, or set SHAPEJIT_CACHE_DIR to one of your own."
            )

    def _fail(self, error: OSError) -> None:
        text = error.strerror or str(error)
        with self._lock:
            first, self._trouble = self._trouble is None, text
        if first:
            warn(
                f"folder {self.root} cannot be used ({text}). New code is kept in memory only. "
                "Set SHAPEJIT_CACHE_DIR to a folder that can be written, or SHAPEJIT_CACHE to off."
            )

    def _warn_of_index(self, reason: str) -> None:
        warn(f"the index in {self.root} is made again: {reason}.")


class _PendingUses:
    """Uses of entries that the index does not know yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[str, Use] = {}

    def add(self, digest: str) -> int:
        """One more use, now; gives the number of entries with pending uses."""
        with self._lock:
            before = self._uses.get(digest)
            self._uses[digest] = Use(time.time_ns(), 1 if before is None else before.uses + 1)
            return len(self._uses)

    def take(self) -> dict[str, Use]:
        """All of them; they are pending no longer."""
        with self._lock:
            taken, self._uses = self._uses, {}
            return taken


def _note(pending: _PendingUses, index: Index, storage: Storage) -> None:
    """Write pending uses to the index, or else to the times of the files."""
    uses = pending.take()
    if not uses:
        return
    try:
        index.touch(uses)
    except UnavailableError:
        for digest, use in uses.items():
            _attempt(functools.partial(storage.touch, digest, use.used))


def _finish(pending: _PendingUses, index: Index, storage: Storage, owner: int) -> None:
    """At the end: uses of a parent are not noted again by its forked child."""
    if owner == os.getpid():
        _note(pending, index, storage)


def _attempt(act: Callable[[], object]) -> bool:
    """Whether an act on the files went through."""
    try:
        act()
    except (RefusedError, OSError):
        return False
    return True


def _last_used_first(files: Iterable[StoredFile], uses: Mapping[str, Use]) -> list[StoredFile]:
    """Files with the last used one first; what the index does not know was used when written."""

    def last_use(file: StoredFile) -> int:
        return max(file.changed, uses[file.digest].used) if file.digest in uses else file.changed

    return sorted(files, key=last_use, reverse=True)


def _details(file: StoredFile, header: Header, use: Use | None) -> EntryDetails:
    record = header.record
    target = record.get("target")
    dtypes = record.get("dtypes")
    info = EntryInfo(
        digest=file.digest,
        kind=str(record.get("kind", "")),
        dtypes=tuple(map(str, dtypes)) if isinstance(dtypes, (list, tuple)) else (),
        cpu=str(target.get("cpu", "")) if isinstance(target, dict) else "",
        bytes=file.bytes,
        seconds=header.seconds,
        created=header.created,
        used=(file.changed if use is None else max(use.used, file.changed)) / 1e9,
        uses=0 if use is None else use.uses,
    )
    return EntryDetails(info, record, header.note)
