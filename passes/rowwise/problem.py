# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scans and sorts as the dialect says them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.symbolic import Expr, map_exprs

ROW_OPS: Final = frozenset({"shapejit.scan", "shapejit.sort"})

MAX_HEAD: Final = 2048
"""The longest head of a sort that is found without sorting the whole row."""


@dataclass(frozen=True)
class RowProblem:
    """A scan or a sort.

    Attributes:
        input: the tensor that is read.
        indices: where, over the dims of the space.
        space: its last size is the length of rows.
        results: the op's results: values, and maybe places.
        scan: the kind of a scan; None for a sort.
        descending: of a sort.
        head: how many elements of each sorted row are wanted; for a scan all.
    """

    input: Any
    indices: tuple[Expr, ...]
    space: tuple[Expr, ...]
    results: tuple[Any, ...]
    scan: str | None
    descending: bool
    head: Expr

    @property
    def rows(self) -> tuple[Expr, ...]:
        """Sizes of the dims before the row."""
        return self.space[:-1]

    @property
    def length(self) -> Expr:
        """Elements of a row."""
        return self.space[-1]

    @property
    def is_whole(self) -> bool:
        """Whether all of a sorted row is wanted."""
        return self.head == self.length


def row_problem(op: Any) -> RowProblem:
    """The problem of a ``shapejit.scan`` or ``shapejit.sort``."""
    scan = ir.StringAttr(op.attributes["kind"]).value if op.name == "shapejit.scan" else None
    [map_] = sir.op_maps(op)
    return RowProblem(
        input=op.operands[0],
        indices=map_exprs(map_),
        space=sir.attr_sizes(op.attributes["space"]),
        results=tuple(op.results),
        scan=scan,
        descending="descending" in op.attributes,
        head=sir.shape_of(op.results[0])[-1],
    )
