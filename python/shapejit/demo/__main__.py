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
from typing import Any

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
    Batch,
    BatchMaker,
    Shape,
    draw_shapes,
)
from shapejit.demo.corpus import load_corpus
from shapejit.demo.encoder import load_encoder, load_tokenizer
from shapejit.demo.measure import (
    COMPILED,
    EAGER,
    MIN_COSINE,
    OURS,
    Contest,
    Embed,
    Result,
    Summary,
    summarize,
)
from shapejit.demo.plot import plot_latency
from shapejit.demo.report import LiveTable, print_condensed, print_summary, write_results
from shapejit.demo.search import QUERIES, SearchIndex
from shapejit.errors import TargetError

SEED = 20261129
TIMING_BUDGET_MS = 60.0
QUICK_SHAPES, QUICK_BUDGET_MS = 12, 0.0
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line; ``None`` means ``sys.argv``."""
    parser = argparse.ArgumentParser(prog="python -m shapejit.demo", description=__doc__)
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="where to run: f32 on the CPU or bf16 on an NVIDIA GPU, by default if there is one "
        "that shapejit has kernels for",
    )  # fmt: skip
    parser.add_argument(
        "--compare-compile", action=argparse.BooleanOptionalAction,
        help="run torch.compile(dynamic=True) too; by default on a GPU",
    )  # fmt: skip
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
    device = choose_device(options.device)
    corpus, tokenizer = load_corpus(), load_tokenizer()
    maker = BatchMaker(tokenizer, corpus, SEED)
    contest, program = prepare(options, device, maker.make(Shape(tokens=16, batch=4)), console)
    with torch.inference_mode():
        results = measure_all(options, maker, contest, console)
        index = SearchIndex(program, tokenizer, corpus, device)
        summary = summarize(
            results, program.stats().compiles, contest.ready_seconds, MIN_COSINE[contest.dtype]
        )
        setting = describe_setting(contest)
        report(options, results, summary, setting, console)
        print_search(console, index, options.query or QUERIES)
    print_summary(console, summary, setting)
    return summary


def choose_device(wanted: str) -> torch.device:
    """The device to run on; "auto" is the current GPU if shapejit has kernels for it.

    Raises:
        TargetError: "cuda" is wanted and there is no such GPU (SJ-TARGET-006).
    """
    if wanted == "cpu":
        return torch.device("cpu")
    from shapejit.gpu.program_run import current_device, usable_gpu
    from shapejit.passes.buckets.device import DEVICES

    archs = tuple(dict.fromkeys(known.arch for known in DEVICES))
    try:
        number = current_device(archs)
        usable_gpu(number, archs)
    except TargetError:
        if wanted == "cuda":
            raise
        return torch.device("cpu")
    return torch.device("cuda", number)


def prepare(
    options: argparse.Namespace, device: torch.device, example: Batch, console: Console
) -> tuple[Contest, Any]:
    """Compiles the model; returns the systems to compare and the program among them."""
    dtype = DTYPES[device.type]
    encoder = load_encoder(dtype).to(device)
    where = f"{'bf16' if dtype == torch.bfloat16 else 'f32'} on {device_name(device)}"
    console.print(f"Compiling all-MiniLM-L6-v2 ({where}) for every shape in its range, once.")
    batch = Dim("batch", min=MIN_BATCH, max=MAX_BATCH)
    tokens = Dim("tokens", min=MIN_TOKENS, max=MAX_TOKENS)
    inputs = example.ids.to(device), example.mask.to(device)
    start = time.perf_counter()
    program = shapejit.compile(encoder, inputs, dynamic_shapes=({0: batch, 1: tokens},) * 2)
    seconds = time.perf_counter() - start
    systems: dict[str, Embed] = {OURS: program, EAGER: encoder}
    wanted = options.compare_compile
    if device.type == "cuda" if wanted is None else wanted:
        systems[COMPILED] = torch.compile(encoder, dynamic=True)
    # The same rounded weights in float32 say what is right in a smaller type.
    reference = None if dtype == torch.float32 else load_encoder(dtype).to(device).float()
    return Contest(device, dtype, systems, reference, {OURS: seconds}), program


def measure_all(
    options: argparse.Namespace, maker: BatchMaker, contest: Contest, console: Console
) -> list[Result]:
    """Runs all systems at every shape, with a live table."""
    count = QUICK_SHAPES if options.quick else options.shapes
    budget_ms = QUICK_BUDGET_MS if options.quick else TIMING_BUDGET_MS
    if COMPILED in contest.systems:
        console.print("torch.compile compiles in its first call.")
    contest.get_ready(maker.make(Shape(tokens=MIN_TOKENS, batch=2)))
    results = []
    with LiveTable(console, count, MIN_COSINE[contest.dtype]) as table:
        for shape in draw_shapes(count, SEED):
            results.append(contest.measure(maker.make(shape), budget_ms))
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
    print_condensed(console, results, summary.min_cosine, options.out / "shapes.csv")
    if options.quick:
        return
    try:
        plot_latency(results, summary, setting, options.out / "latency.png")
    except ModuleNotFoundError as error:  # the measurements count without it
        console.print(f"No plot: {error}")
    else:
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


def describe_setting(contest: Contest) -> str:
    """One line: type, hardware, versions and threads."""
    kind = "bf16" if contest.dtype == torch.bfloat16 else "f32"
    text = f"{kind}, {device_name(contest.device)}, torch {torch.__version__}"
    if contest.device.type == "cuda":
        return text
    threads = torch.get_num_threads()
    return f"{text}, {threads} thread{'s' if threads > 1 else ''}"


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's model as the kernel reports it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
