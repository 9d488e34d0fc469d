# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Linear layers become 2-d: the batch dims and m of a gemm with shared weights are its rows.

`[s0, s1, n, k]` and `[s0 * s1, n, k]` are one problem when the weights do not depend on s0 and s1
and the lhs steps through both in memory order. The loops around such a gemm have to agree on the
rows, or they would not fuse with it nor with each other; so the rewrite spreads from the gemms,
through values that all run over these rows, to every loop that can follow. A value that crosses to
an op that does not follow gets a view, which only regroups contiguous dims and moves nothing.

A loop follows if its leading dims are the rows and all its results are laid out by them. Its inputs
need not be: one that is indexed by a part of the row, such as a table of positions, is read at
`row mod s1`. For a gemm that would cost in its inner loops, so its lhs must be laid out by rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.dialects import shapejit as sj
from shapejit.passes.analysis.accesses import (
    Access,
    Sizes,
    accesses,
    space_of,
    weight_count,
)
from shapejit.passes.analysis.index_values import IndexValues
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import (
    make_view,
    replace_indices,
    set_result_sizes,
    set_space,
)
from shapejit.passes.fold_views import divided_dims
from shapejit.symbolic import Expr, delinearize, linearize, product


def collapse_rows(function: Any, facts: SymbolFacts) -> None:
    """Rewrites the gemms and loops of a function in place."""
    rows = RowFinder(function, facts).rows
    for op in sir.operations(sir.body(function)):
        if (found := rows.get(sir.key(op))) is not None:
            _RowCollapse(op, found, facts).run()


@dataclass(frozen=True)
class Rows:
    """The rows of one op.

    Attributes:
      sizes: of the row dims, the leading dims of the op's space.
      positions: for each access, where these dims are adjacent dims of the tensor, whole and used
        nowhere else; None if the tensor is not laid out by rows.
    """

    sizes: Sizes
    positions: tuple[int | None, ...]


class RowFinder:
    """Decides which ops of a function run over collapsed rows.

    Args:
      function: a func.func.
      facts: about the module's symbols.

    Attributes:
      rows: by `sir.key` of the op.
    """

    def __init__(self, function: Any, facts: SymbolFacts) -> None:
        self._facts = facts
        self._accesses: dict[int, list[Access]] = {}
        self.rows: dict[int, Rows] = {}
        for op in sir.operations(sir.body(function)):
            if op.name == "shapejit.gemm" and sir.key(op) not in self.rows:
                rows = self._gemm_rows(op)
                if rows is not None:
                    self._spread(op, rows)

    def _gemm_rows(self, gemm: Any) -> Rows | None:
        """The rows of a gemm, if they are several dims and can be collapsed."""
        sizes = space_of(gemm)[:-2]
        if len(sizes) < 2:
            return None
        lhs, *others = self._accesses_of(gemm)
        weights = others[: weight_count(gemm)]
        row_dims = frozenset(range(len(sizes)))
        if any(not row_dims.isdisjoint(e.dims()) for weight in weights for e in weight.exprs):
            return None
        rows = self._rows(gemm, sizes)
        if rows.positions[0] is None and divided_dims(_on_rows(lhs, sizes, self._facts)):
            return None
        return rows

    def _rows(self, op: Any, sizes: Sizes) -> Rows:
        return Rows(sizes, tuple(self._position(a, sizes) for a in self._accesses_of(op)))

    def _accesses_of(self, op: Any) -> list[Access]:
        found = self._accesses.get(sir.key(op))
        if found is None:
            found = self._accesses[sir.key(op)] = accesses(op)
        return found

    def _position(self, access: Access, sizes: Sizes) -> int | None:
        count = len(sizes)
        start = next((p for p, e in enumerate(access.exprs) if e.dim_index == 0), None)
        if start is None:
            return None
        end = start + count
        plain = [e.dim_index for e in access.exprs[start:end]] == list(range(count))
        if not plain or self._facts.sizes(access.value)[start:end] != sizes:
            return None
        row_dims = frozenset(range(count))
        others = (*access.exprs[:start], *access.exprs[end:])
        return start if all(row_dims.isdisjoint(e.dims()) for e in others) else None

    def _spread(self, seed: Any, rows: Rows) -> None:
        """Takes a gemm, and every loop that shares row-wise values with it and can follow."""
        self.rows[sir.key(seed)] = rows
        pending = [(seed, rows)]
        while pending:
            op, rows = pending.pop()
            for value in self._row_values(op, rows):
                for loop in _neighbouring_loops(value):
                    if (
                        sir.key(loop) in self.rows
                        or space_of(loop)[: len(rows.sizes)] != rows.sizes
                    ):
                        continue
                    found = self._rows(loop, rows.sizes)
                    if _follows(loop, found) and value in self._row_values(loop, found):
                        self.rows[sir.key(loop)] = found
                        pending.append((loop, found))

    def _row_values(self, op: Any, rows: Rows) -> list[Any]:
        """The tensors of an op that are laid out by its rows."""
        values = [
            access.value
            for access, position in zip(self._accesses_of(op), rows.positions, strict=True)
            if position is not None
        ]
        return [*values, op.results[0]] if op.name == "shapejit.gemm" else values


