# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Logging: the variable's grammar, the typed setting, and where records go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from shapejit import logs
from shapejit.errors import KnobError
from shapejit.knobs import knobs


@pytest.fixture(autouse=True)
def _quiet_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SHAPEJIT_LOGS", raising=False)
    with knobs.scope():
        yield
    monkeypatch.undo()
    logs.configure()


def levels() -> dict[str, int]:
    """The level in effect of each logger."""
    return {name: logs.logger(name).getEffectiveLevel() for name in logs.NAMES}


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("cache", {"cache": logging.INFO}),
        ("cache,+passes", {"cache": logging.INFO, "passes": logging.DEBUG}),
        (" +all , -import ", {"all": logging.DEBUG, "import": logging.ERROR}),
    ],
)
def test_grammar(text: str, parsed: dict[str, int]) -> None:
    assert logs.parse(text) == parsed


@pytest.mark.parametrize("text", ["cahce", "cache,", ",", "++cache", "cache cache", "cache,+cache"])
def test_what_the_grammar_refuses_is_an_error_that_lists_the_names(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SHAPEJIT_LOGS", text)
    with pytest.raises(KnobError) as raised:
        logs.configure()
    assert str(raised.value) == (
        f'SJ-KNOB-001 SHAPEJIT_LOGS is "{text}": it must be a list, with commas, of bucket, cache, '
        "codegen, import, passes, runtime and all, each at most once, alone or after a + or a -. "
        "Set it to cache,+passes, or unset it."
    )


def test_the_variable_sets_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_LOGS", "cache,+passes,-import")
    logs.configure()
    assert levels() == {
        "bucket": logging.WARNING,
        "cache": logging.INFO,
        "codegen": logging.WARNING,
        "import": logging.ERROR,
        "passes": logging.DEBUG,
        "runtime": logging.WARNING,
    }


def test_all_stands_for_the_names_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_LOGS", "+all,-codegen")
    logs.configure()
    assert {name for name, level in levels().items() if level == logging.DEBUG} == {*logs.NAMES} - {
        "codegen"
    }


def test_a_setting_from_python_goes_first_and_says_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHAPEJIT_LOGS", "+cache")
    logs.set(passes="debug", import_="error")
    found = levels()
    assert (found["passes"], found["import"], found["cache"]) == (
        logging.DEBUG,
        logging.ERROR,
        logging.WARNING,
    )
    logs.set(all="info")
    assert set(levels().values()) == {logging.INFO}
    del knobs.logs
    logs.configure()
    assert levels()["cache"] == logging.DEBUG


def test_a_level_that_is_none_is_refused() -> None:
    loud: Any = "loud"
    with pytest.raises(KnobError, match="SHAPEJIT_LOGS"):
        logs.set(cache=loud)


def test_records_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set(cache="info")
    logs.logger("cache").info("found %d", 3)
    logs.logger("cache").debug("a detail")
    logs.logger("passes").info("not asked for")
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.endswith(" INFO shapejit.cache: found 3")


def test_without_a_setting_loggers_are_those_of_the_program(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logs.configure()
    with caplog.at_level(logging.DEBUG, logger="shapejit.passes"):
        logs.logger("passes").debug("a detail")
        logs.configure()
        logs.logger("passes").debug("another")
    assert caplog.messages == ["a detail", "another"]
    assert capsys.readouterr().err == ""


def test_what_was_set_is_undone(caplog: pytest.LogCaptureFixture) -> None:
    logs.set(passes="debug")
    del knobs.logs
    logs.configure()
    root = logging.getLogger("shapejit")
    assert root.propagate
    assert not root.handlers
    assert root.level == logs.logger("passes").level == logging.NOTSET
