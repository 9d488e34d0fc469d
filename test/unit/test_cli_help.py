# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Help of the command line, its generated page, and how light it starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from shapejit.cli.command import Command
from shapejit.cli.main import cli
from shapejit.docs_gen import cli as docs
from unit.cli_commands import output, shapejit

ROOT = Path(__file__).parents[2]


def all_commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))
        else:
            yield (*path, name)


COMMANDS = list(all_commands())


def find(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


def test_the_commands_are_there_in_order_of_use() -> None:
    assert [" ".join(path) for path in COMMANDS] == [
        "compile",
        "run",
        "explain",
        "bench",
        *(f"cache {name}" for name in ("stats", "ls", "show", "verify", "prune", "clear")),
        "doctor",
        "demo",
    ]
    listed = output("--help").partition("Commands:")[2].split("\n")
    assert [line.split()[0] for line in listed if line.strip()] == list(cli.commands)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_ends_with_examples_that_parse(path: tuple[str, ...]) -> None:
    command = find(path)
    assert isinstance(command, Command)
    printed = output(*path, "--help")
    assert "Examples:" in printed
    assert printed.count(f"  shapejit {' '.join(path)}") == len(command.examples)
    for meaning, *lines in command.examples:
        assert f"  # {meaning}\n" in printed
        words = " ".join(line.rstrip("\\") for line in lines).replace("'", "").split()
        assert words[: len(path) + 1] == ["shapejit", *path]
        if path != ("demo",):  # its example quotes an argument with spaces
            command.make_context(" ".join(path), words[len(path) + 1 :])


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_lines_of_the_help_fit_a_terminal(path: tuple[str, ...]) -> None:
    for line in output(*path, "--help").splitlines():
        assert len(line) <= 100, line


def test_version() -> None:
    import shapejit as package

    assert output("--version") == f"shapejit, version {package.__version__}\n"


def test_an_unknown_option_is_a_usage_error() -> None:
    result = shapejit("compile", "m.sjit", "--optlevel", "3")
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert "Usage: shapejit compile [OPTIONS] MODEL" in result.stderr


@pytest.mark.parametrize("flag", ["--min-shapes", "--minShapes"])
def test_both_spellings_of_trtexecs_options(flag: str) -> None:
    result = shapejit("compile", "m.py:f", flag, "x:3")
    assert result.exit_code == 2
    assert "No such option" not in result.stderr


def test_help_imports_neither_torch_nor_the_compiler() -> None:
    code = """
import sys
from shapejit.cli.main import cli
for command in ([], ["compile"], ["run"], ["bench"], ["cache", "ls"], ["doctor"], ["demo"]):
    cli([*command, "--help"], standalone_mode=False)
heavy = ["torch", "torch_mlir", "safetensors", "rich", "shapejit.passes", "shapejit.codegen"]
print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stderr == "[]\n"


def test_docs_page_is_current() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == docs.page(), (
        "run `python -m shapejit.docs_gen.cli docs/cli.md`"
    )
