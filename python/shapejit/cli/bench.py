# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit bench``"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapejit.cli.command import Command, console, json_option, print_json
from shapejit.cli.flags import (
    CompileFlags,
    InputFlags,
    compile_flags,
    input_flags,
    model_argument,
    weights_option,
)
from shapejit.errors import ErrorId

if TYPE_CHECKING:
    import torch

    from shapejit.cli.calls import Call
    from shapejit.cli.specs import Sizes

_ROUNDS = 5
"""The systems take turns in so many rounds, so that a drift of the machine meets both alike."""

_OURS, _EAGER, _COMPILE = "shapejit", "eager", "compile"

_EXAMPLES = (
    (
        "A saved program at two shapes",
        "shapejit bench encoder.sjit --shapes batch=1,seq=16 --shapes batch=8,seq=128",
    ),
    (
        "Compile a model and time it beside PyTorch",
        "shapejit bench models.py:mlp --dim batch=1:64 --input x:float32:batchx128 \\",
        "    --shapes x:1x128 --shapes x:64x128 --compare eager",
    ),
)


@dataclass(frozen=True)
class Timing:
    """Times of one system at one shape, in milliseconds.

    Attributes:
        median, p10, p90: until the result is there.
        host: until the call returns, the median: on a GPU it does before the result is there.
    """

    median: float
    p10: float
    p90: float
    host: float


@click.command("bench", cls=Command, examples=_EXAMPLES, short_help="Time calls of MODEL.")
@model_argument
@click.option(
    "--shapes",
    multiple=True,
    metavar="SHAPES",
    help="Sizes to run with, by input (ids:4x128,mask:4x128) or by dim (batch=4,seq=128). "
    "Repeatable: each is timed.",
)
@click.option(
    "--iterations",
    type=click.IntRange(min=_ROUNDS),
    default=100,
    show_default=True,
    help="Timed calls of each system at each shape.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Calls before, which are not timed.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads that a call may use. Default: as many as PyTorch uses.",
)
@click.option(
    "--compare",
    type=click.Choice([_EAGER, _COMPILE]),
    multiple=True,
    help="Also time the model as PyTorch runs it, or torch.compile(dynamic=True) of it, and "
    "compare the results. Repeatable.",
)
@weights_option
@json_option
@input_flags
@compile_flags(with_shapes=False)
def bench(
    model: str,
    shapes: tuple[str, ...],
    iterations: int,
    warmup: int,
    threads: int | None,
    compare: tuple[str, ...],
    weights: Path | None,
    as_json: bool,
    inputs: InputFlags,
    flags: CompileFlags,
) -> None:
    """Time calls of MODEL: median, 10th and 90th percentile at each shape."""
    from shapejit.cli.specs import read_sizes

    sizes: list[Sizes | None] = [read_sizes(text) for text in shapes]

    import torch

    from shapejit.cli.calls import random_call
    from shapejit.cli.session import open_program

    if threads is not None:
        torch.set_num_threads(threads)
    opened = open_program(model, flags, weights)
    systems: dict[str, Callable[..., Any]] = {_OURS: opened.program}
    for name in dict.fromkeys(compare):
        if opened.eager is None:
            raise ErrorId.SJ_CLI_006.error(
                option="--compare",
                model=model,
                kind=opened.source.kind,
                remedy="It holds no PyTorch model; pass the model itself, as file.py:function",
            )
        compiled = name == _COMPILE
        systems[name] = torch.compile(opened.eager, dynamic=True) if compiled else opened.eager
    device = opened.program.signature.device
    rows = []
    with torch.inference_mode():
        for wanted in sizes or [None]:
            call = random_call(opened.program, wanted, inputs, opened.int_ranges)
            calls = {name: _bound(system, call, device) for name, system in systems.items()}
            row: dict[str, Any] = {"inputs": call.shapes, "shapes": call.text}
            if len(calls) > 1:
                ours, *others = (run() for run in calls.values())
                row["difference"] = _worst(_difference(ours, theirs) for theirs in others)
            times = _measure(list(calls.values()), iterations, warmup, _synchronizer(device))
            row |= {name: asdict(timing) for name, timing in zip(calls, times, strict=True)}
            rows.append(row)
    document = {
        "unit": "ms",
        "device": str(device),
        "threads": torch.get_num_threads(),
        "iterations": iterations,
        "results": [{k: v for k, v in row.items() if k != "shapes"} for row in rows],
    }
    if as_json:
        print_json(document)
    else:
        _print(rows, list(systems), document)


