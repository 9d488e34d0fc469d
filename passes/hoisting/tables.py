# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tables over positions, such as cosines of rotary embeddings, up to the greatest length.

A row of such a table depends on its number and on weights; the length of a call only says how many
rows there are. So the table of the greatest length holds that of every other one as its first rows,
and depends on weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.passes.analysis.accesses import accesses, space_of
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import set_result_sizes
from shapejit.passes.fold_views import ViewFolder
from shapejit.passes.fusion.readers import readers
from shapejit.symbolic import Expr, Ranges, product

# What can read the first rows of a table through its maps; anything else would copy them.
_READERS: Final = frozenset({"shapejit.loop", "shapejit.gemm", "shapejit.attention"})


@dataclass(frozen=True)
class Tables:
    """What became of a function's tables.

    Attributes:
        made: the operations that compute tables of the greatest length.
        large: operations that stay, as their tables would take too much, with their bytes.
    """

    made: tuple[Any, ...]
    large: tuple[tuple[Any, int], ...]


def extend_tables(function: Any, facts: SymbolFacts, most_bytes: int) -> Tables:
    """Computes tables up to the greatest length; what read them reads their first rows.

    Args:
        function: of a model.
        facts: about the module's symbols.
        most_bytes: that all tables may take together.
    """
    made: list[Any] = []
    large: list[tuple[Any, int]] = []
    ranges = Ranges(facts.symbol_ranges)
    left = most_bytes
    for op in sir.operations(sir.body(function)):
        if not _is_table(function, op, facts):
            continue
        rows, *columns = map(facts.resolve, space_of(op))
        most = ranges.bounds(rows)[1]
        if most is None:
            continue
        sizes = (Expr.const(most), *columns)
        bytes_ = sum(_bytes(sizes, result) for result in op.results)
        if bytes_ > left:
            large.append((op, bytes_))
            continue
        left -= bytes_
        _extend(op, sizes)
        made.append(op)
    if made:
        ViewFolder(function, facts).run()
    return Tables(tuple(made), tuple(large))


def _bytes(sizes: Sequence[Expr], result: Any) -> int:
    size = product(sizes).constant
    assert size is not None, "columns are constant"
    return size * sir.element_bytes(result.type.element_type)


def _is_table(function: Any, op: Any, facts: SymbolFacts) -> bool:
    """Whether a loop computes rows from their numbers and weights, as many as an input has."""
    if op.name != "shapejit.loop" or not sir.is_pointwise(op) or sir.captured_values(op):
        return False
    if not space_of(op):
        return False  # one number
    rows, *columns = map(facts.resolve, space_of(op))
    if rows.constant is not None or any(size.constant is None for size in columns):
        return False
    if not all(_is_weight(function, value) for value in op.operands):
        return False
    children = list(sir.walk(op))
    if any(child.name == "shapejit.size" for child in children):
        return False
    if not any(child.name == "shapejit.index" and _dim(child) == 0 for child in children):
        return False  # all rows would be the same
    every, count = accesses(op), len(op.operands)
    read, written = every[:count], every[count:]
    inputs = [expr for access in read for expr in access.exprs]
    # A tensor that is read by row may have no more rows than a call needs.
    if any(0 in expr.dims() or expr.symbols() for expr in inputs):
        return False
    whole = all(
        [expr.dim_index for expr in access.exprs] == list(range(len(columns) + 1))
        for access in written
    )
    return whole and all(
        reader.op.name in _READERS for result in op.results for reader in readers(result)
    )


def _dim(index: Any) -> int:
    return int(ir.IntegerAttr(index.attributes["dim"]).value)


def _is_weight(function: Any, value: Any) -> bool:
    if sir.defining_op(value) is not None:
        return False
    return sir.argument_kind(function, ir.BlockArgument(value).arg_number) == "weight"


def _extend(op: Any, sizes: Sequence[Expr]) -> None:
    """Computes more rows; what read the loop reads the first of them."""
    op.attributes["space"] = sir.shape_attr(sizes)
    for number in range(len(op.results)):
        set_result_sizes(op, number, sizes, [Expr.dim(dim) for dim in range(len(sizes))])
