# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the demo prints and writes: live table, condensed table, summary, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from shapejit.demo.measure import (
    COMPILED,
    EAGER,
    MAX_ERROR_RATIO,
    OURS,
    Result,
    Summary,
)

LIVE_ROWS = 10
PLAIN_STEP = 20
TABLE_ROWS = 18
WORST_ROWS = 4


#: Systems in the heads of columns.
_SHORT = {OURS: "ours", EAGER: "PyTorch", COMPILED: "compiled"}


def latency_table(
    results: Sequence[Result], title: str, min_cosine: float, worst: Sequence[Result] = ()
) -> Table:
    """One row a shape; ``worst`` follows under a rule of its own."""
    table = Table(title=title, title_justify="left")
    names = list(results[0].timings) if results else [OURS, EAGER]
    peers = [name for name in names if name != OURS]
    for heading in (
        "batch", "tokens", "first ms", *(f"{_SHORT[name]} ms" for name in names),
        *(f"{_SHORT[name]} / ours" for name in peers), "worst cosine",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(*_cells(result, min_cosine))
    table.add_section()
    for result in worst:
        table.add_row(*_cells(result, min_cosine))
    return table


def _cells(result: Result, min_cosine: float) -> tuple[str, ...]:
    style = "green" if result.worst_cosine >= min_cosine else "bold red"
    return (
        str(result.shape.batch),
        str(result.shape.tokens),
        f"{result.timings[OURS].first:.2f}",
        *(f"{timing.median:.2f}" for timing in result.timings.values()),
        *(f"{result.speedup(name):.2f}" for name in result.timings if name != OURS),
        f"[{style}]{result.worst_cosine:.9f}[/]",
    )


class LiveTable:
    """A progress bar over the latest rows; on anything but a terminal, a line now and then."""

    def __init__(self, console: Console, total: int, min_cosine: float) -> None:
        self._progress = Progress(
            TextColumn("running distinct shapes"), BarColumn(), MofNCompleteColumn()
        )
        self._task = self._progress.add_task("", total=total)
        self._total, self._done = total, 0
        self._min_cosine = min_cosine
        self._latest: list[Result] = []
        self._live = Live(self._render(), console=console, transient=True, auto_refresh=False)
        self._console = console
        self._on = console.is_terminal

    def __enter__(self) -> LiveTable:
        if self._on:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._on:
            self._live.stop()

    def add(self, result: Result) -> None:
        """Shows one more shape."""
        self._latest = [*self._latest, result][-LIVE_ROWS:]
        self._progress.advance(self._task)
        self._done += 1
        if self._on:
            self._live.update(self._render(), refresh=True)
        elif self._done % PLAIN_STEP == 0 or self._done == self._total:
            self._console.print(f"  {self._done} of {self._total} shapes")

    def _render(self) -> Group:
        return Group(latency_table(self._latest, "latest shapes", self._min_cosine), self._progress)


def print_condensed(
    console: Console, results: Sequence[Result], min_cosine: float, where: Path
) -> None:
    """Prints a readable selection, evenly spread over the sizes, then the least exact shapes."""
    by_size = sorted(results, key=lambda r: (r.shape.tokens * r.shape.batch, r.shape))
    last = len(by_size) - 1
    count = min(TABLE_ROWS, len(by_size))
    shown = [by_size[round(i * last / max(count - 1, 1))] for i in range(count)]
    worst = sorted(results, key=lambda r: r.worst_cosine)[:WORST_ROWS]
    title = (
        f"{count} of {len(results)} shapes, smallest to largest; below the rule the "
        f"{len(worst)} least exact.\nAll of them: {where}"
    )
    console.print(latency_table(shown, title, min_cosine, worst))


def print_summary(console: Console, summary: Summary, setting: str) -> None:
    """Prints the verdict."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in (
        ("setting", setting),
        ("distinct shapes", str(summary.shapes)),
        ("embeddings compared", str(summary.rows)),
        ("compiles", f"{summary.compiles} ({summary.ready_seconds[OURS]:.1f} s)"),
        ("worst cosine", f"{summary.worst_cosine:.9f} (must be >= {summary.min_cosine})"),
        ("wrong rows", str(summary.wrong_rows)),
        *_error_rows(summary),
        ("longest stall", _stall_text(summary.longest_stall_ms.get(OURS))),
        *_peer_rows(summary),
    ):
        table.add_row(name, value)
    console.print(table)
    console.print("[bold green]PASSED[/]" if summary.passed else "[bold red]FAILED[/]")


def _error_rows(summary: Summary) -> list[tuple[str, str]]:
    if summary.error_ratio is None:
        return []
    text = f"{summary.error_ratio:.3f} of PyTorch's (must be <= {MAX_ERROR_RATIO})"
    return [("error", text)]


def _peer_rows(summary: Summary) -> list[tuple[str, str]]:
    rows = []
    for name, speedup in summary.speedups.items():
        text = f"{speedup:.2f} (geometric mean of medians)"
        if name == COMPILED:
            text += f"; first call {summary.ready_seconds[name]:.1f} s"
            if (stall := summary.longest_stall_ms.get(name)) is not None:
                text += f", longest stall after it {stall / 1e3:.2f} s"
        rows.append((f"{name} / ours", text))
    return rows


def _stall_text(stall_ms: float | None) -> str:
    if stall_ms is None:
        return "not measured in a quick run"
    return f"{stall_ms:.1f} ms (first call at a shape minus later ones)"


def write_results(
    results: Sequence[Result], summary: Summary, setting: str, directory: Path
) -> None:
    """Writes ``shapes.csv`` (a line a shape), ``rows.csv`` (a line a row), ``summary.json``."""
    keys = {OURS: "ours", EAGER: "eager", COMPILED: "compiled"}
    names = list(results[0].timings)
    with (directory / "shapes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        times = [f"{keys[name]}_{which}" for name in names for which in ("first_ms", "ms")]
        writer.writerow(("batch", "tokens", *times, "worst_cosine"))
        for r in results:
            cells = (f"{t:.4f}" for name in names for t in _first_and_median(r, name))
            writer.writerow((r.shape.batch, r.shape.tokens, *cells, repr(r.worst_cosine)))
    with (directory / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("batch", "tokens", "row", "text", "cosine"))
        for r in results:
            for row, (text, cosine) in enumerate(zip(r.texts, r.cosines, strict=True)):
                writer.writerow((r.shape.batch, r.shape.tokens, row, text, repr(cosine)))
    record = {"setting": setting, **asdict(summary), "passed": summary.passed}
    (directory / "summary.json").write_text(json.dumps(record, indent=2) + "\n")


def _first_and_median(result: Result, name: str) -> tuple[float, float]:
    timing = result.timings[name]
    return timing.first, timing.median
