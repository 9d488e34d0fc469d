# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Loops take the layout of what they read.

A model says [n, c, h, w], while convolutions write [n, h, w, c]. A batch norm after one would read
it transposed and write the other layout, so that the next convolution has to read that. Here the
loop runs over [n, h, w, c] instead and a view gives readers what they know; the view folds into
their maps, so the layout spreads through a chain of layers, and ends where something needs its
order. It also lets a loop become the epilogue of a gemm that it reads transposed. Where the inputs
have no other order, a loop whose only reader is a transposing view makes that view's order.

A loop that reads by ``tensor.extract`` alone (a pool, a join of channels) has the order of what it
extracts from. A reduction changes its order only for the sake of its innermost dim: the mean of
[n, c, h, w] over pixels reads whole pixels of [n, h, w, c] then, and not one channel after the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlir import ir

from shapejit import ir as sir
from shapejit.dialects import shapejit as sj
from shapejit.passes.analysis.accesses import Access, accesses, space_of
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.spaces import replace_indices, set_result_sizes, set_space
from shapejit.passes.fold_views import ViewFolder
from shapejit.symbolic import Expr

# What a loop may become the epilogue of; its layout counts before that of others.
_PRODUCTS: Final = frozenset({"shapejit.gemm", "shapejit.conv"})


def spread_layouts(function: Any, facts: SymbolFacts) -> None:
    """Permutes the dims of loops of a function, in program order."""
    folder = ViewFolder(function, facts)
    for op in sir.operations(sir.body(function)):
        if op.name == "shapejit.loop" and (order := _loop_order(op)) is not None:
            for result in _permute(op, order):
                for user, _ in sir.users(result):
                    if user.name == "shapejit.view":
                        folder.fold(user)
    folder.erase_dead_views()


def _loop_order(loop: Any) -> list[int] | None:
    """The loop's dims in the order in which they should be, if that is another one."""
    rank = len(space_of(loop))
    if sir.is_pointwise(loop):
        written = (a.exprs for a in accesses(loop) if a.operand is None)
        if any([e.dim_index for e in exprs] != list(range(rank)) for exprs in written):
            return None
        return _order(loop)
    if "none" in sir.kinds(loop):
        return None
    order = _order(loop)
    return None if order is None or order[-1] == rank - 1 else order


def _order(loop: Any) -> list[int] | None:
    """The loop's dims in the order in which its inputs lie in memory, if that is another one."""
    rank = len(space_of(loop))
    found = accesses(loop)
    identity = list(range(rank))
    orders: list[list[int]] = []
    for access in found[: len(loop.operands)]:
        order = _whole_order(access, rank)
        if order is None:
            continue
        producer = sir.defining_op(access.value)
        if producer is not None and producer.name in _PRODUCTS:
            return None if order == identity else order
        orders.append(order)
    orders = orders or _extracted_orders(loop, rank)
    if not orders:
        return None
    order = orders[0]
    if order == identity and len(loop.results) == 1 and sir.is_pointwise(loop):
        order = _wanted_order(loop.results[0]) or identity
    return order if order != identity and all(o == orders[0] for o in orders) else None


def _wanted_order(result: Any) -> list[int] | None:
    """The dims in the order in which the only reader, a transposing view, has them."""
    users = sir.users(result)
    if len(users) != 1 or users[0][0].name != "shapejit.view":
        return None
    [access] = accesses(users[0][0])
    order = _whole_order(access, len(access.space))
    if order is None or len(order) != len(access.exprs):
        return None
    return sorted(range(len(order)), key=order.__getitem__)


def _whole_order(access: Access, rank: int) -> list[int] | None:
    """The dims by which a tensor is read, if each of the loop's is one index of it."""
    order = [e.dim_index for e in access.exprs if e.constant is None]
    found = [dim for dim in order if dim is not None]
    return found if sorted(found) == list(range(rank)) and len(found) == len(order) else None


def _extracted_orders(loop: Any, rank: int) -> list[list[int]]:
    """The orders of the tensors that a body extracts from, each dim at its own index."""
    dims: dict[Any, frozenset[int]] = {}  # that index values depend on
    orders = []
    for op in sir.operations(sir.body(loop)):
        used = [dims.get(value, frozenset()) for value in op.operands]
        if op.name == "shapejit.index":
            used = [frozenset({ir.IntegerAttr(op.attributes["dim"]).value})]
        elif op.name == "tensor.extract":
            order = [dim for found in used[1:] for dim in found]
            if sorted(order) == list(range(rank)) and len(used) == rank + 1:
                orders.append(order)
            continue
        dims.update(dict.fromkeys(op.results, frozenset().union(*used)))
    return orders


def _permute(loop: Any, order: Sequence[int]) -> list[Any]:
    """Rewrites a loop in place so that its dim i is the old dim ``order[i]``.

    Returns:
        The results, whose readers now read views of them.
    """
    space = space_of(loop)
    place = {old: new for new, old in enumerate(order)}
    dims = {old: Expr.dim(new) for old, new in place.items()}
    rank, operands = len(space), len(loop.operands)
    maps: list[tuple[int, Sequence[Expr]]] = [
        (rank, [e.substitute(dims=dims) for e in access.exprs])
        for access in accesses(loop)[:operands]
    ]
    written = [_written(access, place) for access in accesses(loop)[operands:]]
    maps += [(rank, exprs) for exprs, _ in written]
    set_space(loop, [space[old] for old in order], maps)
    for number, (_, places) in enumerate(written):
        if places != list(range(len(places))):
            sizes = sir.shape_of(loop.results[number])
            back = [Expr.dim(old) for old in places]
            set_result_sizes(loop, number, [sizes[old] for old in places], back)
    index = ir.IndexType.get()
    replace_indices(loop, lambda dim: sj.IndexOp(place[dim], results=[index]).result)
    return list(loop.results)


def _written(access: Access, place: Mapping[int, int]) -> tuple[list[Expr], list[int]]:
    """The map of a result in the order of the loop's new dims, and for each of its dims the old.

    Args:
      access: a result's.
      place: new dims of the loop by old ones.
    """
    moved = [place[e.dim_index] for e in access.exprs if e.dim_index is not None]
    places = sorted(range(len(moved)), key=moved.__getitem__)
    return [Expr.dim(moved[old]) for old in places], places
