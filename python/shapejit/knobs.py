# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every environment variable that shapejit reads, typed, in one place.

A knob is an attribute of `knobs`: reading it gives the value set from Python, else the parsed
environment variable, else the default. Parsing is strict: a bad value is a `KnobError`, and an
unknown ``SHAPEJIT_*`` variable is a warning. ::

    from shapejit.knobs import knobs

    knobs.dump_to = "/tmp/ir"            # for the rest of the process
    with knobs.scope(progress="off"):    # restored afterwards
        ...

``docs/knobs.md`` is generated from this file.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from shapejit import logs as log_settings
from shapejit.errors import ErrorId, ShapeJitWarning
from shapejit.options import close_match_hint

T = TypeVar("T")

PREFIX = "SHAPEJIT_"

MOST_WORKERS = 16
"""Builds at the same time unless the knob says otherwise; few compilations have more kernels."""


class Knob(Generic[T]):
    """Descriptor of one knob.

    Attributes:
        variable: name of its environment variable.
        doc: what it does, one sentence.
        rule: which values it takes, as "it must be ...".
        default: its value when nothing sets it.
        default_text: the default in words, for the docs page.
    """

    def __init__(
        self,
        variable: str,
        doc: str,
        *,
        rule: str,
        default: T,
        default_text: str,
        parse: Callable[[str], T],
        check: Callable[[Any], bool],
    ) -> None:
        self.variable = variable
        self.doc = doc
        self.rule = rule
        self.default = default
        self.default_text = default_text
        self._parse = parse
        self._check = check
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Knob[T]: ...

    @overload
    def __get__(self, instance: Knobs, owner: type) -> T: ...

    def __get__(self, instance: Knobs | None, owner: type) -> Knob[T] | T:
        if instance is None:
            return self
        if self._name in instance.overrides:
            value: T = instance.overrides[self._name]
            return value
        text = os.environ.get(self.variable, "")
        return self.default if text == "" else self._from_text(text)

    def __set__(self, instance: Knobs, value: T) -> None:
        if not self._check(value):
            raise self._error(value)
        instance.overrides[self._name] = value

    def __delete__(self, instance: Knobs) -> None:
        instance.overrides.pop(self._name, None)

    def _from_text(self, text: str) -> T:
        try:
            value = self._parse(text)
        except ValueError:
            raise self._error(text) from None
        if not self._check(value):
            raise self._error(text)
        return value

    def _error(self, value: object) -> Exception:
        return ErrorId.SJ_KNOB_001.error(
            knob=self.variable, value=value, rule=self.rule, suggestion=self.default_text
        )


def _flag(variable: str, doc: str, *, default: bool) -> Knob[bool]:
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}

    def parse(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]

    return Knob(
        variable,
        doc,
        rule="it must be 1, true, on, 0, false or off",
        default=default,
        default_text="1" if default else "0",
        parse=parse,
        check=lambda value: isinstance(value, bool),
    )


def _choice(variable: str, doc: str, *, choices: tuple[str, ...], default: str) -> Knob[str]:
    return Knob(
        variable,
        doc,
        rule=f"it must be {', '.join(choices[:-1])} or {choices[-1]}",
        default=default,
        default_text=default,
        parse=str.lower,
        check=lambda value: value in choices,
    )


def _path(variable: str, doc: str, *, what: str) -> Knob[str | None]:
    return Knob(
        variable,
        doc,
        rule=f"it must be the path of a {what}",
        default=None,
        default_text=f"a {what}",
        parse=str,
        check=lambda value: value is None or (isinstance(value, str) and value != ""),
    )


_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _bytes(variable: str, doc: str, *, default_text: str) -> Knob[int]:
    def parse(text: str) -> int:
        match = re.fullmatch(r"([0-9]+) ?([KMGT]iB|)", text)
        if match is None:
            raise ValueError(text)
        return int(match[1]) * _UNITS[match[2]]

    return Knob(
        variable,
        doc,
        rule="it must be a number of bytes, such as 1073741824, 512MiB or 1GiB",
        default=parse(default_text),
        default_text=default_text,
        parse=parse,
        check=lambda value: type(value) is int and 0 <= value < 1 << 63,
    )


