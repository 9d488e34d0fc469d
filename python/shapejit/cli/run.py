# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit run``"""

from __future__ import annotations

import math
import time
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
    shapes_option,
    weights_option,
)
from shapejit.errors import ErrorId

if TYPE_CHECKING:
    from torch import Tensor

_EXAMPLES = (
    (
        "A saved program on random inputs of these shapes",
        "shapejit run encoder.sjit --shapes ids:4x128,mask:4x128 --int-range 0:30521",
    ),
    (
        "The same sizes, by the names of the dims",
        "shapejit run encoder.sjit --shapes batch=4,seq=128",
    ),
    (
        "On inputs of your own, keeping the outputs",
        "shapejit run encoder.sjit --load-inputs in.safetensors --save-outputs out.safetensors",
    ),
    (
        "Compile a model and run it once",
        "shapejit run models.py:mlp --dim batch=1:64 --input x:float32:batchx128 --shapes x:7x128",
    ),
)


@click.command("run", cls=Command, examples=_EXAMPLES)
@model_argument
@shapes_option
@click.option(
    "--load-inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A safetensors file with one tensor for each input, under its name.",
)
@click.option(
    "--save-outputs",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the output tensors to this safetensors file.",
)
@weights_option
@json_option
@input_flags
@compile_flags(with_shapes=False)
def run(
    model: str,
    shapes: str | None,
    load_inputs: Path | None,
    save_outputs: Path | None,
    weights: Path | None,
    as_json: bool,
    inputs: InputFlags,
    flags: CompileFlags,
) -> None:
    """Run MODEL once, and print the shapes of its outputs."""
    from shapejit.cli.specs import read_sizes

    if shapes is not None and load_inputs is not None:
        raise click.UsageError("--shapes and --load-inputs exclude each other.")
    sizes = None if shapes is None else read_sizes(shapes)

    import torch

    from shapejit.cli.calls import loaded_call, random_call
    from shapejit.cli.session import open_program

    opened = open_program(model, flags, weights)
    program = opened.program
    if load_inputs is not None:
        call = loaded_call(program, load_inputs)
    else:
        call = random_call(program, sizes, inputs, opened.int_ranges)
    with torch.inference_mode():
        start = time.perf_counter()
        result = program(*call.args, **call.kwargs)
        seconds = time.perf_counter() - start
    outputs = _named_leaves(result)
    if save_outputs is not None:
        _save(save_outputs, {n: v for n, v in outputs.items() if isinstance(v, torch.Tensor)})
    described = {name: _described(value) for name, value in outputs.items()}
    if as_json:
        print_json({"inputs": call.shapes, "outputs": described, "seconds": seconds})
    else:
        _print(call.text, described, seconds)


def _named_leaves(result: Any) -> dict[str, Any]:
    """The leaves of a result by name: ``output``, ``output[0]``, ``output["hidden"]``."""
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_flatten_with_path(result)[0]
    return {"output" + "".join(map(_key_text, path)): leaf for path, leaf in leaves}


def _key_text(key: Any) -> str:
    """A step into a result as inputs are written: ``["hidden"]``, ``[0]``, ``.logits``."""
    name = getattr(key, "key", None)
    return f'["{name}"]' if isinstance(name, str) else str(key)


def _described(value: Any) -> dict[str, Any]:
    import torch

    if not isinstance(value, torch.Tensor):
        return {"value": value if isinstance(value, (bool, int, float)) else str(value)}
    described: dict[str, Any] = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
    }
    if value.numel():
        numbers = value.to(torch.float64)
        described |= {
            "min": _number(numbers.min()),
            "mean": _number(numbers.mean()),
            "max": _number(numbers.max()),
        }
    return described


def _number(value: Tensor) -> float | str:
    """A number as JSON can hold it: ``nan`` and ``inf`` as text."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    import safetensors.torch
    from safetensors import SafetensorError

    try:
        # An output may be an input, or be returned twice: each is written with memory of its own.
        safetensors.torch.save_file({n: t.contiguous().clone() for n, t in tensors.items()}, path)
    except (SafetensorError, OSError) as error:
        raise ErrorId.SJ_CLI_007.error(
            path=path,
            reason=f"cannot be written: {str(error).rstrip('.')}",
            remedy="Create its folder, free space there, or give another path",
        ) from error


def _print(inputs: str, outputs: dict[str, dict[str, Any]], seconds: float) -> None:
    from rich.table import Table

    table = Table(title=f"{inputs}: {seconds * 1e3:.2f} ms", title_justify="left")
    for column in ("output", "dtype", "shape", "min", "mean", "max"):
        table.add_column(column, justify="right" if column in ("min", "mean", "max") else "left")
    for name, entry in outputs.items():
        if "value" in entry:
            table.add_row(name, "", str(entry["value"]))
            continue
        shape = " x ".join(map(str, entry["shape"])) or "scalar"
        numbers = [_number_text(entry.get(key, "")) for key in ("min", "mean", "max")]
        table.add_row(name, entry["dtype"], shape, *numbers)
    console().print(table)


def _number_text(number: float | str) -> str:
    return number if isinstance(number, str) else f"{number:.6g}"
