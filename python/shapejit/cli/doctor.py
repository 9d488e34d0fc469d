# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit doctor``"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shapejit.cli.command import FAULT_OF_SHAPEJIT, Command, console, json_option, print_json

if TYPE_CHECKING:
    from shapejit.doctor import Finding

_EXAMPLES = (
    ("What is installed, what this machine has, and what is missing", "shapejit doctor"),
    ("The same for a bug report or a script", "shapejit doctor --json"),
)

_STYLES = {"ok": "green", "missing": "red", "wrong": "red", "absent": "yellow"}


@click.command(
    "doctor",
    cls=Command,
    examples=_EXAMPLES,
    short_help="Print what is installed, and how to get what is missing.",
)
@json_option
def doctor(as_json: bool) -> None:
    """Print every version, what this machine has, and how to get what is missing.

    Exit status 1 if something that shapejit needs is missing, or of the wrong version.
    """
    from shapejit.doctor import examine

    findings = examine()
    healthy = all(finding.is_fine for finding in findings)
    if as_json:
        print_json({"healthy": healthy, "findings": [f.to_dict() for f in findings]})
    else:
        _print(findings)
    if not healthy:
        raise click.exceptions.Exit(FAULT_OF_SHAPEJIT)


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            table.add_row(Text(f"{group}:", "bold"), "", "")
        text = finding.value if finding.remedy is None else f"{finding.value}\n-> {finding.remedy}"
        table.add_row(f"  {finding.name}", Text(finding.state, _STYLES[finding.state]), Text(text))
    console().print(table)
