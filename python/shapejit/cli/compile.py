# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit compile``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapejit.cli.command import Command, console, json_option, print_json
from shapejit.cli.flags import CompileFlags, compile_flags, model_argument

if TYPE_CHECKING:
    from shapejit.program import Program

_EXAMPLES = (
    (
        "A model that brings an example call; two dims vary, and are the same in both inputs",
        "shapejit compile models.py:encoder -o encoder.sjit --dim batch=1:8:64 --dim seq=1:512 \\",
        "    --shapes ids:batchxseq,mask:batchxseq",
    ),
    (
        "A model that brings none: its inputs are described",
        "shapejit compile mypackage.models:mlp -o mlp.sjit --dim batch=1:64 \\",
        "    --input x:float32:batchx128",
    ),
    (
        "Ranges in trtexec's way",
        "shapejit compile models.py:encoder -o encoder.sjit \\",
        "    --minShapes=ids:1x1,mask:1x1 --maxShapes=ids:64x512,mask:64x512",
    ),
    (
        "An exported program, for any CPU with AVX2",
        "shapejit compile model.pt2 -o model.sjit --target-cpu x86-64-v3",
    ),
)


@click.command("compile", cls=Command, examples=_EXAMPLES)
@model_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Save the program to this file; one that exists is replaced.",
)
@click.option("--no-weights", is_flag=True, help="Save the program without its weights.")
@json_option
@compile_flags(with_shapes=True)
def compile_model(
    model: str, output: Path | None, no_weights: bool, as_json: bool, flags: CompileFlags
) -> None:
    """Compile MODEL for every size in its range, once, and save it."""
    from shapejit.cli.models import find_model
    from shapejit.cli.session import compile_source

    if no_weights and output is None:
        raise click.UsageError("--no-weights is for a program that is saved: add -o FILE.")
    program = compile_source(find_model(model), flags).program
    if output is not None:
        program.save(output, weights=not no_weights)
    summary = _summary(program, output)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)


def _summary(program: Program, output: Path | None) -> dict[str, Any]:
    artefacts, stats = program.artefacts, program.stats()
    symbols = [
        {"name": spec.name, "min": spec.min, "max": spec.max, "opt": spec.opt}
        for spec in artefacts.symbols
        if spec.derived is None and spec.equal_to is None
    ]
    return {
        "output": None if output is None else str(output),
        "bytes": None if output is None else output.stat().st_size,
        "target": {"kind": artefacts.target.kind, "cpu": artefacts.target.name},
        "symbols": symbols,
        "kernels": len(artefacts.kernels),
        "launches": sum(len(kernel.launches) for kernel in artefacts.kernels),
        "weight_bytes": stats.weight_bytes,
        "packed_bytes": stats.packed_bytes,
        "seconds": dict(stats.compile_seconds),
    }


def _print_summary(summary: dict[str, Any]) -> None:
    from shapejit.report import bytes_text

    ranges = [
        f"{symbol['name']} = {symbol['min']}..{'' if symbol['max'] is None else symbol['max']}"
        + ("" if symbol["opt"] is None else f" (most often {symbol['opt']})")
        for symbol in summary["symbols"]
    ]
    seconds = {stage: taken for stage, taken in summary["seconds"].items() if taken >= 0.0005}
    rows = {
        "target": f"{summary['target']['kind']} ({summary['target']['cpu']})",
        "sizes": ", ".join(ranges) or "all static",
        "kernels": f"{summary['kernels']}, launched {summary['launches']} times in a call",
        "weights": f"{bytes_text(summary['weight_bytes'])}, and "
        f"{bytes_text(summary['packed_bytes'])} of packed copies",
        "seconds": f"{sum(summary['seconds'].values()):.2f}: "
        + ", ".join(f"{stage} {taken:.3f}" for stage, taken in seconds.items()),
    }
    if summary["output"] is not None:
        rows["saved"] = f"{summary['output']}, {bytes_text(summary['bytes'])}"
    out = console()
    for name, text in rows.items():
        out.print(f"{name:<8} {text}", markup=False, soft_wrap=True)
