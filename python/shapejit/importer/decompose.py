# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The exported program brought into the operators that have rules.

A program whose operators all have rules, and none of which writes in place, is taken as it is: that
is most models, and torch's decomposition takes as long as its export. Otherwise torch makes the
program functional, and applies its own decompositions to just the operators that have no rule; what
then remains is one error that lists it all.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from shapejit.errors import ErrorId
from shapejit.importer.export import quiet
from shapejit.importer.registry import target_name
from shapejit.importer.source import model_line
from shapejit.importer.updates import mark_updates
from shapejit.precision import kept_settings

_CHECKS: Final = frozenset(
    {
        "aten._assert_async",
        "aten._assert_async.msg",
        "aten._assert_scalar",
        "aten._assert_tensor_metadata",
        "aten.sym_constrain_range",
        "aten.sym_constrain_range_for_size",
    }
)
"""Operators that compute nothing. Sizes are checked by the program's own signature."""

_TRAINING_FLAG: Final = {"aten.dropout": 2, "aten.batch_norm": 5, "aten.native_dropout": 2}
"""Operators that behave differently in training, and the position of the flag."""

_HARMLESS: Final = frozenset({"aten.detach_"})
"""Operators that write in place by their schema, but not to data."""

_MAX_ROUNDS: Final = 4


@dataclass
class FunctionalProgram:
    """A program without writes in place; its signature says what its outputs are new values of.

    Attributes:
        program: the exported program; its graph may be another one.
        graph: the graph, our own copy.
    """

    program: ExportedProgram
    graph: Graph


def decompose_program(program: ExportedProgram, supported: Collection[str]) -> FunctionalProgram:
    """A functional program whose operators are all in `supported`, checks removed.

    Raises:
        UnsupportedOpError: lists every operator that is not, with its uses and first source line.
        ExportError: a parameter or constant changes in place, or the graph has subgraphs.
        TrainError: an operator in training mode.
    """
    _check_training(program.graph)
    plain = _own_graph(program)
    missing = unsupported(plain, supported)
    if not missing and not _writes_in_place(plain):
        mark_updates(program, plain)
        return FunctionalProgram(program, plain)
    with torch.no_grad(), quiet(), kept_settings():
        for _ in range(_MAX_ROUNDS):
            program = _decomposed(program, missing)
            graph = _own_graph(program)
            _check_training(graph)
            before, missing = missing, unsupported(graph, supported)
            if not missing or _names(missing) == _names(before):
                break
    _refuse_subgraphs(graph)
    if missing:
        raise unsupported_error([(target_name(n.target), _line(n)) for n in missing])
    mark_updates(program, graph)
    return FunctionalProgram(program, graph)


def _decomposed(program: ExportedProgram, missing: Sequence[Node]) -> ExportedProgram:
    """The program made functional, with torch's decompositions of some of its operators."""
    known = torch.export.default_decompositions()
    table = {target: known[target] for target in {n.target for n in missing} if target in known}
    made: ExportedProgram
    try:
        made = program.run_decompositions(table)
    except Exception:
        # A decomposition may give strides that a later view in the graph does not fit.
        made = program.run_decompositions({})
    return made


def _names(nodes: Sequence[Node]) -> set[str]:
    return {target_name(node.target) for node in nodes}


def _own_graph(program: ExportedProgram) -> Graph:
    """A copy of the program's graph without assertions and what only they used."""
    graph: Graph = copy.deepcopy(program.graph)
    for node in list(graph.nodes):
        if node.op == "call_function" and target_name(node.target) in _CHECKS:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return graph


def _writes_in_place(graph: Graph) -> bool:
    return any(
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        and target_name(node.target) not in _HARMLESS
        for node in graph.nodes
    )


def _refuse_subgraphs(graph: Graph) -> None:
    """SJ-EXPORT-017 for control flow and other operators that hold graphs of their own."""
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise ErrorId.SJ_EXPORT_017.error(op=str(node.target), location=_line(node))


def unsupported(graph: Graph, supported: Collection[str]) -> list[Node]:
    """Nodes whose operator is not in `supported`."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and not _is_size_arithmetic(node)
        and target_name(node.target) not in supported
    ]


def _is_size_arithmetic(node: Node) -> bool:
    """Whether a node computes on sizes, or picks one of several results."""
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    plain = not isinstance(node.target, torch._ops.OpOverload)
    return node.target is operator.getitem or (
        isinstance(node.meta.get("val"), symbolic)
        and (plain or target_name(node.target).startswith("aten.sym_"))
    )


def unsupported_error(uses: Sequence[tuple[str, str | None]]) -> Exception:
    """SJ-OP-001 for (operator, source line) pairs, one for each use, in program order."""
    found: dict[str, list[str | None]] = {}
    for name, line in uses:
        found.setdefault(name, []).append(line)
    width = max(map(len, found))
    rows = [
        f"  {name:<{width}}  {len(lines)} use{'s' if len(lines) > 1 else ' '}"
        + (f"  first at {lines[0]}" if lines[0] else "")
        for name, lines in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    count = f"{len(found)} operator{'s' if len(found) > 1 else ''}"
    return ErrorId.SJ_OP_001.error(count=count, table="\n".join(rows))


def _line(node: Node) -> str | None:
    line = model_line(node.meta.get("stack_trace"))
    return None if line is None else str(line)


def _check_training(graph: Graph) -> None:
    for node in graph.nodes:
        position = _TRAINING_FLAG.get(target_name(node.target))
        if position is not None and _argument(node, position) is True:
            raise ErrorId.SJ_TRAIN_002.error(op=target_name(node.target), location=_line(node))


def _argument(node: Node, position: int) -> Any:
    return node.args[position] if position < len(node.args) else None
