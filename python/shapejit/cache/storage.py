# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cache's folder on disk: files that nobody but the user can have written.

What is read here is executed, so a folder or file counts only if it belongs to the user (or to
root), no one else may write to it, and it is a plain folder or file. All checks are made on the
descriptor that is then used, and names are resolved relative to the checked folder's descriptor, so
that nothing can be exchanged between check and use. Symbolic links are never followed.

========================  ===================================================================
CACHEDIR.TAG              tells backup programs that the folder may be left out
objects/<digest>.entry    the entries (`shapejit.cache.entry`)
objects/.tmp-*            an entry being written; renamed when whole
index-1.sqlite            sizes and times of use (`shapejit.cache.index`)
========================  ===================================================================
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

OBJECTS = "objects"
MAX_ENTRY_BYTES = 1 << 30
"""Largest entry that is read or written."""

_SUFFIX = ".entry"
_TEMPORARY = ".tmp-"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STALE_SECONDS = 3600.0  # far longer than any write takes; clocks of a network folder may differ

_TAG = "CACHEDIR.TAG"
_TAG_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is shapejit's cache of compiled code. It may be deleted at any time.
"""

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a FIFO must not wait for its writer.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class RefusedError(Exception):
    """A folder or file is not to be trusted; the text says why, as "it ...".

    Attributes:
        folder: whether it is a folder, and with it everything inside.
    """

    def __init__(self, reason: str, *, folder: bool = False) -> None:
        super().__init__(reason)
        self.folder = folder


@dataclass(frozen=True)
class StoredFile:
    """An entry's file as a listing shows it: the name's digest, bytes, last change (epoch ns)."""

    digest: str
    bytes: int
    changed: int


class Storage:
    """The files of a cache folder.

    Every call opens and checks the folder anew, so that it may be deleted or replaced at any time.
    Safe to use from several threads and processes.

    Args:
        root: the folder, an absolute path; it need not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, digest: str, limit: int = MAX_ENTRY_BYTES) -> bytes | None:
        """The bytes of an entry's file, at most `limit`, unchecked; None if there is none.

        Raises:
            RefusedError: the folder or the file is not to be trusted.
            OSError: it cannot be read.
        """
        name = _name(digest)
        with self._folder() as folder:
            if folder is None:
                return None
            try:
                return _read_file(name, folder, limit)
            except FileNotFoundError:
                return None

    def write(self, digest: str, data: bytes) -> None:
        """Put an entry's file in place, whole or not at all; the folder is created if need be.

        Raises:
            RefusedError: the folder is not to be trusted.
            FileNotFoundError: the folder was deleted at the same time.
            OSError: it cannot be written.
        """
        name = _name(digest)
        with self._folder(create=True) as folder:
            if folder is None:
                raise FileNotFoundError(errno.ENOENT, "The folder was deleted", str(self.root))
            temporary = f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
            try:
                _write_file(temporary, data, folder)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def remove(self, digest: str) -> bool:
        """Delete an entry's file; False if there is none.

        Raises:
            RefusedError, OSError: as `read`.
        """
        with self._folder() as folder:
            if folder is None:
                return False
            try:
                os.unlink(_name(digest), dir_fd=folder)
            except FileNotFoundError:
                return False
            return True

    def touch(self, digest: str, now: int) -> None:
        """Give an entry's file a time of last change, in nanoseconds since the epoch.

        Raises:
            RefusedError, OSError: as `read`.
        """
        with self._folder() as folder, suppress(FileNotFoundError):
            if folder is not None:
                os.utime(_name(digest), ns=(now, now), dir_fd=folder, follow_symlinks=False)

    def files(self) -> list[StoredFile]:
        """All entries' files, in no order; what else lies in the folder is left out.

        Raises:
            RefusedError, OSError: as `read`.
        """
        found = []
        with self._folder() as folder:
            for name in [] if folder is None else os.listdir(folder):
                digest = name.removesuffix(_SUFFIX)
                if digest != name and _DIGEST.fullmatch(digest):
                    with suppress(FileNotFoundError):  # deleted by another process just now
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        found.append(StoredFile(digest, status.st_size, status.st_mtime_ns))
        return found

    def sweep(self) -> None:
        """Delete what writers left behind that were killed.

        Raises:
            RefusedError, OSError: as `read`.
        """
        limit = time.time() - _STALE_SECONDS
        with self._folder() as folder:
            for name in [] if folder is None else os.listdir(folder):
                if name.startswith(_TEMPORARY):
                    with suppress(OSError):
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if status.st_mtime < limit:
                            os.unlink(name, dir_fd=folder)

    def exists(self) -> bool:
        """Whether the folder exists.

        Raises:
            RefusedError, OSError: as `read`.
        """
        with self._folder() as folder:
            return folder is not None

    @contextmanager
    def _folder(self, *, create: bool = False) -> Iterator[int | None]:
        """A descriptor of the folder of entries, checked; None if it does not exist."""
        if create:
            self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = _open_folder(str(self.root), None, create=create)
        if root is None:
            yield None
            return
        try:
            if create:
                _write_tag(root)
            folder = _open_folder(OBJECTS, root, create=create)
        finally:
            os.close(root)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)


