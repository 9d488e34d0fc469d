# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Index maps that rearrange all elements of a tensor, and their inverses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shapejit.symbolic.bounds import Ranges, SymbolRanges
from shapejit.symbolic.expr import ONE, ZERO, Atom, AtomKind, Expr, as_expr, product
from shapejit.symbolic.reshape import linearize


def is_reshape(
    exprs: Sequence[Expr],
    src_sizes: Sequence[Expr | int],
    dst_sizes: Sequence[Expr | int],
    symbol_ranges: SymbolRanges | None = None,
) -> bool:
    """Whether an index map keeps the row-major order of all elements, so that nothing moves.

    Args:
      exprs: index of each source dim, over the result's dims.
      src_sizes: sizes of the source.
      dst_sizes: sizes of the result.
      symbol_ranges: ranges of the symbols; see `Ranges`.
    """
    if product(src_sizes) != product(dst_sizes):
        return False
    moved = linearize(exprs, src_sizes)
    kept = linearize([Expr.dim(i) for i in range(len(dst_sizes))], dst_sizes)
    difference = (moved - kept).substitute(dims=_unit_dims(dst_sizes))
    return Ranges(symbol_ranges, dst_sizes).simplify(difference) is ZERO


def invert_map(
    exprs: Sequence[Expr],
    src_sizes: Sequence[Expr | int],
    dst_sizes: Sequence[Expr | int],
    symbol_ranges: SymbolRanges | None = None,
) -> tuple[Expr, ...] | None:
    """The inverse of an index map that takes every element once, or None if none was found.

    Understood are maps in which each source index is either a digit of one result dim, such as
    `d2 // 32 % 12`, or a mixed-radix number of several, such as `32*d1 + d3`: what permutations,
    splits and merges of dims compose to.

    Returns:
      The index of each result dim, over the source's dims.
    """
    src, dst = [as_expr(e) for e in src_sizes], [as_expr(e) for e in dst_sizes]
    if product(src) != product(dst):
        return None
    ranges = Ranges(symbol_ranges, dst)
    units = _unit_dims(dst)
    forward = [ranges.simplify(e.substitute(dims=units)) for e in exprs]
    inverse: dict[int, Expr] = dict(units)
    digits: dict[int, list[_Digit]] = {}
    for position, expr in enumerate(forward):
        if (digit := _as_digit(expr, position, src[position])) is not None:
            digits.setdefault(digit.dim, []).append(digit)
        elif (parts := _split(expr, position, dst)) is not None:
            inverse.update(parts)
        else:
            return None
    for dim, parts_of_dim in digits.items():
        if dim in inverse or (joined := _join(parts_of_dim)) is None:
            return None
        inverse[dim] = joined
    if len(inverse) != len(dst):
        return None
    return _checked(forward, inverse, src, symbol_ranges)


def _unit_dims(sizes: Sequence[Expr | int]) -> dict[int, Expr]:
    """The only index of each dim of size one."""
    return {i: ZERO for i, size in enumerate(sizes) if size == 1}


class _Digit(NamedTuple):
    """The source index `position` is `(dim // stride) % radix`."""

    dim: int
    stride: Expr
    radix: Expr
    position: int


def _as_digit(expr: Expr, position: int, size: Expr) -> _Digit | None:
    """Reads `d`, `d // a`, `d % b` and `(d // a) % b`."""
    terms = expr.display_terms()
    if len(terms) != 1 or len(terms[0][0]) != 1 or terms[0][1] != 1:
        return None
    atom: Atom = terms[0][0][0]
    radix = size
    if atom.kind is AtomKind.MOD:
        expr, radix = atom.operands
        if (dim := expr.dim_index) is not None:
            return _Digit(dim, ONE, radix, position)
        inner = expr.display_terms()
        if len(inner) != 1 or len(inner[0][0]) != 1 or inner[0][1] != 1:
            return None
        atom = inner[0][0][0]
    if atom.kind is AtomKind.DIM:
        return _Digit(atom.index, ONE, radix, position)
    if atom.kind is not AtomKind.FLOORDIV or (dim := atom.operands[0].dim_index) is None:
        return None
    return _Digit(dim, atom.operands[1], radix, position)


def _join(digits: Sequence[_Digit]) -> Expr | None:
    """The dim whose digits are at the given source positions."""
    by_stride = {digit.stride: digit for digit in digits}
    total, stride = ZERO, ONE
    for _ in digits:
        digit = by_stride.get(stride)
        if digit is None:
            return None
        total += stride * Expr.dim(digit.position)
        stride *= digit.radix
    return total


def _split(expr: Expr, position: int, dst: Sequence[Expr]) -> Mapping[int, Expr] | None:
    """The dims whose mixed-radix number is the source index `position`."""
    strides = {dim: expr.stride(dim) for dim in expr.dims()}
    if expr != sum((s * Expr.dim(d) for d, s in strides.items() if s is not None), start=ZERO):
        return None
    by_stride = {stride: dim for dim, stride in strides.items() if stride is not None}
    index, stride, found = Expr.dim(position), ONE, dict[int, Expr]()
    for _ in strides:
        dim = by_stride.get(stride)
        if dim is None:
            return None
        found[dim] = index // stride % dst[dim]
        stride *= dst[dim]
    return found


def _checked(
    forward: Sequence[Expr],
    inverse: Mapping[int, Expr],
    src: Sequence[Expr],
    symbol_ranges: SymbolRanges | None,
) -> tuple[Expr, ...] | None:
    """The inverse if it provably is one. With equal element counts one side is enough."""
    ranges = Ranges(symbol_ranges, src)
    exprs = {dim: ranges.simplify(expr) for dim, expr in inverse.items()}
    for i, expr in enumerate(forward):
        index = ZERO if src[i] is ONE else Expr.dim(i)
        if ranges.simplify(expr.substitute(dims=exprs)) != index:
            return None
    return tuple(exprs[dim] for dim in range(len(exprs)))
