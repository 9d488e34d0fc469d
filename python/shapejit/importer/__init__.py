# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a PyTorch model to a module in our dialect.

`import_model` exports the model with torch.export, decomposes it into the operators that have
rules, has torch-mlir import it into the torch dialect, and walks that module in memory:

    capture (export.py) -> decompose -> torch_mlir -> convert (walk.py, rules/)

An operator's rule is one small function in `rules`; the table is in `registry`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from shapejit.artefacts import ConstraintInfo, SymbolSpec
from shapejit.importer.export import CapturedModel, capture
from shapejit.importer.model import ImportedModel

__all__ = ["CapturedModel", "ImportedModel", "capture", "import_captured", "import_model"]


def import_model(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> ImportedModel:
    """Imports a module or an exported program.

    Args:
        model: a `torch.nn.Module` in eval mode, or a `torch.export.ExportedProgram`.
        args, kwargs: an example call; none for an exported program.
        dynamic_shapes: in torch.export's notation, with ``(min, opt, max)`` triples for dims too.

    Raises:
        ShapeJitError: see the catalogue: SJ-EXPORT, SJ-OP, SJ-TRAIN, SJ-ARG, SJ-DTYPE.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "export"):
        captured = capture(model, args, kwargs, dynamic_shapes)
    imported = import_captured(captured)
    imported.seconds = seconds | imported.seconds
    return imported


def import_captured(captured: CapturedModel) -> ImportedModel:
    """Imports a model that was captured.

    Raises:
        ShapeJitError: as `import_model`.
    """
    # What a program that the cache has does without.
    from shapejit.importer.convert import convert_program, parameters_of
    from shapejit.importer.decompose import decompose_program
    from shapejit.importer.registry import rule_table
    from shapejit.importer.torch_mlir import import_program, output_nodes

    seconds: dict[str, float] = {}
    with _timed(seconds, "decompose"):
        functional = decompose_program(captured.program, rule_table())
    with _timed(seconds, "torch-mlir"):
        outputs = output_nodes(functional.graph)
        source = import_program(functional)
    with _timed(seconds, "convert"):
        converted = convert_program(captured, functional, source, outputs, rule_table())
    return ImportedModel(
        module=converted.module,
        symbols=_symbol_specs(captured),
        parameters=parameters_of(captured.call),
        inputs=converted.inputs,
        weights=tuple(weight.spec for weight in converted.weights),
        weight_tensors=tuple(weight.tensor for weight in converted.weights),
        states=tuple(state.spec for state in converted.states),
        state_tensors=tuple(state.tensor for state in converted.states),
        updates=converted.updates,
        outputs=converted.outputs,
        output_tree=functional.program.call_spec.out_spec,
        constraints=tuple(
            ConstraintInfo(str(c), None if c.source is None else str(c.source))
            for c in captured.constraints
        ),
        seconds=seconds,
    )


def _symbol_specs(captured: CapturedModel) -> tuple[SymbolSpec, ...]:
    return tuple(
        SymbolSpec(s.name, s.min, s.max, s.opt, s.divisor, s.equal_to, s.derived)
        for s in captured.sizes.table.symbols
    )


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start
