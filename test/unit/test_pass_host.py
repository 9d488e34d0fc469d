# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The host of Python passes: options, failures, repro commands, threads."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlir.ir as ir
import pytest

from shapejit import ir as sir
from shapejit import passes
from shapejit.pass_host import (
    Pass,
    PassFailure,
    PipelineError,
    option,
    register_pass,
    registered_passes,
    run_pipeline,
)

FUNCTION = """
func.func @f(%x: tensor<?xf32, #shapejit.shape<[s0]>>) -> tensor<?xf32, #shapejit.shape<[s0]>> {
  %0 = shapejit.view %x at affine_map<(d0) -> (d0)>
      : tensor<?xf32, #shapejit.shape<[s0]>> -> tensor<?xf32, #shapejit.shape<[s0]>>
  return %0 : tensor<?xf32, #shapejit.shape<[s0]>>
}
"""

_seen: list[tuple[int, bool, str]] = []


def run_tool(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user does whose environment is active."""
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": os.pathsep.join([scripts, os.environ["PATH"]])}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@register_pass("test-record-options")
@dataclass(frozen=True)
class RecordOptions(Pass):
    """Records its options."""

    level: int = option(1, help="a number")
    be_loud: bool = option(False, help="a switch")
    tag: str = option("x", help="a text")

    def run(self, module: Any) -> None:
        _seen.append((self.level, self.be_loud, self.tag))


@register_pass("test-reject-views")
@dataclass(frozen=True)
class RejectViews(Pass):
    """Rejects every view."""

    def run(self, module: Any) -> None:
        for op in sir.walk(module):
            if op.name == "shapejit.view":
                raise PassFailure(op, "a view is not welcome here")


@register_pass("test-crash")
@dataclass(frozen=True)
class Crash(Pass):
    """Raises what no pass should."""

    def run(self, module: Any) -> None:
        raise KeyError("no such symbol s9")


@pytest.fixture
def module() -> Any:
    with ir.Context():
        return ir.Module.parse(FUNCTION)


def test_options_have_defaults(module: Any) -> None:
    _seen.clear()
    run_pipeline(module, "test-record-options", stage="test")
    assert _seen == [(1, False, "x")]


def test_options_are_typed_and_kebab_case(module: Any) -> None:
    _seen.clear()
    pipeline = "test-record-options{level=-7 be-loud=true tag=lit},test-record-options{tag=y}"
    run_pipeline(module, pipeline, stage="test")
    assert _seen == [(-7, True, "lit"), (1, False, "y")]


def test_unknown_option_is_refused(module: Any) -> None:
    with pytest.raises(ValueError, match="no such option volume"):
        run_pipeline(module, "test-record-options{volume=3}", stage="test")


def test_failure_is_an_error_at_the_op(module: Any) -> None:
    with pytest.raises(PipelineError, match="a view is not welcome here") as caught:
        run_pipeline(module, "test-reject-views", stage="fold-views")
    assert ":3:8" in caught.value.diagnostics  # where the view stands
    assert "stage 'fold-views' failed" in str(caught.value)


def test_exception_names_its_line(module: Any) -> None:
    with pytest.raises(
        PipelineError, match=r"KeyError: 'no such symbol s9' \[test_pass_host.py:\d+\]"
    ):
        run_pipeline(module, "test-crash", stage="test")


def test_repro_command_repeats_an_upstream_failure(
    module: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs as printed: quoted, with the IR as it was before the pipeline."""
    passes.register_all()
    monkeypatch.setenv("SHAPEJIT_DUMP_TO", str(tmp_path))
    with pytest.raises(PipelineError) as caught:
        run_pipeline(module, "shapejit-lower-to-host", stage="lower-to-host")
    assert caught.value.reproducer.is_relative_to(tmp_path)
    again = run_tool(shlex.split(caught.value.command))
    assert again.returncode != 0
    assert "has no memory plan; run shapejit-plan-memory first" in again.stderr


def test_bad_option_type_is_refused() -> None:
    with pytest.raises(TypeError, match="option ratio must be an int, bool or str"):

        @register_pass("test-bad-option")
        @dataclass(frozen=True)
        class BadOption(Pass):
            """Has an option of a type that pipelines cannot spell."""

            ratio: float = option(0.5, help="a ratio")


def test_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown dialect 'aten'"):

        @register_pass("test-bad-dialect", dialects=("aten",))
        @dataclass(frozen=True)
        class BadDialect(Pass):
            """Creates ops of a dialect that the host does not know."""


def test_all_passes_are_registered_under_their_file_names() -> None:
    passes.register_all()
    for entry in registered_passes():
        if entry.name.startswith("shapejit-"):
            file = entry.cls.__module__.rpartition(".")[2]
            assert entry.name == "shapejit-" + file.replace("_", "-")


def test_opt_lists_passes_with_their_options() -> None:
    listed = run_tool(["shapejit-opt", "--help"]).stdout
    assert "--shapejit-plan-memory" in listed
    assert "--canonicalize" in listed


NAMED = """
import sys
from shapejit import passes
from shapejit.pass_host import registered_passes
passes.register_in("canonicalize,shapejit-fold-views,cse,shapejit-no-such{level=3}")
passes.register_in("builtin.module(shapejit-plan-memory{x=shapejit},test-shapejit-x)")
print([entry.name for entry in registered_passes()])
print([name for name in sys.modules if name.startswith("shapejit.passes.lower")])
"""


def test_what_a_pipeline_names_is_registered_and_no_more() -> None:
    run = run_tool([sys.executable, "-c", NAMED])
    registered, others = run.stdout.splitlines()
    assert registered == str(["shapejit-fold-views", "shapejit-plan-memory"])
    assert others == "[]"
