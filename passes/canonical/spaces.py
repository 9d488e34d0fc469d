# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Changes of an op's iteration space, with views that keep the rest of the program as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.symbolic import Expr


def make_view(value: Any, sizes: Sequence[Expr], exprs: Sequence[Expr]) -> Any:
    """A view of `value` with the given sizes, at the current insertion point and location."""
    return ir.Operation.create(
        "shapejit.view",
        results=[sir.tensor_type(sizes, value.type.element_type)],
        operands=[value],
        attributes={"map": ir.AffineMapAttr.get(sir.make_map(len(sizes), exprs))},
    ).results[0]


def set_space(op: Any, space: Sequence[Expr], maps: Sequence[tuple[int, Sequence[Expr]]]) -> None:
    """Sets the iteration space and the maps, each given by its number of dims and its results."""
    op.attributes["space"] = sir.shape_attr(space)
    op.attributes["maps"] = sir.maps_attr([sir.make_map(dims, exprs) for dims, exprs in maps])


def set_result_sizes(op: Any, number: int, sizes: Sequence[Expr], back: Sequence[Expr]) -> None:
    """Gives a result new sizes; its readers get a view of the old ones.

    Args:
      op: the operation.
      number: of the result.
      sizes: the new sizes.
      back: where the view reads the result, over the dims of the old sizes.
    """
    result = op.results[number]
    old_type = result.type
    result.set_type(sir.tensor_type(sizes, old_type.element_type))
    with ir.InsertionPoint.after(op), op.location:
        view = make_view(result, sir.shape_of(old_type), back)
    view.set_type(old_type)  # the same sizes, in the spelling that the readers know
    result.replace_all_uses_except(view, view.owner.operation)


def replace_indices(loop: Any, build: Callable[[int], Any]) -> None:
    """Replaces each `shapejit.index i` of a loop's body by what `build(i)` emits in its place."""
    for op in sir.operations(sir.body(loop)):
        if op.name != "shapejit.index":
            continue
        with ir.InsertionPoint(op), op.location:
            value = build(ir.IntegerAttr(op.attributes["dim"]).value)
        op.results[0].replace_all_uses_with(value)
        op.erase()
