# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit cache``: a look at the compiled code on disk, and cleaning up there."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from shapejit.cli.command import FAULT_OF_SHAPEJIT, Command, console, json_option, print_json

if TYPE_CHECKING:
    from shapejit.cache import EntryDetails, EntryInfo, PruneReport

F = TypeVar("F", bound=Callable[..., Any])

_DIGEST_DIGITS = 16
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _read_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]+) ?([KMGT]iB|)", value)
    if match is None:
        text = f"{value!r} is no number of bytes, such as 512MiB or 1073741824"
        raise click.BadParameter(text, ctx, param)
    return int(match[1]) * _UNITS[match[2]]


def _folder_option(function: F) -> F:
    """Adds ``--dir``; the command runs with that folder as the cache's."""

    @functools.wraps(function)
    def command(*args: Any, folder: str | None, **values: Any) -> Any:
        from shapejit.knobs import knobs

        if folder is None:
            return function(*args, **values)
        with knobs.scope(cache_dir=folder, cache=True):
            return function(*args, **values)

    decorate = click.option(
        "--dir",
        "folder",
        metavar="FOLDER",
        help="Folder of the cache. Default: what SHAPEJIT_CACHE_DIR says, or else the user's.",
    )
    decorated: Any = decorate(command)
    return cast(F, decorated)


@click.group("cache")
def cache() -> None:
    """Look at the compiled code on disk, check it, or delete it.

    Its folder is $SHAPEJIT_CACHE_DIR, or else shapejit in $XDG_CACHE_HOME, or else in ~/.cache.
    """


@cache.command(
    "stats",
    cls=Command,
    examples=(("How much is stored, where, and whether it is used", "shapejit cache stats"),),
)
@_folder_option
@json_option
def show_stats(as_json: bool) -> None:
    """Print how much is stored, and the bounds."""
    import shapejit.cache
    from shapejit.report import bytes_text

    stats = shapejit.cache.stats()
    if as_json:
        print_json(stats.to_dict())
        return
    rows = {
        "folder": stats.disk_path or "none",
        "state": stats.disk_state,
        "on disk": f"{stats.disk_entries} entries, {bytes_text(stats.disk_bytes)} of at most "
        f"{bytes_text(stats.disk_limit)}",
        "in memory": f"at most {bytes_text(stats.memory_limit)} in each process, beyond what "
        "programs use",
    }
    for name, text in rows.items():
        console().print(f"{name:<10} {text}", markup=False, soft_wrap=True)


@cache.command(
    "ls", cls=Command, examples=(("All entries, the last used one first", "shapejit cache ls"),)
)
@_folder_option
@json_option
def list_entries(as_json: bool) -> None:
    """List the entries, the last used one first."""
    import shapejit.cache

    entries = shapejit.cache.ls()
    if as_json:
        print_json([entry.to_dict() for entry in entries])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("key", "kind", "dtypes", "cpu", "size", "built in", "uses", "last used"):
        right = column in ("size", "built in", "uses")
        table.add_column(column, justify="right" if right else "left", no_wrap=column == "key")
    for entry in entries:
        table.add_row(*_row(entry))
    console().print(table if entries else "The cache is empty.")


def _row(entry: EntryInfo) -> list[str]:
    from shapejit.report import bytes_text

    return [
        entry.digest[:_DIGEST_DIGITS],
        entry.kind,
        " ".join(dict.fromkeys(entry.dtypes)),
        entry.cpu,
        bytes_text(entry.bytes),
        f"{entry.seconds:.2f} s",
        str(entry.uses),
        f"{_age_text(time.time() - entry.used)} ago",
    ]


def _age_text(seconds: float) -> str:
    """``12 s``, ``3 min``, ``5 h``, ``2 days``."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= (2 * size if unit == "days" else size):
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"


@cache.command(
    "show",
    cls=Command,
    examples=(
        ("Everything about the entries whose key starts like that", "shapejit cache show 2c26b46b"),
    ),
)
@click.argument("key")
@_folder_option
@json_option
def show_entries(key: str, as_json: bool) -> None:
    """Print what entries whose key starts with KEY are made for, and the IR they are made from."""
    import shapejit.cache

    found = shapejit.cache.show(key)
    if as_json:
        print_json([entry.to_dict() for entry in found])
        return
    if not found:
        raise click.UsageError(f"No entry has a key that starts with {key!r}: see `cache ls`.")
    for entry in found:
        _print_details(entry)


def _print_details(entry: EntryDetails) -> None:
    import json

    from shapejit.report import bytes_text

    info = entry.info
    click.echo(f"key     {info.digest}")
    click.echo(f"size    {bytes_text(info.bytes)}, built in {info.seconds:.2f} s")
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.created))
    click.echo(f"built   {created}, used {info.uses} times since")
    click.echo(f"record  {json.dumps(dict(entry.record), indent=2)}")
    if entry.note:
        click.echo(f"note\n{entry.note}")


@cache.command(
    "verify",
    cls=Command,
    examples=(
        ("Check every byte of all entries, and who could write them", "shapejit cache verify"),
        ("Also delete those that are not sound", "shapejit cache verify --remove"),
    ),
)
@click.option("--remove", is_flag=True, help="Delete the entries that are not sound.")
@_folder_option
@json_option
def verify(remove: bool, as_json: bool) -> None:
    """Check all entries. Exit status 1 if one is damaged or not to be trusted, and stays.

    Such entries are never loaded, also without this command.
    """
    import shapejit.cache
    from shapejit.report import bytes_text

    report = shapejit.cache.verify(remove=remove)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(f"{report.entries} sound entries, {bytes_text(report.bytes)}")
        for problem in report.problems:
            click.echo(f"{problem.digest[:_DIGEST_DIGITS]} is not sound: {problem.reason}")
        if report.removed:
            click.echo(f"{report.removed} deleted")
    if len(report.problems) > report.removed:
        raise click.exceptions.Exit(FAULT_OF_SHAPEJIT)


@cache.command(
    "prune",
    cls=Command,
    examples=(
        ("Keep the gibibyte that was used last", "shapejit cache prune --max-bytes 1GiB"),
        ("Apply the bound of SHAPEJIT_CACHE_MAX_BYTES", "shapejit cache prune"),
    ),
)
@click.option(
    "--max-bytes",
    callback=_read_bytes,
    metavar="SIZE",
    help="What may stay, such as 512MiB. Default: the bound.",
)
@_folder_option
@json_option
def prune(max_bytes: int | None, as_json: bool) -> None:
    """Delete the entries that were not used for longest."""
    import shapejit.cache

    _print_removed(shapejit.cache.prune(max_bytes), as_json)


@cache.command(
    "clear",
    cls=Command,
    examples=(("Delete all entries without asking", "shapejit cache clear --yes"),),
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_folder_option
@json_option
def clear(yes: bool, as_json: bool) -> None:
    """Delete all entries."""
    import shapejit.cache

    if not yes:
        where = shapejit.cache.stats().disk_path
        click.confirm(f"Delete all compiled code in {where}?", abort=True, err=True)
    _print_removed(shapejit.cache.clear(), as_json)


def _print_removed(report: PruneReport, as_json: bool) -> None:
    from shapejit.report import bytes_text

    if as_json:
        print_json(report.to_dict())
        return
    click.echo(
        f"{report.removed} entries deleted, {bytes_text(report.freed)}; "
        f"{report.entries} left, {bytes_text(report.bytes)}"
    )
