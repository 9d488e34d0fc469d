# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The index: size and last use of every entry on disk, shared by all processes, in SQLite.

It answers how much the cache holds and what to delete first without a look at every file. It is a
hint and nothing else: what is loaded is found by name and checked on its own, a lost or damaged
index is made again from the files, and a busy one is passed over.

The rollback journal is used and not the write-ahead log: home folders are often on network file
systems, where the latter does not work, and transactions are few and short. Not synchronous: after
a loss of power the index may have to be made again. A forked child does without the index: threads
that it does not have may have held SQLite's own locks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from shapejit.cache.storage import RefusedError, Storage, StoredFile, check_file

T = TypeVar("T")

FILE_NAME = "index-1.sqlite"
"""The number is the version of the schema."""

_BUSY_SECONDS = 1.0
_DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_SCHEMA = """
CREATE TABLE entries (
    digest TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL,
    used INTEGER NOT NULL,
    uses INTEGER NOT NULL
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO entries VALUES (?, ?, ?, 0)
ON CONFLICT (digest) DO UPDATE SET bytes = excluded.bytes, used = excluded.used
"""


class UnavailableError(Exception):
    """The index cannot be used now: busy, no permission, no space."""


class _DamagedError(Exception):
    """The file is not an index of ours, or holds values that are none."""


@dataclass(frozen=True)
class Use:
    """Last use of an entry in nanoseconds since the epoch, and the number of uses."""

    used: int
    uses: int


class Index:
    """The index of a cache folder.

    Args:
        storage: the folder; its files are what a new index is made from.
        on_rebuild: called with the reason when a damaged index is made again.
    """

    def __init__(self, storage: Storage, on_rebuild: Callable[[str], None]) -> None:
        self._storage = storage
        self._path = storage.root / FILE_NAME
        self._on_rebuild = on_rebuild
        # One connection at a time: closing one would drop the POSIX locks of another.
        self._lock = threading.Lock()

    def add(self, digest: str, size: int, used: int) -> int:
        """Enter a file that was written at `used`; gives the bytes of all entries.

        Raises:
            UnavailableError: it cannot be entered now.
        """

        def run(connection: sqlite3.Connection) -> int:
            connection.execute(_ADD, (digest, size, used))
            return _total(connection)

        return self._transaction(run)

    def touch(self, uses: Mapping[str, Use]) -> None:
        """Note the last uses of entries, and how many there were since the last such note.

        Raises:
            UnavailableError: they cannot be noted now.
        """
        rows = [(use.used, use.uses, digest) for digest, use in uses.items()]
        statement = "UPDATE entries SET used = max(used, ?), uses = uses + ? WHERE digest = ?"
        self._transaction(lambda connection: connection.executemany(statement, rows))

    def uses(self) -> dict[str, Use]:
        """Every entry's last use.

        Raises:
            UnavailableError: the index cannot be read now.
        """
        return self._transaction(_uses)

    def select(self, choose: Callable[[dict[str, Use]], Iterable[StoredFile]]) -> None:
        """Make the entries be those that `choose` gives, while no other process changes them.

        Raises:
            UnavailableError: the index cannot be changed now. `choose` may have been called.
        """

        def run(connection: sqlite3.Connection) -> None:
            uses = _uses(connection)
            kept = {file.digest: file for file in choose(uses)}
            gone = [(digest,) for digest in uses if digest not in kept]
            connection.executemany("DELETE FROM entries WHERE digest = ?", gone)
            for digest, file in kept.items():
                used = uses[digest].used if digest in uses else file.changed
                connection.execute(_ADD, (digest, file.bytes, used))

        self._transaction(run)

    def _transaction(self, run: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._attempt(run)
        except _DamagedError as error:
            self._on_rebuild(str(error))
        self._delete()
        try:
            return self._attempt(run)
        except _DamagedError as error:
            raise UnavailableError(str(error)) from error

    def _attempt(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if _forked:
            raise UnavailableError("this process was forked")
        try:
            with self._connection() as connection:
                return run(connection)
        except sqlite3.Error as error:
            # The low byte is the kind; it is missing if the module and not SQLite complains.
            kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if kind in _DAMAGED:
                raise _DamagedError(str(error)) from error
            raise UnavailableError(str(error)) from error
        except RefusedError as error:
            raise (UnavailableError if error.folder else _DamagedError)(str(error)) from error
        except (ValueError, TypeError, OverflowError) as error:
            raise _DamagedError(str(error)) from error
        except OSError as error:
            raise UnavailableError(str(error)) from error

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection with a transaction that may write, committed at the end."""
        uri = f"file:{urllib.parse.quote(str(self._path))}?mode=rwc"
        with self._lock:
            if not self._storage.exists():
                raise UnavailableError("there is no folder")
            check_file(self._path)
            with closing(
                sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
            ) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute("BEGIN IMMEDIATE")
                self._create(connection)
                yield connection
                connection.execute("COMMIT")

    def _create(self, connection: sqlite3.Connection) -> None:
        exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'entries'"
        if connection.execute(exists).fetchone() is None:
            connection.execute(_SCHEMA)
            rows = [(file.digest, file.bytes, file.changed) for file in self._storage.files()]
            connection.executemany(_ADD, rows)

    def _delete(self) -> None:
        for suffix in ("", "-journal"):
            with suppress(OSError):
                self._path.with_name(f"{self._path.name}{suffix}").unlink(missing_ok=True)


_forked = False


def _after_fork_in_child() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork_in_child)


def _total(connection: sqlite3.Connection) -> int:
    (total,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM entries").fetchone()
    return int(total)


def _uses(connection: sqlite3.Connection) -> dict[str, Use]:
    rows = connection.execute("SELECT digest, used, uses FROM entries")
    return {str(digest): Use(int(used), int(uses)) for digest, used, uses in rows}
