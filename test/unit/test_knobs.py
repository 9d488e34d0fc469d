# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Environment variables: strict parsing, values set from Python, scopes, and the docs page."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import pytest

from shapejit.docs_gen import knobs as docs
from shapejit.errors import KnobError, ShapeJitWarning
from shapejit.knobs import Knobs, all_knobs, knobs, warn_of_unknown_variables

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("SHAPEJIT_"):
            monkeypatch.delenv(variable)


def test_defaults() -> None:
    fresh = Knobs()
    assert fresh.dump_to is None
    assert fresh.verify_each is False
    assert fresh.compile_workers == 0
    assert fresh.progress == "auto"
    assert fresh.ptxas is None
    assert fresh.libcuda is None
    assert fresh.compile_threads() == min(16, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dump_to", "/tmp/ir", "/tmp/ir"),
        ("verify_each", "1", True),
        ("verify_each", "TRUE", True),
        ("verify_each", "off", False),
        ("verify_each", "", False),
        ("compile_workers", "3", 3),
        ("progress", "Off", "off"),
    ],
)
def test_values_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    monkeypatch.setenv(all_knobs()[name].variable, text)
    assert getattr(Knobs(), name) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "verify_each",
            "yes",
            'SJ-KNOB-001 SHAPEJIT_VERIFY_EACH is "yes": it must be 1, true, on, 0, false or off. '
            "Set it to 0, or unset it.",
        ),
        (
            "compile_workers",
            "many",
            'SJ-KNOB-001 SHAPEJIT_COMPILE_WORKERS is "many": it must be an integer from 0 to '
            "1024. Set it to 0, or unset it.",
        ),
        (
            "compile_workers",
            "-1",
            'SJ-KNOB-001 SHAPEJIT_COMPILE_WORKERS is "-1": it must be an integer from 0 to 1024. '
            "Set it to 0, or unset it.",
        ),
        (
            "progress",
            "maybe",
            'SJ-KNOB-001 SHAPEJIT_PROGRESS is "maybe": it must be auto, on or off. Set it to '
            "auto, or unset it.",
        ),
    ],
)
def test_bad_values_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    monkeypatch.setenv(all_knobs()[name].variable, text)
    with pytest.raises(KnobError) as raised:
        getattr(Knobs(), name)
    assert str(raised.value) == message


def test_a_value_set_from_python_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_PROGRESS", "on")
    fresh = Knobs()
    fresh.progress = "off"
    assert fresh.progress == "off"
    del fresh.progress
    assert fresh.progress == "on"


def test_a_bad_value_from_python_is_refused() -> None:
    with pytest.raises(KnobError, match="SHAPEJIT_COMPILE_WORKERS"):
        Knobs().compile_workers = 5000


def test_scope_restores_all_knobs_also_after_an_error() -> None:
    fresh = Knobs()
    fresh.compile_workers = 2
    with pytest.raises(ZeroDivisionError), fresh.scope(progress="off", verify_each=True):
        assert (fresh.progress, fresh.verify_each, fresh.compile_workers) == ("off", True, 2)
        fresh.compile_workers = 7
        raise ZeroDivisionError
    assert fresh.overrides == {"compile_workers": 2}


def test_scope_refuses_an_unknown_knob() -> None:
    with pytest.raises(AttributeError, match="no knob 'progres'"), knobs.scope(progres="off"):
        pass


def test_unknown_variables_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_DUMPTO", "/tmp")
    with pytest.warns(ShapeJitWarning) as caught:
        warn_of_unknown_variables()
    assert [str(warning.message) for warning in caught] == [
        "SJ-KNOB-002 SHAPEJIT_DUMPTO is set, but shapejit reads no such variable (did you mean "
        '"SHAPEJIT_DUMP_TO"?). Unset it, or use one of '
        + ", ".join(sorted(knob.variable for knob in all_knobs().values()))
        + "."
    ]
    monkeypatch.delenv("SHAPEJIT_DUMPTO")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_unknown_variables()


def test_no_variable_is_read_behind_the_knobs_back() -> None:
    known = {knob.variable for knob in all_knobs().values()}
    for path in [*ROOT.glob("python/shapejit/**/*.py"), *ROOT.glob("passes/**/*.py")]:
        if path.name in ("errors.py", "error_examples.py"):
            continue
        named = set(re.findall(r"\bSHAPEJIT_[A-Z_]+\b", path.read_text()))
        assert named <= known, path


def test_every_knob_is_used() -> None:
    sources = [p for p in ROOT.glob("python/shapejit/**/*.py") if p.name != "knobs.py"]
    text = "\n".join(path.read_text() for path in sources)
    uses = {"compile_workers": "compile_threads"}
    for name in all_knobs():
        assert f"knobs.{uses.get(name, name)}" in text, name


def test_docs_page_is_current() -> None:
    assert (ROOT / "docs" / "knobs.md").read_text() == docs.page(), (
        "run `python -m shapejit.docs_gen.knobs docs/knobs.md`"
    )
