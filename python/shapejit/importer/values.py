# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors as the rules see them: shape, dtype and, often, contents known at compile time.

Models compute much from nothing but sizes: positions, causal masks, constants. Such tensors are not
built at all. Their contents are kept as a formula of the element's indices, views substitute into
it, integer arithmetic stays a formula, and an op that needs the values computes them in its body.
So ``arange(n)[None] <= arange(n)[:, None]`` is the predicate ``d0 - d1 >= 0``, which attention
recognises as a causal mask, and indexing by `arange` is a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from shapejit.symbolic import Expr, Ranges

Number: TypeAlias = bool | int | float
Shape: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True)
class Splat:
    """Every element is `value`."""

    value: Number


@dataclass(frozen=True)
class Affine:
    """Integer elements: `expr` of the element's indices ``d<i>``."""

    expr: Expr


@dataclass(frozen=True)
class Predicate:
    """Boolean elements: true where all `terms`, of the element's indices, are >= 0."""

    terms: tuple[Expr, ...]


Content: TypeAlias = Splat | Affine | Predicate


class Tensor:
    """A tensor: an SSA value, contents that are known, or both.

    Attributes:
        shape: its sizes.
        dtype: torch's dtype (MLIR's integers have no sign).
        content: what its elements are, if that is known.
        value: the SSA value; None until `Builder.value` is asked for it.
    """

    __slots__ = ("content", "dtype", "shape", "value")

    def __init__(
        self,
        shape: Sequence[Expr],
        dtype: torch.dtype,
        value: Any = None,
        content: Content | None = None,
    ) -> None:
        self.shape: Shape = tuple(shape)
        self.dtype = dtype
        self.value = value
        self.content = content

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        return f"Tensor([{sizes}], {self.dtype}, {self.content})"


def substitute(content: Content, indices: Sequence[Expr]) -> Content:
    """The contents of a view that reads at `indices`."""
    dims = dict(enumerate(indices))
    match content:
        case Affine(expr):
            return Affine(expr.substitute(dims=dims))
        case Predicate(terms):
            return Predicate(tuple(term.substitute(dims=dims) for term in terms))
        case _:
            return content


def simplified(content: Content, ranges: Ranges) -> Content:
    """`content` with what `ranges` decide: constants become splats, sure terms are dropped."""
    match content:
        case Affine(expr):
            expr = ranges.simplify(expr)
            return Affine(expr) if expr.constant is None else Splat(expr.constant)
        case Predicate(terms):
            return conjunction(terms, ranges)
        case _:
            return content


def conjunction(terms: Sequence[Expr], ranges: Ranges) -> Content:
    """The predicate that all `terms` are >= 0, duplicates and sure terms dropped."""
    kept: list[Expr] = []
    for term in map(ranges.simplify, terms):
        if ranges.is_nonnegative(-1 - term):
            return Splat(False)
        if not ranges.is_nonnegative(term) and term not in kept:
            kept.append(term)
    return Predicate(tuple(kept)) if kept else Splat(True)


def affine_of(content: Content | None) -> Expr | None:
    """The integer formula of contents, if they are one."""
    match content:
        case Affine(expr):
            return expr
        case Splat(int() as value) if not isinstance(value, bool):
            return Expr.const(value)
        case _:
            return None


def terms_of(content: Content | None) -> tuple[Expr, ...] | None:
    """The terms of boolean contents that are a conjunction; none for always true."""
    match content:
        case Predicate(terms):
            return terms
        case Splat(True):
            return ()
        case _:
            return None
