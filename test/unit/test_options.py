# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compile options: validation, overrides by name, and the hash."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shapejit.errors import OptionError
from shapejit.options import CompileOptions


def test_override_replaces_fields_in_a_copy() -> None:
    options = CompileOptions()
    changed = options.override(opt_level=3, max_regions=4)
    assert (changed.opt_level, changed.max_regions) == (3, 4)
    assert options == CompileOptions()
    assert options.override() == options


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CompileOptions().opt_level = 3  # type: ignore[misc]


def test_unknown_option_names_its_neighbour_and_all_options() -> None:
    with pytest.raises(OptionError) as raised:
        CompileOptions().override(max_region=4)
    assert str(raised.value) == (
        'SJ-OPTION-001 "max_region" is not a compile option (did you mean "max_regions"?). '
        "The options are background, deterministic, dump_to, float32_conv_precision, "
        "float32_precision, free_original, max_regions, max_rel_error, opt_level, target_cpu, "
        "verify_each, winograd."
    )


def test_unknown_option_without_a_neighbour() -> None:
    with pytest.raises(OptionError, match=r'^SJ-OPTION-001 "zz" is not a compile option\. The'):
        CompileOptions().override(zz=1)


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("opt_level", 4, "it must be from 0 to 3"),
        ("opt_level", -1, "it must be from 0 to 3"),
        ("opt_level", "2", "it must be of type int"),
        ("opt_level", True, "it must be of type int"),
        ("max_regions", 0, "it must be at least 1"),
        ("float32_precision", "tf16", "it must be one of auto, ieee, tf32"),
        ("float32_conv_precision", "high", "it must be one of auto, ieee, tf32"),
        ("winograd", "on", "it must be one of auto, off, force"),
        ("max_rel_error", -1.0, "it must be at least 0"),
        ("target_cpu", "", "it must name a CPU"),
        ("verify_each", 1, "it must be of type bool"),
        ("dump_to", 3, "it must be of type str or None"),
        ("dump_to", "", "it must name a folder"),
    ],
)
def test_bad_values(option: str, value: Any, rule: str) -> None:
    with pytest.raises(OptionError) as raised:
        CompileOptions(**{option: value})
    default = getattr(CompileOptions(), option)
    assert str(raised.value) == (
        f"SJ-OPTION-002 option {option!r} is {value!r}: {rule}. ".replace(
            "'" + option + "'", f'"{option}"'
        )
        + f"Pass for example {option}={default!r}, the default."
    )


def test_dump_to_takes_a_path(tmp_path: Path) -> None:
    assert CompileOptions(dump_to=tmp_path).dump_to == str(tmp_path)  # type: ignore[arg-type]


def test_hash_follows_what_changes_the_code() -> None:
    base = CompileOptions()
    assert base.hash() == CompileOptions().hash()
    assert len(base.hash()) == 64
    for name, value in {
        "opt_level": 3,
        "max_regions": 2,
        "target_cpu": "x86-64-v3",
        "deterministic": True,
    }.items():
        assert base.override(**{name: value}).hash() != base.hash(), name
    for name, value in {"dump_to": "/tmp", "verify_each": True, "free_original": True}.items():
        assert base.override(**{name: value}).hash() == base.hash(), name


def test_hash_is_the_same_in_another_process() -> None:
    code = "from shapejit.options import CompileOptions; print(CompileOptions().hash())"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == CompileOptions().hash()
