# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit explain``"""

from __future__ import annotations

from pathlib import Path

import click

from shapejit.cli.command import Command, console, json_option, print_json
from shapejit.cli.flags import (
    CompileFlags,
    InputFlags,
    compile_flags,
    model_argument,
    shapes_option,
    weights_option,
)

_EXAMPLES = (
    (
        "A saved program at these shapes",
        "shapejit explain encoder.sjit --shapes ids:4x128,mask:4x128",
    ),
    (
        "Compile a model and explain it, as JSON",
        "shapejit explain models.py:mlp --dim batch=1:64 --input x:float32:batchx128 --json",
    ),
)


@click.command(
    "explain", cls=Command, examples=_EXAMPLES, short_help="Say what a call of MODEL runs."
)
@model_argument
@shapes_option
@weights_option
@json_option
@compile_flags(with_shapes=False)
def explain(
    model: str, shapes: str | None, weights: Path | None, as_json: bool, flags: CompileFlags
) -> None:
    """Say what a call of MODEL runs: sizes, kernels with their reasons, and memory."""
    from shapejit.cli.specs import read_sizes

    sizes = None if shapes is None else read_sizes(shapes)

    from shapejit.cli.calls import random_call
    from shapejit.cli.session import open_program

    opened = open_program(model, flags, weights)
    call = random_call(opened.program, sizes, InputFlags(0, None), opened.int_ranges)
    explanation = opened.program.explain(*call.args, **call.kwargs)
    if as_json:
        print_json({"inputs": call.shapes, **explanation.to_dict()})
    else:
        out = console()
        out.print(f"Inputs: {call.text}", markup=False)
        out.print(explanation)
