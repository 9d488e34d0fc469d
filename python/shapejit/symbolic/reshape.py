# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Row-major index arithmetic: offsets, their inverse, and the index map of a contiguous reshape."""

from __future__ import annotations

from collections.abc import Sequence

from shapejit.symbolic.expr import ONE, ZERO, Expr, as_expr, product


def linearize(indices: Sequence[Expr | int], sizes: Sequence[Expr | int]) -> Expr:
    """The row-major offset of `indices` in a contiguous array of `sizes`."""
    if len(indices) != len(sizes):
        raise ValueError(f"{len(indices)} indices for an array of rank {len(sizes)}")
    offset = ZERO
    for index, size in zip(indices, sizes, strict=True):
        offset = offset * size + index
    return offset


def delinearize(offset: Expr | int, sizes: Sequence[Expr | int]) -> tuple[Expr, ...]:
    """The indices of a row-major `offset` that lies within an array of `sizes`.

    An array that is known to be empty has no offset to be wrong about.
    """
    rest, indices = as_expr(offset), []
    for size in reversed(sizes[1:]):
        if size == 0:
            size = 1
        indices.append(rest % size)
        rest = rest // size
    return (rest, *reversed(indices)) if sizes else ()


def reshape_map(
    src_sizes: Sequence[Expr | int], dst_sizes: Sequence[Expr | int]
) -> tuple[Expr, ...]:
    """Where each element of a contiguous reshape comes from.

    Returns the source's indices as expressions of the result's dims `d<i>`. Dims are grouped as
    finely as the sizes allow, so `[s0, s1, 384] -> [s0, s1, 12, 32]` is `(d0, d1, 32*d2 + d3)`.

    Raises:
      ValueError: the two element counts are not the same polynomial.
    """
    src, dst = [as_expr(e) for e in src_sizes], [as_expr(e) for e in dst_sizes]
    count = product(src)
    if count != product(dst):
        raise ValueError(
            f"cannot reshape {_shape(src)} to {_shape(dst)}: the element counts {count} and "
            f"{product(dst)} differ"
        )
    if src == dst:
        return tuple(Expr.dim(i) for i in range(len(dst)))
    indices: list[Expr] = [ZERO] * len(src)
    if count is ZERO:
        return tuple(indices)  # no element is ever read
    for src_dims, dst_dims in _groups(src, dst):
        offset = linearize([Expr.dim(i) for i in dst_dims], [dst[i] for i in dst_dims])
        parts = delinearize(offset, [src[i] for i in src_dims])
        for i, part in zip(src_dims, parts, strict=True):
            indices[i] = part.simplify(dim_sizes=dst)
    return tuple(indices)


def _groups(src: list[Expr], dst: list[Expr]) -> list[tuple[list[int], list[int]]]:
    """Runs of source and result dims with equal element counts, as short as possible.

    Dims of size one take part in none: they are always indexed by zero.
    """
    src_dims = [i for i, size in enumerate(src) if size is not ONE]
    dst_dims = [i for i, size in enumerate(dst) if size is not ONE]
    ends = {count: end for end, count in enumerate(_running_products(src, src_dims), 1)}
    groups, src_start, dst_start = [], 0, 0
    for dst_end, count in enumerate(_running_products(dst, dst_dims), 1):
        src_end = ends.get(count)
        if src_end is not None:
            groups.append((src_dims[src_start:src_end], dst_dims[dst_start:dst_end]))
            src_start, dst_start = src_end, dst_end
    return groups


def _running_products(sizes: list[Expr], dims: list[int]) -> list[Expr]:
    products, total = [], ONE
    for i in dims:
        total = total * sizes[i]
        products.append(total)
    return products


def _shape(sizes: Sequence[Expr]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
