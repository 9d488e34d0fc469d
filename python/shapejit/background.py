# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs whose code is completed while they are called already.

A compilation for a GPU spends most of its time on variants of kernels. One of each serves all
sizes; the others make it faster. With `CompileOptions.background` a program starts with one each,
and a thread builds the rest, loads it, makes its graphs, and then puts it in the place of what the
program has: one store of a reference, which calls read once. So

- no call waits for a build, nor for graphs;
- a call that is under way, and what it queued, ends with the code that it began with; so do graphs
  that a caller captured;
- the code before goes when no call has it any more, by the thread, not by a call.

A build that fails leaves the program as it is, with one warning.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from shapejit import logs
from shapejit.artefacts import Artefacts
from shapejit.progress import Progress

if TYPE_CHECKING:
    from shapejit.execution import Execution

_LOG = logs.logger("runtime")

# How often the thread looks whether calls still have the code before, and for how long.
_STEP, _PATIENCE = 0.005, 60.0


class Replaceable(Protocol):
    """A program, as the thread sees it."""

    def replace_code(self, artefacts: Artefacts) -> Execution:
        """Loads code and puts it in place; returns what was there."""


class Completion:
    """The rest of a program's code, on its way.

    Attributes:
        failure: why it will not come; None if it may.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether it is in place, or will not come."""
        return self._over.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for that, so many seconds at most; returns `is_over`."""
        return self._over.wait(seconds)

    def run(
        self,
        program: weakref.ref[Replaceable],
        build: Callable[[Progress], Artefacts],
        keep: Callable[[Artefacts], None],
    ) -> None:
        """All of it, in the thread."""
        try:
            if program() is None or not threading.main_thread().is_alive():
                return
            artefacts = build(Progress(visible=False))
            if (found := program()) is not None:
                before = found.replace_code(artefacts)
                del found
                self._over.set()
                _outlive_calls(before)
                del before
            _keep(artefacts, keep)
        except Exception as error:  # of the passes, the assembler, the driver: calls go on without
            self.failure = str(error)
            if not threading.main_thread().is_alive():
                return  # builds end with the process
            _LOG.warning(
                "the rest of a program's code cannot be had; it keeps what it has: %s", error
            )
        finally:
            self._over.set()


def complete(
    program: Replaceable,
    build: Callable[[Progress], Artefacts],
    keep: Callable[[Artefacts], None],
) -> Completion:
    """Begins to build the rest of a program's code, unless the program is gone by then.

    Args:
        program: the program, which is not kept alive.
        build: gives the code.
        keep: receives it in the end, for other processes.
    """
    completion = Completion()
    reference = weakref.ref(program)
    _thread().submit(completion.run, reference, build, keep)
    return completion


def _keep(artefacts: Artefacts, keep: Callable[[Artefacts], None]) -> None:
    """Hands a program's code on; that this fails is of no concern to the program."""
    try:
        keep(artefacts)
    except Exception as error:
        if threading.main_thread().is_alive():
            _LOG.warning("a program is complete, but not kept for other processes: %s", error)


def _outlive_calls(execution: Execution) -> None:
    """Waits until nobody else has an execution: the last one to let it go frees device memory,
    which may wait for the device, and that should not be a call."""
    end = time.monotonic() + _PATIENCE
    # The argument here, that of the count, and the caller's variable.
    while sys.getrefcount(execution) > 3 and time.monotonic() < end:
        time.sleep(_STEP)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """The thread that completes programs, one after the other."""
    return ThreadPoolExecutor(1, thread_name_prefix="shapejit-complete")


os.register_at_fork(after_in_child=_thread.cache_clear)  # a child does not have the thread


__all__ = ["Completion", "complete"]
