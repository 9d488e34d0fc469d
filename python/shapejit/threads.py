# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Threads of CPU programs: the binding of libshapejit_rt.so.

Compiled kernels mark their parallel loops with calls of OpenMP's entry points. The library
implements them on a pool of its own. Their addresses go to `shapejit.codegen.JitLibrary` as
``symbols``, so that any other OpenMP runtime in the process stays out of it::

    library = JitLibrary(objects, symbols=threads.symbols())
    run = threads.entry_point(library.lookup("shapejit_run"))
    run(sizes, buffers, arena, torch.get_num_threads())

The pool has as many threads as any call asked for so far, started when first needed. Calls may come
from several threads at once, with settings of their own, and go on in the child of a fork. Nothing
here needs MLIR, LLVM or torch.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any, TypeAlias

_LIBRARY = "libshapejit_rt.so"

EntryPoint: TypeAlias = Callable[[Any, Any, int | None, int], None]


class _Symbol(ctypes.Structure):
    """``ShapejitRtSymbol``"""

    _fields_ = (("name", c_char_p), ("address", c_void_p))


def library_path(name: str) -> Path:
    """Path of a native library of the package, which needs no MLIR.

    Raises:
        ImportError: it is not installed.
    """
    import shapejit

    # An editable install spreads the package over several directories.
    for directory in shapejit.__path__:
        path = Path(directory, "_libs", name)
        if path.exists():
            return path
    raise ImportError(
        f"shapejit's file _libs/{name} is not installed (searched "
        f"{', '.join(shapejit.__path__)}). Install the package with pip."
    )


@functools.cache
def library() -> ctypes.CDLL:
    """libshapejit_rt.so, loaded once, with the signatures of what this module calls.

    Raises:
        ImportError: the library is not installed.
    """
    found = ctypes.CDLL(str(library_path(_LIBRARY)), mode=ctypes.RTLD_LOCAL)
    found.shapejitRtSymbols.argtypes = [POINTER(c_size_t)]
    found.shapejitRtSymbols.restype = POINTER(_Symbol)
    found.shapejitRtRun.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p, c_int32]
    found.shapejitRtRun.restype = None
    found.shapejitRtSetThreads.argtypes = [c_int32]
    found.shapejitRtSetThreads.restype = None
    for getter in (found.shapejitRtThreads, found.shapejitRtWorkers):
        getter.argtypes = []
        getter.restype = c_int32
    return found


@functools.cache
def _symbols() -> tuple[tuple[str, int], ...]:
    count = c_size_t()
    table = library().shapejitRtSymbols(byref(count))
    return tuple((symbol.name.decode(), symbol.address) for symbol in table[: count.value])


def symbols() -> dict[str, int]:
    """Addresses of the entry points that compiled code may call, by name.

    Raises:
        ImportError: the library is not installed.
    """
    return dict(_symbols())


def entry_point(address: int) -> EntryPoint:
    """A function of the form ``void shapejit_run(symbols, buffers, arena)`` for calls from Python.

    It is called with the values of the program's symbols (a ctypes array of int64), a ctypes array
    of pointers, the address of the working memory, and the most threads that parallel loops of this
    call use, the calling one included (under 1 counts as 1). It runs without the interpreter lock.
    """
    return functools.partial(library().shapejitRtRun, address)


def set_threads(count: int) -> None:
    """Sets the most threads of parallel loops that the calling thread starts otherwise.

    Args:
        count: threads, the calling one included; under 1 counts as 1, the initial setting.
    """
    library().shapejitRtSetThreads(count)


def get_threads() -> int:
    """The setting of the calling thread, see `set_threads`."""
    count: int = library().shapejitRtThreads()
    return count


def workers() -> int:
    """Worker threads of this process, asleep or not, beside the threads that call."""
    count: int = library().shapejitRtWorkers()
    return count


__all__ = [
    "EntryPoint",
    "entry_point",
    "get_threads",
    "library",
    "set_threads",
    "symbols",
    "workers",
]