def _neighbouring_loops(value: Any) -> Iterator[Any]:
    """The loops that write or read a tensor."""
    producer = sir.defining_op(value)
    users = [user for user, _ in sir.users(value)]
    for op in users if producer is None else [producer, *users]:
        if op.name == "shapejit.loop":
            yield op


def _follows(loop: Any, rows: Rows) -> bool:
    """Whether all results of a loop are laid out by the rows."""
    return None not in rows.positions[len(loop.operands) :]


def _on_rows(access: Access, sizes: Sizes, facts: SymbolFacts) -> tuple[Expr, ...]:
    """The access's indices over the collapsed space, the parts of the row by division."""
    count = len(sizes)
    dims = dict(enumerate(delinearize(Expr.dim(0), sizes)))
    dims |= {old: Expr.dim(old - count + 1) for old in range(count, len(access.space))}
    simplify = facts.over(_collapsed(access.space, 0, count)).simplify
    return tuple(simplify(e.substitute(dims=dims)) for e in access.exprs)


def _collapsed(sizes: Sizes, start: int, count: int) -> Sizes:
    """`sizes` with `count` of them, from `start`, replaced by their product."""
    return (*sizes[:start], product(sizes[start : start + count]), *sizes[start + count :])


# The rewrite --------------------------------------------------------------------------------------


class _RowCollapse:
    """Rewrites one loop or gemm over its collapsed rows."""

    def __init__(self, op: Any, rows: Rows, facts: SymbolFacts) -> None:
        self._op = op
        self._rows = rows
        self._sizes = rows.sizes
        self._facts = facts

    def run(self) -> None:
        op, count = self._op, len(self._sizes)
        space = space_of(op)
        found = list(zip(accesses(op), self._rows.positions, strict=True))
        maps = [
            (len(access.space) - count + 1, self._exprs(access, position))
            for access, position in found
        ]
        for access, position in found:
            if access.operand is not None and position is not None:
                op.operands[access.operand] = self._rows_of(access.value, position)
        set_space(op, _collapsed(space, 0, count), maps)
        if op.name == "shapejit.gemm":
            self._collapse_result(0, 0)
            return
        for number, position in enumerate(self._rows.positions[len(op.operands) :]):
            assert position is not None
            self._collapse_result(number, position)
        replace_indices(op, self._index)

    def _exprs(self, access: Access, position: int | None) -> Sequence[Expr]:
        exprs = _on_rows(access, self._sizes, self._facts)
        if position is None:
            return exprs
        return [*exprs[:position], Expr.dim(0), *exprs[position + len(self._sizes) :]]

    def _rows_of(self, value: Any, position: int) -> Any:
        """A view of an operand with its row dims collapsed."""
        sizes, count = self._facts.sizes(value), len(self._sizes)
        new_sizes = _collapsed(sizes, position, count)
        dims = [Expr.dim(i) for i in range(len(new_sizes))]
        row = delinearize(dims[position], self._sizes)
        with ir.InsertionPoint(self._op), self._op.location:
            return make_view(value, new_sizes, [*dims[:position], *row, *dims[position + 1 :]])

    def _collapse_result(self, number: int, position: int) -> None:
        sizes, count = sir.shape_of(self._op.results[number]), len(self._sizes)
        dims = [Expr.dim(i) for i in range(len(sizes))]
        end = position + count
        row = linearize(dims[position:end], self._sizes)
        back = [*dims[:position], row, *dims[end:]]
        set_result_sizes(self._op, number, _collapsed(sizes, position, count), back)

    def _index(self, dim: int) -> Any:
        """The value of an old loop index in the body of the new loop."""
        count = len(self._sizes)
        new = 0 if dim < count else dim - count + 1
        index = sj.IndexOp(new, results=[ir.IndexType.get()]).result
        if dim >= count:
            return index
        return delinearize(Expr.dim(0), self._sizes)[dim].build(IndexValues([index]))
