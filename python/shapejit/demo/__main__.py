# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Command line of the demo: ``python -m shapejit.demo``."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from torch.export import Dim

import shapejit
from shapejit.demo.batches import (
    MAX_BATCH,
    MAX_TOKENS,
    MIN_BATCH,
    MIN_TOKENS,
    BatchMaker,
    Shape,
    draw_shapes,
)
from shapejit.demo.corpus import load_corpus
from shapejit.demo.encoder import load_encoder, load_tokenizer
from shapejit.demo.measure import Embed, Result, Summary, measure, summarize
from shapejit.demo.plot import plot_latency
from shapejit.demo.report import LiveTable, print_condensed, print_summary, write_results
from shapejit.demo.search import QUERIES, SearchIndex

SEED = 20261129
TIMING_BUDGET_MS = 60.0
QUICK_SHAPES, QUICK_BUDGET_MS = 12, 0.0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line; ``None`` means ``sys.argv``."""
    parser = argparse.ArgumentParser(prog="python -m shapejit.demo", description=__doc__)
    parser.add_argument("--shapes", type=int, default=320, help="distinct shapes to run")
    parser.add_argument("--threads", type=int, default=1, help="threads PyTorch may use")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for results")
    parser.add_argument("--query", action="append", help="search for this (repeatable)")
    parser.add_argument("--quick", action="store_true", help="a few shapes, no plot")
    options = parser.parse_args(arguments)
    if options.shapes < 1 or options.threads < 1:
        parser.error("--shapes and --threads must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo. Returns 0 if there was one compile and every row was right, else 1."""
    options = parse_arguments(arguments)
    torch.set_num_threads(options.threads)
    console = Console()
    return 0 if run(options, console).passed else 1


def run(options: argparse.Namespace, console: Console) -> Summary:
    """Compiles once, measures every shape, reports, and searches."""
    corpus, tokenizer, encoder = load_corpus(), load_tokenizer(), load_encoder()
    maker = BatchMaker(tokenizer, corpus, SEED)

    console.print("Compiling all-MiniLM-L6-v2 (f32) for every shape in its range, once.")
    example = maker.make(Shape(tokens=16, batch=4))
    batch = Dim("batch", min=MIN_BATCH, max=MAX_BATCH)
    tokens = Dim("tokens", min=MIN_TOKENS, max=MAX_TOKENS)
    start = time.perf_counter()
    program = shapejit.compile(
        encoder, (example.ids, example.mask), dynamic_shapes=({0: batch, 1: tokens},) * 2
    )
    compile_seconds = time.perf_counter() - start

    with torch.inference_mode():
        results = measure_all(options, maker, program, encoder, console)
        index = SearchIndex(program, tokenizer, corpus)
        summary = summarize(results, program.stats().compiles, compile_seconds)
        setting = describe_setting()
        report(options, results, summary, setting, console)
        print_search(console, index, options.query or QUERIES)
    print_summary(console, summary, setting)
    return summary


def measure_all(
    options: argparse.Namespace,
    maker: BatchMaker,
    ours: Embed,
    eager: Embed,
    console: Console,
) -> list[Result]:
    """Runs both systems at every shape, with a live table."""
    count = QUICK_SHAPES if options.quick else options.shapes
    budget_ms = QUICK_BUDGET_MS if options.quick else TIMING_BUDGET_MS
    # PyTorch sets itself up in its first call; no row should be charged for that.
    warm_up = maker.make(Shape(tokens=MIN_TOKENS, batch=2))
    eager(warm_up.ids, warm_up.mask)
    results = []
    with LiveTable(console, count) as table:
        for shape in draw_shapes(count, SEED):
            results.append(measure(maker.make(shape), ours, eager, budget_ms))
            table.add(results[-1])
    return results


def report(
    options: argparse.Namespace,
    results: Sequence[Result],
    summary: Summary,
    setting: str,
    console: Console,
) -> None:
    """Writes the files and the plot, and prints the table."""
    options.out.mkdir(parents=True, exist_ok=True)
    write_results(results, summary, setting, options.out)
    print_condensed(console, results, options.out / "shapes.csv")
    if not options.quick:
        plot_latency(results, summary, setting, options.out / "latency.png")
        console.print(f"Plot: {options.out / 'latency.png'}")


def print_search(console: Console, index: SearchIndex, queries: Sequence[str]) -> None:
    """Prints the three best texts for each query, one line each."""
    console.print("\n[bold]Semantic search[/] over the corpus:")
    for query in queries:
        console.print(f"\n  [bold]{escape(query)}[/]")
        for score, text in index.search(query, 3):
            console.print(
                f"    {score:.3f}  {escape(text)}",
                no_wrap=True,
                overflow="ellipsis",
                highlight=False,
            )
    console.print()


def describe_setting() -> str:
    """One line: processor, versions and threads."""
    threads = torch.get_num_threads()
    return (
        f"{processor_name()}, torch {torch.__version__}, "
        f"{threads} thread{'s' if threads > 1 else ''}"
    )


def processor_name() -> str:
    """The processor's model, as the kernel reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