def check_file(path: Path) -> None:
    """Check a file, if it exists, without opening it.

    Raises:
        RefusedError: it is not to be trusted.
    """
    with suppress(FileNotFoundError):
        _check_file(os.lstat(path))


def _name(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"not a digest of a key: {digest!r}")
    return f"{digest}{_SUFFIX}"


def _open_folder(path: str, parent: int | None, *, create: bool) -> int | None:
    if create:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=parent)
    try:
        descriptor = os.open(path, _OPEN_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _explained(error, path, parent) from error
    try:
        _check_owner(os.fstat(descriptor), folder=True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _explained(error: OSError, path: str, parent: int | None) -> Exception:
    """The reason of a folder that does not open; the kernel has one error for links and files."""
    if error.errno not in (errno.ENOTDIR, errno.ELOOP):
        return error
    with suppress(OSError):
        if stat.S_ISLNK(os.lstat(path, dir_fd=parent).st_mode):
            return RefusedError("it is a symbolic link", folder=True)
    return error


def _read_file(name: str, folder: int, limit: int) -> bytes:
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RefusedError("it is a symbolic link") from error
        if error.errno == errno.ENXIO:
            raise RefusedError("it is not a plain file") from error
        raise
    try:
        status = os.fstat(descriptor)
        _check_file(status)
        if status.st_size > MAX_ENTRY_BYTES:
            raise RefusedError(f"it has {status.st_size} bytes, more than {MAX_ENTRY_BYTES}")
        # One byte more than there should be shows a file that grew.
        return _read_up_to(descriptor, min(status.st_size + 1, limit))
    finally:
        os.close(descriptor)


def _read_up_to(descriptor: int, size: int) -> bytes:
    parts = []
    while size and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write_file(name: str, data: bytes, folder: int) -> None:
    descriptor = os.open(name, _OPEN_NEW, 0o600, dir_fd=folder)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        # Or a loss of power could leave the name with other contents. The checksums would notice,
        # but the entry would be lost with a warning that helps nobody.
        os.fdatasync(descriptor)


def _write_tag(root: int) -> None:
    try:
        descriptor = os.open(_TAG, _OPEN_NEW, 0o600, dir_fd=root)
    except FileExistsError:
        return
    with open(descriptor, "wb") as file:
        file.write(_TAG_TEXT)


def _check_file(status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise RefusedError("it is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError("it is not a plain file")
    _check_owner(status)


def _check_owner(status: os.stat_result, *, folder: bool = False) -> None:
    # Root can write anywhere in any case, and may provide a cache for everyone.
    if status.st_uid not in (0, os.geteuid()):
        raise RefusedError(
            f"it belongs to uid {status.st_uid}, not to this user (uid {os.geteuid()})",
            folder=folder,
        )
    if status.st_mode & 0o022:
        raise RefusedError(
            f"others than its owner may write to it (mode {stat.S_IMODE(status.st_mode):04o})",
            folder=folder,
        )
