# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What all subcommands share: examples in the help, one clean message for an error, and printing.

Exit status: 0 when all went well, 2 when the call of the command or the model is at fault, 1 when
shapejit is, or when a check found something.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shapejit.errors import ShapeJitError, ShapeJitWarning

if TYPE_CHECKING:
    from rich.console import Console

FAULT_OF_CALLER = 2
FAULT_OF_SHAPEJIT = 1

_WIDTH = 110  # of tables that do not go to a terminal
_TRACEBACK = "shapejit.traceback"


class Command(click.Command):
    """A subcommand with examples in its help, which reports errors as one message.

    Args:
        examples: what a command does, and its lines: ``("Run it", "shapejit run m.sjit")``.
    """

    def __init__(self, *args: Any, examples: Sequence[tuple[str, ...]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.append(
            click.Option(
                ["--traceback"],
                is_flag=True,
                expose_value=False,
                callback=_note_traceback,
                help="After an error, also print where it was raised.",
            )
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, as they are typed."""
        with formatter.section("Examples"):
            for number, (meaning, *lines) in enumerate(self.examples):
                if number:
                    formatter.write_paragraph()
                for line in (f"# {meaning}", *lines):
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an error becomes a message and an exit status."""
        from shapejit import logs

        try:
            with _clean_warnings():
                logs.configure()
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of our output has gone, which click handles
            _fail(error, with_traceback=ctx.meta.get(_TRACEBACK, False))


def _note_traceback(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    ctx.meta[_TRACEBACK] = value


def _fail(error: Exception, *, with_traceback: bool) -> NoReturn:
    if with_traceback:
        traceback.print_exception(error)
    ours = not isinstance(error, ShapeJitError)
    text = f"{type(error).__name__}: {error}" if ours else str(error)
    click.echo(f"shapejit: error: {text}", err=True)
    if ours:
        click.echo(
            "This may be a fault of shapejit. Run the command with --traceback, and report what "
            "it prints.",
            err=True,
        )
    internal = ours or (isinstance(error, ShapeJitError) and error.id.family == "INTERNAL")
    raise click.exceptions.Exit(FAULT_OF_SHAPEJIT if internal else FAULT_OF_CALLER)


@contextmanager
def _clean_warnings() -> Iterator[None]:
    """Warnings of shapejit as one line each, without the source line that issued them."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, ShapeJitWarning):
            click.echo(f"shapejit: warning: {message}", err=True)
        else:
            usual(message, category, *rest)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = usual


def print_json(document: Any) -> None:
    """Prints a document of dicts, lists and scalars on standard output."""
    click.echo(json.dumps(document, indent=2))


def console() -> Console:
    """Standard output for tables; of a fixed width when it is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
