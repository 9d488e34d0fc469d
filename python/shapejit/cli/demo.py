# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit demo``"""

from __future__ import annotations

import click

from shapejit.cli.command import FAULT_OF_SHAPEJIT, Command
from shapejit.errors import ErrorId

_EXAMPLES = (
    (
        "One compile of all-MiniLM-L6-v2, 320 shapes beside PyTorch, and a search",
        "shapejit demo",
    ),
    ("A few shapes, and a search of your own", "shapejit demo --quick --query 'how to bake bread'"),
)


@click.command(
    "demo",
    cls=Command,
    examples=_EXAMPLES,
    short_help="Run a sentence encoder at hundreds of shapes.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="Where to run: in float32 on the CPU, or in bfloat16 on an NVIDIA GPU. Default: a GPU "
    "that shapejit has kernels for, if there is one.",
)
@click.option(
    "--compare-compile/--no-compare-compile",
    default=None,
    help="Run torch.compile(dynamic=True) too. Default: on a GPU.",
)
@click.option("--shapes", type=click.IntRange(min=1), help="Distinct shapes to run. Default: 320.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads to use. Default: 1.")
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder for results. Default: build/demo."
)
@click.option("--query", multiple=True, help="Search for this. Repeatable.")
@click.option("--quick", is_flag=True, help="A few shapes, no plot.")
def demo(
    device: str | None,
    compare_compile: bool | None,
    shapes: int | None,
    threads: int | None,
    out: str | None,
    query: tuple[str, ...],
    quick: bool,
) -> None:
    """Compile a sentence encoder once, run it at hundreds of shapes, and search with it.

    It needs the packages of shapejit[demo] and the model's weights, and no network.
    """
    values = {"--device": device, "--shapes": shapes, "--threads": threads, "--out": out}
    arguments = [
        text
        for option, value in values.items()
        if value is not None
        for text in (option, str(value))
    ]
    if compare_compile is not None:
        arguments.append("--compare-compile" if compare_compile else "--no-compare-compile")
    for text in query:
        arguments += ["--query", text]
    arguments += ["--quick"] if quick else []
    try:
        from shapejit.demo.__main__ import main

        passed = main(arguments) == 0
    except ModuleNotFoundError as error:
        raise ErrorId.SJ_CLI_008.error(
            command="shapejit demo",
            package=error.name or str(error),
            remedy="pip install 'shapejit[demo]'",
        ) from error
    if not passed:
        raise click.exceptions.Exit(FAULT_OF_SHAPEJIT)
