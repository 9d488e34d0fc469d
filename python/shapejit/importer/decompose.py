# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The exported program brought into the operators that have rules.

``run_decompositions({})`` makes the graph functional and keeps the heavy operators (linear,
attention, norms) whole. Of what is left without a rule, torch's own decompositions are applied to
just those operators; what then remains is one error that lists it all.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from shapejit.errors import ErrorId
from shapejit.importer.export import check_no_mutation, quiet
from shapejit.importer.registry import target_name
from shapejit.importer.source import model_line

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

_MAX_ROUNDS: Final = 4


def decompose(program: ExportedProgram, supported: Collection[str]) -> ExportedProgram:
    """A functional program whose operators are all in `supported`, checks removed.

    Raises:
        UnsupportedOpError: lists every operator that is not, with its uses and first source line.
        ExportError: a buffer or input changes in place, or the graph has subgraphs.
        TrainError: an operator in training mode.
    """
    with torch.no_grad(), quiet():
        program = program.run_decompositions({})
        check_no_mutation(program)
        _check_training(program)
        for _ in range(_MAX_ROUNDS):
            remove_checks(program.graph_module)
            missing = unsupported(program, supported)
            known = torch.export.default_decompositions()
            table = {t: known[t] for t in {n.target for n in missing} if t in known}
            if not table:
                break
            try:
                program = program.run_decompositions(table)
            except Exception:
                # A decomposition may give strides that a later view in the graph does not fit.
                break
    if missing:
        raise unsupported_error([(target_name(n.target), _line(n)) for n in missing])
    return program


def remove_checks(module: GraphModule) -> None:
    """Drops assertions and what only they used."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and target_name(node.target) in _CHECKS:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()


def unsupported(program: ExportedProgram, supported: Collection[str]) -> list[Node]:
    """Nodes whose operator is not in `supported`; subgraphs are an error of their own."""
    missing = []
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise ErrorId.SJ_EXPORT_017.error(op=str(node.target), location=_line(node))
        if _is_size_arithmetic(node) or target_name(node.target) in supported:
            continue
        missing.append(node)
    return missing


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


def _check_training(program: ExportedProgram) -> None:
    for node in program.graph.nodes:
        position = _TRAINING_FLAG.get(target_name(node.target))
        if position is not None and _argument(node, position) is True:
            raise ErrorId.SJ_TRAIN_002.error(op=target_name(node.target), location=_line(node))


def _argument(node: Node, position: int) -> Any:
    return node.args[position] if position < len(node.args) else None
