# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From the MODEL argument and the options to a program that can be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapejit.cli.flags import CompileFlags
from shapejit.cli.models import (
    ExportedModel,
    ModelSource,
    PythonModel,
    SavedModel,
    find_model,
)
from shapejit.cli.specs import read_inputs
from shapejit.errors import ErrorId

if TYPE_CHECKING:
    from shapejit.program import Program


@dataclass(frozen=True)
class Opened:
    """A program, and what is known of where it comes from.

    Attributes:
        eager: the model as PyTorch runs it, or None for a saved program.
        int_ranges: least and greatest integer that the model's example holds, by input.
    """

    program: Program
    source: ModelSource
    eager: Callable[..., Any] | None = None
    int_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def open_program(model: str, flags: CompileFlags, weights: Path | None = None) -> Opened:
    """Load a saved program, or compile the model.

    Raises:
        ShapeJitError: `model` or an option cannot be used, or compiling or loading fails.
    """
    source = find_model(model)
    if isinstance(source, SavedModel):
        _refuse(flags.given(), source, "It was fixed when the program was compiled; compile again")
        return Opened(_load(source, weights), source)
    if weights is not None:
        _refuse(["--weights"], source, "The model brings its own weights")
    return compile_source(source, flags)


def compile_source(source: ModelSource, flags: CompileFlags) -> Opened:
    """Compile a model that is no saved program.

    Raises:
        ShapeJitError: the source is a saved program, an option cannot be used, or compiling fails.
    """
    match source:
        case SavedModel(text):
            reason = "it is a saved program, which is compiled already"
            raise ErrorId.SJ_CLI_002.error(model=text, reason=reason)
        case ExportedModel():
            _refuse(
                flags.shapes.given(),
                source,
                "Its dims were fixed by torch.export; export it again with other dynamic_shapes",
            )
            return _compile_exported(source, flags)
        case PythonModel():
            return _compile_python(source, flags)


def _load(source: SavedModel, weights: Path | None) -> Program:
    import shapejit

    return shapejit.load(source.path, weights)


def _compile_exported(source: ExportedModel, flags: CompileFlags) -> Opened:
    import shapejit

    exported = source.load()
    program = shapejit.compile(exported, target=flags.target or "auto", **flags.options)
    return Opened(program, source, exported.module())


def _compile_python(source: PythonModel, flags: CompileFlags) -> Opened:
    specs = read_inputs(flags.shapes)  # before anything slow

    import torch

    import shapejit
    from shapejit.cli.example import compile_call

    loaded = source.load()
    generator = torch.Generator().manual_seed(0)
    call = compile_call(loaded, specs, generator)
    program = shapejit.compile(
        loaded.module,
        call.args,
        call.kwargs,
        dynamic_shapes=call.dynamic_shapes,
        target=flags.target or "auto",
        **flags.options,
    )
    return Opened(program, source, loaded.module, call.int_ranges)


def _refuse(options: list[str], source: ModelSource, remedy: str) -> None:
    if options:
        raise ErrorId.SJ_CLI_006.error(
            option=options[0], model=source.text, kind=source.kind, remedy=remedy
        )
