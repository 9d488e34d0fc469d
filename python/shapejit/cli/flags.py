# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Options that several subcommands take, and a record of what they were given."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from shapejit.cli.specs import ShapeOptions
from shapejit.options import CompileOptions

F = TypeVar("F", bound=Callable[..., Any])

_OPTION_TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "str | None": str,
}
_OPTION_METAVARS = {"target_cpu": "CPU", "dump_to": "FOLDER"}


@dataclass(frozen=True)
class CompileFlags:
    """How to compile, as the command line says.

    Attributes:
        shapes: the options on inputs.
        target: as in `shapejit.compile`, or None.
        options: the compile options that are given, by name.
    """

    shapes: ShapeOptions
    target: str | None
    options: dict[str, Any]

    def given(self) -> list[str]:
        """The options that are given, as they are written."""
        names = [f"--{name.replace('_', '-')}" for name in self.options]
        target = [] if self.target is None else ["--target"]
        return [*self.shapes.given(), *target, *names]


def compile_flags(*, with_shapes: bool) -> Callable[[F], F]:
    """Adds the options on inputs and on compiling; the command gets one `CompileFlags`.

    Args:
        with_shapes: ``--shapes`` is one of them (it states example sizes); otherwise the command
            has a ``--shapes`` of its own.
    """

    def add(function: F) -> F:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            shapes = ShapeOptions(
                input=values.pop("input"),
                dim=values.pop("dim"),
                shapes=values.pop("shapes") if with_shapes else None,
                min_shapes=values.pop("min_shapes"),
                opt_shapes=values.pop("opt_shapes"),
                max_shapes=values.pop("max_shapes"),
            )
            options = {field.name: values.pop(field.name) for field in _option_fields()}
            flags = CompileFlags(
                shapes,
                values.pop("target"),
                {name: value for name, value in options.items() if value is not None},
            )
            return function(*args, flags=flags, **values)

        decorated: Any = command
        for decorate in reversed([*_shape_options(with_shapes), *_compile_options()]):
            decorated = decorate(decorated)
        return cast(F, decorated)

    return add


def _shape_options(with_shapes: bool) -> list[Callable[..., Any]]:
    shapes = click.option(
        "--shapes",
        metavar="SHAPES",
        help="Shapes of the inputs, static or with names of --dim: ids:batchxseq,mask:batchxseq.",
    )
    return [
        click.option(
            "--input",
            multiple=True,
            metavar="NAME:DTYPE[:SHAPE]",
            help="An input, such as ids:int64:4x128 or, with names of --dim, ids:int64:batchxseq. "
            "Needed where the model brings no example call. Repeatable.",
        ),
        click.option(
            "--dim",
            multiple=True,
            metavar="NAME=MIN:[OPT:]MAX",
            help="A dim that varies, the same wherever its name is used: batch=1:64, or "
            "batch=1:8:64 with the size to expect most. NAME alone takes any size. Repeatable.",
        ),
        *([shapes] if with_shapes else []),
        click.option(
            "--minShapes",
            "--min-shapes",
            "min_shapes",
            metavar="SHAPES",
            help="Least shapes, in trtexec's way: ids:1x3,mask:1x3. A dim that differs from "
            "--maxShapes varies.",
        ),
        click.option(
            "--optShapes",
            "--opt-shapes",
            "opt_shapes",
            metavar="SHAPES",
            help="Shapes to expect most.",
        ),
        click.option(
            "--maxShapes",
            "--max-shapes",
            "max_shapes",
            metavar="SHAPES",
            help="Greatest shapes.",
        ),
    ]


def _option_fields() -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(CompileOptions)


def _compile_options() -> list[Callable[..., Any]]:
    """An option for each field of `CompileOptions`, with the text of its docstring."""
    meanings = _documented_attributes(CompileOptions)
    found: list[Callable[..., Any]] = [
        click.option(
            "--target",
            type=click.Choice(["auto", "cpu", "cuda"]),
            help="What to compile for. Default: auto, where the model's weights are.",
        )
    ]
    for field in _option_fields():
        flag = f"--{field.name.replace('_', '-')}"
        default = "" if field.default is None else f" Default: {_default_text(field.default)}."
        text = meanings[field.name] + default
        if field.type == "bool":
            switch = f"{flag}/--no-{flag.removeprefix('--')}"
            found.append(click.option(switch, field.name, default=None, help=text))
        else:
            kind = _OPTION_TYPES[str(field.type)]
            metavar = _OPTION_METAVARS.get(field.name)
            found.append(click.option(flag, field.name, type=kind, metavar=metavar, help=text))
    return found


def _default_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _documented_attributes(cls: type) -> dict[str, str]:
    """The sentences of the "Attributes:" section of a docstring, by name."""
    section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:")[2]
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in entries}
    return {
        name: text[0].upper() + text[1:].removesuffix(".") + "." for name, text in texts.items()
    }


@dataclass(frozen=True)
class InputFlags:
    """Where the values of inputs come from.

    Attributes:
        seed: seed of random values.
        int_range: least and greatest random integer; None to take what is known of the input.
    """

    seed: int
    int_range: tuple[int, int] | None


def input_flags(function: F) -> F:
    """Adds the options on random values; the command gets one `InputFlags`."""

    @functools.wraps(function)
    def command(*args: Any, **values: Any) -> Any:
        inputs = InputFlags(values.pop("seed"), values.pop("int_range"))
        return function(*args, inputs=inputs, **values)

    decorated: Any = command
    for decorate in (
        click.option(
            "--int-range",
            callback=_read_range,
            metavar="LOW:HIGH",
            help="Random integers for integer inputs, both ends included. Default: the range of "
            "the model's own example, or else 0:1.",
        ),
        click.option("--seed", default=0, show_default=True, help="Seed of the random inputs."),
    ):
        decorated = decorate(decorated)
    return cast(F, decorated)


def _read_range(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    if value is None:
        return None
    match = re.fullmatch(r"(-?\d+):(-?\d+)", value)
    if match is None or int(match[1]) > int(match[2]):
        raise click.BadParameter(f"{value!r} is not LOW:HIGH, such as 0:30521", ctx, param)
    return int(match[1]), int(match[2])


model_argument = click.argument("model", metavar="MODEL")

weights_option = click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Weights for a saved program, instead of its own: a safetensors file.",
)

shapes_option = click.option(
    "--shapes",
    metavar="SHAPES",
    help="Sizes to run with, by input (ids:4x128,mask:4x128) or by dim (batch=4,seq=128). What is "
    "left out follows from them, or is the expected size of its dim, or the least.",
)
