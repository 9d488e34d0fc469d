# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The ``shapejit`` command itself: the list of its subcommands."""

from __future__ import annotations

import click

import shapejit
from shapejit.cli.bench import bench
from shapejit.cli.cache import cache
from shapejit.cli.compile import compile_model
from shapejit.cli.demo import demo
from shapejit.cli.doctor import doctor
from shapejit.cli.explain import explain
from shapejit.cli.run import run

PROGRAM = "shapejit"


class _Group(click.Group):
    """Lists its commands in the order in which one uses them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    PROGRAM,
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(shapejit.__version__, prog_name=PROGRAM)
def cli() -> None:
    """Compile PyTorch models whose input shapes vary: one compile, any shape.

    MODEL is a saved program (model.sjit), an exported program (model.pt2), or a Python function
    without arguments that returns a model: package.module:function or file.py:function.
    """


for command in (compile_model, run, explain, bench, cache, doctor, demo):
    cli.add_command(command)


def main() -> None:
    """Entry point of the ``shapejit`` script."""
    cli(prog_name=PROGRAM)