class Knobs:
    """The knobs. Use the one instance, `knobs`."""

    def __init__(self) -> None:
        self.overrides: dict[str, Any] = {}

    dump_to: Knob[str | None] = _path(
        "SHAPEJIT_DUMP_TO",
        "Folder that receives a new folder for each compilation: the IR after each stage, LLVM IR, "
        "assembly and object of each kernel (for a GPU its PTX, SASS and cubin), and an index from "
        "kernels to shapes. The option `dump_to` goes first.",
        what="folder",
    )
    verify_each: Knob[bool] = _flag(
        "SHAPEJIT_VERIFY_EACH",
        "Verify all types and shapes of the IR after each stage, as the option `verify_each` does.",
        default=False,
    )
    compile_workers: Knob[int] = Knob(
        "SHAPEJIT_COMPILE_WORKERS",
        "Most pieces of code that are generated at the same time; 0 means one for each CPU this "
        f"process may use, and at most {MOST_WORKERS}.",
        rule="it must be an integer from 0 to 1024",
        default=0,
        default_text="0",
        parse=int,
        check=lambda value: type(value) is int and 0 <= value <= 1024,
    )
    ptxas: Knob[str | None] = _path(
        "SHAPEJIT_PTXAS",
        "NVIDIA's assembler to use; if unset, that of the wheel `nvidia-cuda-nvcc`, of PATH or of "
        "Triton, in this order.",
        what="file",
    )
    libcuda: Knob[str | None] = _path(
        "SHAPEJIT_LIBCUDA",
        "NVIDIA's driver library to load; if unset, the `libcuda.so.1` that the system finds.",
        what="file",
    )
    progress: Knob[str] = _choice(
        "SHAPEJIT_PROGRESS",
        "Progress bar of a compilation; auto shows it when standard error is a terminal.",
        choices=("auto", "on", "off"),
        default="auto",
    )
    logs: Knob[Mapping[str, int] | None] = Knob(
        "SHAPEJIT_LOGS",
        "What to log on standard error, such as `cache,+passes`: a name alone logs what happens, "
        "with + also details, with - errors only. From Python, use `shapejit.logs.set`.",
        rule="it must be a list, with commas, of "
        f"{', '.join(log_settings.NAMES)} and {log_settings.ALL}, each at most once, alone or "
        "after a + or a -",
        default=None,
        default_text="cache,+passes",
        parse=log_settings.parse,
        check=lambda value: value is None or log_settings.is_setting(value),
    )

    cache: Knob[bool] = _flag(
        "SHAPEJIT_CACHE",
        "Keep compiled code on disk for later processes.",
        default=True,
    )
    cache_dir: Knob[str | None] = _path(
        "SHAPEJIT_CACHE_DIR",
        "Folder of the cache; if unset, `shapejit` in `$XDG_CACHE_HOME`, or else in `~/.cache`. "
        "Nobody but you may be able to write to it.",
        what="folder",
    )
    cache_read_only: Knob[bool] = _flag(
        "SHAPEJIT_CACHE_READ_ONLY",
        "Use what the cache has on disk, and write nothing there.",
        default=False,
    )
    cache_max_bytes: Knob[int] = _bytes(
        "SHAPEJIT_CACHE_MAX_BYTES",
        "Most bytes that the cache may take on disk; what was not used for longest goes first.",
        default_text="4GiB",
    )
    cache_memory_bytes: Knob[int] = _bytes(
        "SHAPEJIT_CACHE_MEMORY_BYTES",
        "Most bytes of code that the cache keeps in memory beyond what programs use.",
        default_text="256MiB",
    )

    @contextmanager
    def scope(self, **values: Any) -> Iterator[None]:
        """Set some knobs, and restore all knobs afterwards, also those set inside."""
        saved = dict(self.overrides)
        try:
            for name, value in values.items():
                if name not in all_knobs():
                    raise AttributeError(f"no knob {name!r}; the knobs are {sorted(all_knobs())}")
                setattr(self, name, value)
            yield
        finally:
            self.overrides.clear()
            self.overrides.update(saved)

    def compile_threads(self) -> int:
        """How many pieces of code may be generated at the same time.

        The knob, or the number of CPUs that this process may use, at most `MOST_WORKERS`.
        """
        return self.compile_workers or min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def all_knobs() -> dict[str, Knob[Any]]:
    """Every knob by its Python name."""
    return {name: knob for name, knob in vars(Knobs).items() if isinstance(knob, Knob)}


def warn_of_unknown_variables() -> None:
    """Warn of ``SHAPEJIT_*`` variables that no knob reads: most likely a misspelling."""
    known = sorted(knob.variable for knob in all_knobs().values())
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in known:
            text = ErrorId.SJ_KNOB_002.render(
                {
                    "knob": variable,
                    "hint": close_match_hint(variable, known),
                    "knobs": ", ".join(known),
                }
            )
            warnings.warn(text, ShapeJitWarning, stacklevel=3)


knobs = Knobs()
