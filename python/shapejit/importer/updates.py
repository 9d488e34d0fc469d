# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes in place, as torch's functional graphs have them.

torch turns a write into a part of a tensor into an operator that gives the whole tensor, with that
part replaced, and says in the graph's signature which outputs are new values of buffers and inputs.
Where such operators lead from a buffer or an input to its new value, they become updates, which
write only the part. Everywhere else they stay what they are: a choice between two tensors that
fuses with what reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node

from shapejit.errors import ErrorId
from shapejit.importer.registry import target_name

# torch.library is untyped.
_LIBRARY: Final[Any] = torch.library.Library("shapejit", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "slice_update(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, "
    "SymInt step=1) -> Tensor"
)
_LIBRARY.define("select_update(Tensor self, Tensor src, int dim, SymInt index) -> Tensor")

_UPDATES: Final = {
    "aten.slice_scatter": torch.ops.shapejit.slice_update.default,
    "aten.select_scatter": torch.ops.shapejit.select_update.default,
}
"""Operators that become updates; of the same arguments."""

_WRITERS: Final = frozenset(
    {*_UPDATES, "aten.index_copy", "aten.index_put", "aten.scatter.src", "aten.scatter.value"}
)
"""Operators whose result is their first argument with some elements replaced."""

_VIEWS: Final = frozenset(
    {"aten.slice.Tensor", "aten.select.int", "aten.view", "aten.unsqueeze", "aten.squeeze.dim"}
)

_STEP: Final = 5
"""Place of the step among the arguments of a ``slice_scatter``."""

_UPDATE_KINDS: Final = frozenset({OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION})


def updated_outputs(program: ExportedProgram) -> Iterator[tuple[int, int]]:
    """(number of the output, number of the input) of each new value of a buffer or an input.

    Raises:
        ExportError: something else than a buffer or an input changes (SJ-EXPORT-013).
    """
    inputs = program.graph_signature.input_specs
    buffers = {spec.target: i for i, spec in enumerate(inputs) if spec.kind is InputKind.BUFFER}
    arguments = {spec.arg.name: i for i, spec in enumerate(inputs)}
    for number, spec in enumerate(program.graph_signature.output_specs):
        if spec.kind is OutputKind.USER_OUTPUT:
            continue
        found = buffers if spec.kind is OutputKind.BUFFER_MUTATION else arguments
        if spec.kind not in _UPDATE_KINDS or spec.target not in found:
            raise ErrorId.SJ_EXPORT_013.error(tensor=spec.target)
        yield number, found[spec.target]


def mark_updates(program: ExportedProgram, graph: Graph) -> None:
    """Makes updates of the operators that lead to new values of buffers and inputs, and of those
    that leave gaps, for which a choice by ranges of indices does not do.

    Args:
        program: whose signature says what these are.
        graph: changed in place.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    for number, argument in updated_outputs(program):
        chain = _chain(output.args[0][number], placeholders[argument])
        for node in chain or ():
            _mark(node)
    for node in graph.nodes:
        is_slice = node.op == "call_function" and target_name(node.target) == "aten.slice_scatter"
        if is_slice and len(node.args) > _STEP and node.args[_STEP] != 1:
            _mark(node)


def _chain(value: Any, start: Node) -> list[Node] | None:
    """The writers that lead from `start` to a value; None if other operators do, too."""
    found: list[Node] = []
    while value is not start:
        if not isinstance(value, Node) or value.op != "call_function" or not value.args:
            return None
        name = target_name(value.target)
        if name in _WRITERS:
            found.append(value)
        elif name not in _VIEWS:
            return None
        value = value.args[0]
    return found


def _mark(writer: Node) -> None:
    """Makes a writer an update, and so one of a part of the same tensor that it writes back."""
    writer.target = _UPDATES.get(target_name(writer.target), writer.target)
    if len(writer.args) < 2 or not isinstance(source := writer.args[1], Node):
        return
    inner = _chain(source, writer.args[0]) if isinstance(writer.args[0], Node) else None
    for node in inner or ():
        _mark(node)
