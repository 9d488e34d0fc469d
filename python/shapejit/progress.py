# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Progress of a compilation: time by stage, and a bar on the terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shapejit.knobs import knobs

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Stage:
    """A running stage; `advance` counts its steps, from any thread."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress = progress
        self._task = task

    def advance(self, steps: int = 1) -> None:
        """Note that `steps` more steps of the stage are done."""
        self._progress.advance(self._task, steps)


class Progress(AbstractContextManager["Progress"]):
    """Collects seconds by stage and, if `visible`, shows the running stage on standard error. ::

        with Progress() as progress:
            with progress.stage("lower-to-cpu"):
                ...
            with progress.stage("codegen", steps=9) as stage:
                stage.advance()

    Attributes:
        seconds: wall time by stage, in the order in which they first ran.
    """

    def __init__(self, *, visible: bool | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.visible = _visible_by_knob() if visible is None else visible
        self._bar: Bar | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Progress:
        if self.visible:
            self._bar = _new_bar()
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @contextmanager
    def stage(self, name: str, steps: int | None = None) -> Iterator[Stage]:
        """Time the body as stage `name`; `steps` is how many calls of `advance` to expect."""
        task = None
        if self._bar is not None:
            task = self._bar.add_task(name, total=steps)
        start = time.perf_counter()
        try:
            yield Stage(self, task)
        finally:
            elapsed = time.perf_counter() - start
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + elapsed
            if self._bar is not None and task is not None:
                self._bar.remove_task(task)

    def advance(self, task: Any, steps: int) -> None:
        """Move the bar of a stage; `Stage.advance` calls it."""
        if self._bar is not None and task is not None:
            self._bar.advance(task, steps)


def _visible_by_knob() -> bool:
    if knobs.progress == "auto":
        return sys.stderr.isatty()
    return knobs.progress == "on"


def _new_bar() -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import Progress as Bar

    return Bar(
        SpinnerColumn(),
        TextColumn("shapejit [bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
