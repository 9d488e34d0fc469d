# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Dims of a kernel that only ever occur together become one dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shapejit.passes.fusion.codec import Codec, has_division
from shapejit.passes.fusion.model import Access, Model, Part
from shapejit.symbolic import Expr


def collapse(model: Model, codec: Codec) -> None:
    """Makes one dim of adjacent ones that only ever occur together, in contiguous memory.

    A loop over [batch, rows, 384] that reads and writes everything at (d0, d1, d2), (d2) or
    (d0*rows + d1, d2) becomes one over [batch*rows, 384]. A static innermost dim stays as it is
    beside a dynamic one, for vectors of known length.
    """
    for value in model.inputs:
        if value not in model.captured:
            _merge_divided(model, value, codec)
    dim = 0
    while dim + 1 < max(len(part.space) for part in model.parts):
        merges = _merges(model, dim)
        if merges is None:
            dim += 1
        else:
            _merge(model, dim, merges)
            dim = max(dim - 1, 0)


def _merge_divided(model: Model, value: Any, codec: Codec) -> None:
    """Merges dims of a tensor that is only read at a quotient and its remainder."""
    reads = [(part, a) for part in model.parts for a in part.accesses if a.value == value]
    if not any(has_division(index) for _, access in reads for index in access.indices):
        return
    if any(part.op.name in _FIXED_SPACE for part, _ in reads):
        return
    sizes, position = model.sizes[value], 0
    while position + 1 < len(sizes):
        pair = slice(position, position + 2)
        merged = []
        for part, access in reads:
            first, second = access.indices[pair]
            ranges = codec.ranges(tuple(part.space))
            merged.append(ranges.simplify(first * sizes[position + 1] + second))
        divided = all(all(map(has_division, access.indices[pair])) for _, access in reads)
        if divided and not any(map(has_division, merged)):
            for (_, access), index in zip(reads, merged, strict=True):
                access.indices[pair] = [index]
            sizes[pair] = [sizes[position] * sizes[position + 1]]
        else:
            position += 1


_NOWHERE: Final = -1
# Ops whose dims have their meaning by their position.
_FIXED_SPACE: Final = frozenset(
    {
        *("shapejit.attention", "shapejit.conv"),
        *("shapejit.scan", "shapejit.scatter", "shapejit.sort"),
    }
)


def _merges(model: Model, dim: int) -> dict[Any, int] | None:
    """For each tensor, which of its dims merges with the next if loop dims do: `dim` and `dim + 1`.

    Returns:
        `_NOWHERE` for tensors that keep their dims; None if the loop dims cannot merge.
    """
    found: dict[Any, int] = dict.fromkeys(model.captured, _NOWHERE)
    for part in model.parts:
        concerned = len(part.space) > dim
        if concerned and not _may_merge(part, dim):
            return None
        for access in part.accesses:
            sizes = model.sizes[access.value]
            position = _pair_position(access, dim, part.space, sizes) if concerned else _NOWHERE
            if position is None or found.setdefault(access.value, position) != position:
                return None
    return found


def _may_merge(part: Part, dim: int) -> bool:
    """Whether a part allows its dims `dim` and `dim + 1` to be merged."""
    if part.op.name in _FIXED_SPACE:
        return False
    # m is the last dim of a gemm that can merge; n and k stay by themselves.
    last = len(part.space) - (3 if part.op.name == "shapejit.gemm" else 1)
    if dim + 1 > last or not {dim, dim + 1}.isdisjoint(part.body_dims.values()):
        return False
    first, second = part.space[dim : dim + 2]
    is_innermost = dim + 2 == len(part.space)
    return not is_innermost or second.constant is None or first.constant is not None


def _pair_position(
    access: Access, dim: int, space: Sequence[Expr], sizes: Sequence[Expr]
) -> int | None:
    """Which dim of a tensor merges with the next; `_NOWHERE` if none needs to, None if none can."""
    pair = {dim, dim + 1}
    concerned = [p for p, index in enumerate(access.indices) if not pair.isdisjoint(index.dims())]
    if not concerned:
        return _NOWHERE
    position = concerned[0]
    if len(concerned) == 1:
        index = access.indices[position]
        outer, inner = index.stride(dim), index.stride(dim + 1)
        together = outer is not None and inner is not None and outer == inner * space[dim + 1]
        return _NOWHERE if together else None
    plain = [access.indices[p].dim_index for p in concerned] == [dim, dim + 1]
    if plain and concerned[1] == position + 1 and sizes[position + 1] == space[dim + 1]:
        return position
    return None


def _merge(model: Model, dim: int, merges: dict[Any, int]) -> None:
    """Merges loop dims `dim` and `dim + 1`, and the tensors' dims that follow them."""
    for part in model.parts:
        rank = len(part.space)
        if rank <= dim:
            continue
        moved = {old: Expr.dim(old - 1) for old in range(dim + 1, rank)} | {dim: Expr.const(0)}
        part.space[dim : dim + 2] = [part.space[dim] * part.space[dim + 1]]
        part.map_ranks = [n - 1 for n in part.map_ranks]
        part.body_dims = {n: d - 1 if d > dim else d for n, d in part.body_dims.items()}
        for access in part.accesses:
            access.indices = [index.substitute(dims=moved) for index in access.indices]
            if (position := merges[access.value]) != _NOWHERE:
                access.indices[position : position + 2] = [Expr.dim(dim)]
    for value, position in merges.items():
        if position != _NOWHERE:
            sizes = model.sizes[value]
            sizes[position : position + 2] = [sizes[position] * sizes[position + 1]]
