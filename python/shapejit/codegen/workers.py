# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The threads that build code in the background, at most so many at a time in a process.

A burst of new problems must not start a compiler for each: calls queue up, the urgent ones apart.
Threads are started when there is work and end when there is none, so an idle process has none, a
fork loses none, and a change of the limit takes effect with the next call.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


class Job:
    """A call that was submitted, for `Workers.hasten`. It does not keep the call alive."""


@dataclass(frozen=True)
class _Call:
    run: Callable[[], object]
    drop: Callable[[], object]


class Workers:
    """Runs calls in threads, never more than the limit at a time. Thread-safe.

    Args:
        limit: how many calls may run at a time; asked by each `submit`.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._started = 0
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._urgent: OrderedDict[Job, _Call] = OrderedDict()
        self._others: OrderedDict[Job, _Call] = OrderedDict()
        self._threads = 0
        self._most = 1

    @property
    def waiting(self) -> int:
        """Calls that have not begun."""
        return len(self._urgent) + len(self._others)

    @property
    def running(self) -> int:
        """Calls under way; also a thread that is about to take the next one."""
        return self._threads

    def submit(
        self, call: Callable[[], object], dropped: Callable[[], object], *, urgent: bool = False
    ) -> Job:
        """Run a call soon.

        Args:
            call: what to run; it must not raise.
            dropped: called instead when the interpreter ends before the call has begun.
            urgent: before all that are not.
        """
        job = Job()
        most = max(1, self._limit())
        with self._lock:
            self._most = most
            (self._urgent if urgent else self._others)[job] = _Call(call, dropped)
            start = self._threads < most
            if start:
                self._threads += 1
                self._started += 1
                name = f"shapejit-build-{self._started}"
        if start:
            try:
                threading.Thread(target=self._work, name=name).start()
            except RuntimeError:
                # No more threads, or the interpreter ends. If others run, they take the job.
                self._leave()
        return job

    def hasten(self, job: Job) -> None:
        """Make a call urgent that has not begun."""
        with self._lock:
            if job in self._others:
                self._urgent[job] = self._others.pop(job)

    def _work(self) -> None:
        while (call := self._next()) is not None:
            # The interpreter waits for these threads when it ends; what nobody can use any more
            # must not keep it.
            if threading.main_thread().is_alive():
                call.run()
            else:
                call.drop()

    def _next(self) -> _Call | None:
        """The next call, or None for a thread that is not needed, which is then accounted for."""
        with self._lock:
            if self.waiting and self._threads <= self._most:
                return (self._urgent or self._others).popitem(last=False)[1]
            self._threads -= 1
            return None

    def _leave(self) -> None:
        """A thread did not start: what waits is dropped if there is no other to take it."""
        with self._lock:
            self._threads -= 1
            if self._threads:
                return
            calls = [*self._urgent.values(), *self._others.values()]
            self._urgent.clear()
            self._others.clear()
        for call in calls:
            call.drop()


_instances: weakref.WeakSet[Workers] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A child has none of the threads: what they ran or would have run is not its own."""
    for workers in list(_instances):
        workers._reset()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["Job", "Workers"]