def _bound(system: Callable[..., Any], call: Call, device: torch.device) -> Callable[[], Any]:
    """A function that calls with the arguments, whose tensors are on the program's device."""
    import torch
    from torch.utils import _pytree as pytree

    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(device), (call.args, call.kwargs)
    )
    return lambda: system(*args, **kwargs)


def _synchronizer(device: torch.device) -> Callable[[], None]:
    """A function that waits until all that was called is done."""
    import torch

    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


def _measure(
    calls: Sequence[Callable[[], Any]],
    iterations: int,
    warmup: int,
    synchronize: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Times of each of `calls`, which take turns in rounds."""
    times: list[list[tuple[float, float]]] = [[] for _ in calls]
    for round_ in range(_ROUNDS):
        count = iterations // _ROUNDS + (round_ < iterations % _ROUNDS)
        for call, taken in zip(calls, times, strict=True):
            for _ in range(warmup if round_ == 0 else min(warmup, 1)):
                call()
            for _ in range(count):
                synchronize()
                start = time.perf_counter()
                call()
                returned = time.perf_counter()
                synchronize()
                end = time.perf_counter()
                taken.append(((end - start) * 1e3, (returned - start) * 1e3))
    return [_timing(taken) for taken in times]


def _timing(milliseconds: Sequence[tuple[float, float]]) -> Timing:
    walls, hosts = zip(*milliseconds, strict=True)
    deciles = statistics.quantiles(walls, n=10, method="inclusive")
    return Timing(statistics.median(walls), deciles[0], deciles[-1], statistics.median(hosts))


def _worst(differences: Iterable[float | None]) -> float | None:
    """The greatest difference; None if one is None."""
    found = list(differences)
    known = [value for value in found if value is not None]
    return max(known) if len(known) == len(found) else None


def _difference(ours: Any, theirs: Any) -> float | None:
    """Greatest difference of any output, relative to the greatest finite value in that output.

    None if they differ in where they are infinite or no numbers.
    """
    import torch
    from torch.utils import _pytree as pytree

    worst = 0.0
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        if not isinstance(a, torch.Tensor):
            continue
        a, b = a.to(torch.float64), b.to(torch.float64)
        finite = a.isfinite()
        if not torch.allclose(a[~finite], b[~finite], equal_nan=True):
            return None
        a, b = a[finite], b[finite]
        if not b.isfinite().all():
            return None
        if a.numel():
            scale = b.abs().max().clamp_min(torch.finfo(b.dtype).tiny)
            worst = max(worst, float((a - b).abs().max() / scale))
    return worst


def _print(rows: Sequence[dict[str, Any]], systems: Sequence[str], document: Any) -> None:
    from rich.table import Table

    title = f"ms a call, {document['iterations']} calls, {document['threads']} threads"
    table = Table(title=title, title_justify="left")
    table.add_column("shapes", overflow="fold")
    several = len(systems) > 1
    statistics_ = ("median", "p10", "p90", *(["host"] if document["device"] != "cpu" else []))
    for system in systems:
        for statistic in statistics_:
            name = f"{system}\n{statistic}" if several else statistic
            table.add_column(name, justify="right")
    for peer in systems[1:]:
        table.add_column(f"median of\n{peer}", justify="right")
    if several:
        table.add_column("difference", justify="right")
    for row in rows:
        cells = [f"{row[system][s]:.3f}" for system in systems for s in statistics_]
        cells += [f"{row[_OURS]['median'] / row[peer]['median']:.2f}" for peer in systems[1:]]
        if several:
            difference = row["difference"]
            cells.append("nan" if difference is None else f"{difference:.1e}")
        table.add_row(row["shapes"], *cells)
    console().print(table)
