# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Dims of size one leave the iteration spaces of loops and the batch dims of gemms.

A loop over `[s0, 1, 384]` and one over `[s0, 384]` are one problem, and make one kernel. A loop
whose dims are all of size one keeps the last, so that no loop is without dims.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlir import ir
from mlir.dialects import arith

from shapejit import ir as sir
from shapejit.dialects import shapejit as sj
from shapejit.passes.analysis.accesses import accesses, space_of
from shapejit.passes.canonical.spaces import replace_indices, set_result_sizes, set_space
from shapejit.symbolic import Expr

_ZERO = Expr.const(0)


def drop_unit_dims(op: Any) -> None:
    """Rewrites a loop or gemm in place; other ops, and those without such dims, are left."""
    if op.name == "shapejit.loop":
        units = _unit_dims(space_of(op))
        if len(units) == len(space_of(op)):
            units = units[:-1]
        if units:
            _drop_from_loop(op, units)
    elif op.name == "shapejit.gemm":
        # All but m, n and k are batch dims.
        units = _unit_dims(space_of(op)[:-3])
        if units:
            _drop_from_gemm(op, units)


def _unit_dims(space: Iterable[Expr]) -> list[int]:
    return [i for i, size in enumerate(space) if size == 1]


def _renumbered(rank: int, units: list[int]) -> dict[int, Expr]:
    """What stands for each dim: 0 for a dropped one, else its new number."""
    kept = [i for i in range(rank) if i not in units]
    return dict.fromkeys(units, _ZERO) | {old: Expr.dim(new) for new, old in enumerate(kept)}


def _new_maps(op: Any, units: list[int]) -> list[tuple[int, list[Expr]]]:
    """The maps of an op without the dropped dims; results' maps lose them as results too."""
    maps = []
    for access in accesses(op):
        dims = _renumbered(len(access.space), units)
        exprs = [e for e in access.exprs if access.operand is not None or e.dim_index not in units]
        maps.append((len(access.space) - len(units), [e.substitute(dims=dims) for e in exprs]))
    return maps


def _drop_from_loop(loop: Any, units: list[int]) -> None:
    space, maps = space_of(loop), _new_maps(loop, units)
    results = [access for access in accesses(loop) if access.operand is None]
    kept = [size for i, size in enumerate(space) if i not in units]
    set_space(loop, kept, maps)
    # A reduction over dropped dims alone reduces one element: it is none.
    kinds = [
        "none" if len(exprs) == len(kept) else kind
        for kind, (_, exprs) in zip(sir.kinds(loop), maps[len(loop.operands) :], strict=True)
    ]
    loop.attributes["kinds"] = ir.ArrayAttr.get([ir.StringAttr.get(kind) for kind in kinds])
    for number, access in enumerate(results):
        dropped = [p for p, e in enumerate(access.exprs) if e.dim_index in units]
        _drop_from_result(loop, number, dropped)
    dims = _renumbered(len(space), units)

    def index(dim: int) -> Any:
        new = dims[dim].dim_index
        if new is None:
            return arith.constant(ir.IndexType.get(), 0)
        return sj.IndexOp(new, results=[ir.IndexType.get()]).result

    replace_indices(loop, index)


def _drop_from_gemm(gemm: Any, units: list[int]) -> None:
    space = space_of(gemm)
    kept = [size for i, size in enumerate(space) if i not in units]
    set_space(gemm, kept, _new_maps(gemm, units))
    _drop_from_result(gemm, 0, units)


def _drop_from_result(op: Any, number: int, dropped: list[int]) -> None:
    if not dropped:
        return
    sizes = sir.shape_of(op.results[number])
    kept = [i for i in range(len(sizes)) if i not in dropped]
    back = [Expr.dim(i) for i in kept]
    set_result_sizes(op, number, [sizes[i] for i in kept], back)
