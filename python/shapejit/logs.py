# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Logging: one logger ``shapejit`` of Python's `logging`, with a child for each part.

=========  =====================================================================
import     capture of the model and its way into the dialect
passes     stages of the compiler and what they leave
bucket     which sizes of a kernel share code
codegen    native code of each kernel
cache      code found in the cache, or not
runtime    calls of programs: copies of inputs, packing of weights
=========  =====================================================================

They are quiet until asked, by the environment variable ``SHAPEJIT_LOGS=cache,+passes`` (a name
alone logs at INFO, with ``+`` at DEBUG, with ``-`` at ERROR), or from Python::

    shapejit.logs.set(cache="info", passes="debug")

What is asked for in these ways is printed on standard error, and nowhere else. A program that has
logging of its own leaves them alone, and sets levels and handlers of the loggers as of any others::

    logging.getLogger("shapejit.cache").setLevel(logging.INFO)
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Mapping
from typing import Literal, TextIO, TypeAlias, cast

Name: TypeAlias = Literal["bucket", "cache", "codegen", "import", "passes", "runtime"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

NAMES: tuple[Name, ...] = ("bucket", "cache", "codegen", "import", "passes", "runtime")
ALL = "all"
"""Stands for all names that are not given themselves."""

_ROOT = "shapejit"
_SIGNS = {"": logging.INFO, "+": logging.DEBUG, "-": logging.ERROR}
_LEVELS: dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def logger(name: Name) -> logging.Logger:
    """The logger of a part of shapejit."""
    return logging.getLogger(f"{_ROOT}.{name}")


def set(
    *,
    all: Level | None = None,
    bucket: Level | None = None,
    cache: Level | None = None,
    codegen: Level | None = None,
    import_: Level | None = None,
    passes: Level | None = None,
    runtime: Level | None = None,
) -> None:
    """Say what to log from now on; it goes before the environment variable.

    Each call says everything: a name that is not given logs as `all` says, or else warnings only.

    Raises:
        KnobError: a level is not one of "debug", "info", "warning" and "error" (SJ-KNOB-001).
    """
    from shapejit.knobs import knobs

    given = {
        ALL: all,
        "bucket": bucket,
        "cache": cache,
        "codegen": codegen,
        "import": import_,
        "passes": passes,
        "runtime": runtime,
    }
    # What is no level is passed on as it is, for the knob to refuse.
    knobs.logs = {
        name: cast(int, _LEVELS.get(level, level))
        for name, level in given.items()
        if level is not None
    }
    configure()


def configure() -> None:
    """Take over what the knob `logs` says; quick when it says what it said last.

    Compiling, loading and the command line do so by themselves.

    Raises:
        KnobError: the environment variable has a bad value (SJ-KNOB-001).
    """
    global _applied
    from shapejit.knobs import knobs

    levels = knobs.logs
    with _lock:
        # Loggers that nobody asked shapejit to set are left to the program's own settings.
        if levels == _applied:
            return
        _apply({} if levels is None else {ALL: logging.WARNING, **levels})
        _applied = levels


def parse(text: str) -> dict[str, int]:
    """Levels by name from ``cache,+passes,-import``.

    Raises:
        ValueError: a name is unknown or given twice.
    """
    levels: dict[str, int] = {}
    for item in text.split(","):
        match = re.fullmatch(r"\s*([+-]?)(\w+)\s*", item)
        if match is None or match[2] not in (ALL, *NAMES) or match[2] in levels:
            raise ValueError(item)
        levels[match[2]] = _SIGNS[match[1]]
    return levels


def is_setting(value: object) -> bool:
    """Whether `value` maps names of loggers to levels, as `parse` gives."""
    return (
        isinstance(value, Mapping)
        and {*value} <= {ALL, *NAMES}
        and {*value.values()} <= {*_LEVELS.values()}
    )


def _apply(levels: Mapping[str, int]) -> None:
    root = logging.getLogger(_ROOT)
    root.setLevel(levels.get(ALL, logging.NOTSET))
    for name in NAMES:
        logger(name).setLevel(levels.get(name, logging.NOTSET))
    root.propagate = not levels
    if levels:
        root.addHandler(_handler)
    else:
        root.removeHandler(_handler)


class _Handler(logging.StreamHandler[TextIO]):
    """Prints on what is standard error at that moment."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(
            logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%T")
        )

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


_lock = threading.Lock()
_handler = _Handler()
_applied: Mapping[str, int] | None = None
