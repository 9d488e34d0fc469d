# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Example inputs as torch.export needs them.

torch.export specialises a size of 0 or 1 to a constant, and takes two uses of one tensor object
for an alias. So examples are cloned, and those of size 0 or 1 in a dynamic dim are made larger:
existing elements are repeated (they are valid values, whatever they mean: ids, offsets, masks),
and an empty dim is filled with zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from sympy import nextprime, prevprime

from shapejit.errors import ErrorId
from shapejit.importer.dynamic_shapes import InputLeaf, LeafDim, RootDim
from shapejit.importer.sizes import LEAST_TRACED
from shapejit.symbolic import Expr

_PREFERRED = (3, 5, 7)
"""Sizes for remade dims: distinct where possible, so that no two dims are equal by accident."""

_LEAST_PRIME = 5
"""Half of a smaller size is 0 or 1, which are no sizes like all others to torch."""

_MOST_TRIED = 64
"""Primes above a size, and below it, among which one is looked for."""


def traced_examples(
    leaves: Sequence[InputLeaf], *, unlike: Mapping[str, Sequence[Expr]] | None = None
) -> list[Any]:
    """The leaves' values to trace with, in order. Examples outside their range are an error.

    Args:
        unlike: by the name of a dim, expressions of its size that should not be 0. If it is given,
            dims that vary are prime numbers near the example's, where their ranges have any: such
            sizes are multiples of nothing and equal to no other by chance.
    """
    values = _root_values(leaves)
    # A range that ends at 1 is traced at 2 all the same.
    traced = {name: max(value, LEAST_TRACED) for name, (_, value) in values.items()}
    _separate(traced, values, leaves)
    if unlike is not None:
        for name, (root, _) in values.items():
            taken = {size for other, size in traced.items() if other != name}
            traced[name] = _prime(root, traced[name], taken, unlike.get(name, ()))
    return [_remade(leaf, traced) for leaf in leaves]


def _root_values(leaves: Sequence[InputLeaf]) -> dict[str, tuple[RootDim, int]]:
    """Each root's value in the example call, checked against its range and its other uses."""
    found: dict[str, tuple[RootDim, int]] = {}
    first_use: dict[str, tuple[InputLeaf, int, int]] = {}
    for leaf in leaves:
        for index, dim in leaf.dims.items():
            size, root = int(leaf.value.shape[index]), dim.root
            value = _checked_root_value(leaf, index, dim, size)
            if root.name in found and found[root.name][1] != value:
                other, other_index, other_size = first_use[root.name]
                raise ErrorId.SJ_SHAPE_006.error(
                    dim=root.name,
                    size=size,
                    argument=leaf.name,
                    index=index,
                    other_size=other_size,
                    other_argument=other.name,
                    other_index=other_index,
                )
            found[root.name] = (root, value)
            first_use.setdefault(root.name, (leaf, index, size))
    return found


def _checked_root_value(leaf: InputLeaf, index: int, dim: LeafDim, size: int) -> int:
    value = dim.root_value(size)
    if value is None:
        below = dim.size((size - dim.offset) // dim.scale)
        raise ErrorId.SJ_SHAPE_004.error(
            index=index,
            argument=leaf.name,
            size=size,
            rule=dim.label,
            divisibility=_divisibility(dim),
            padded=below + dim.scale,
        )
    root = dim.root
    if value < root.min or (root.max is not None and value > root.max):
        raise ErrorId.SJ_EXPORT_007.error(
            dim=root.name, size=value, argument=leaf.name, index=index, range=root.range_text
        )
    return value


def _divisibility(dim: LeafDim) -> str:
    rest = dim.offset % dim.scale
    return f"a multiple of {dim.scale}" + (f" plus {rest}" if rest else "")


def _separate(
    traced: dict[str, int], values: dict[str, tuple[RootDim, int]], leaves: Sequence[InputLeaf]
) -> None:
    """Gives remade roots preferred sizes that no other root has, where their range allows."""
    for name, (root, value) in values.items():
        if traced[name] == value:
            continue
        taken = {size for other, size in traced.items() if other != name}
        taken |= {
            int(size)
            for leaf in leaves
            if isinstance(leaf.value, torch.Tensor)
            for index, size in enumerate(leaf.value.shape)
            if index not in leaf.dims
        }
        high = root.max
        allowed = (size for size in _PREFERRED if high is None or size <= high)
        traced[name] = next((size for size in allowed if size not in taken), traced[name])


def _prime(root: RootDim, size: int, taken: set[int], unlike: Sequence[Expr]) -> int:
    """A prime number in range from `_LEAST_PRIME` on: the next one, or the last one below.

    Args:
        size: what it is near to, and what there is if there is none.
        taken: sizes of other roots.
        unlike: expressions of the size that should not be 0, as far as this can be had.
    """
    low = max(root.min, _LEAST_PRIME)
    above = itertools.islice(_primes_above(max(size, low) - 1, root.max), _MOST_TRIED)
    below = itertools.islice(_primes_below(min(size, root.max or size), low), _MOST_TRIED)
    free = [number for number in (*above, *below) if number not in taken]
    general = (number for number in free if not any(_is_zero(expr, number) for expr in unlike))
    return next(general, free[0] if free else size)


def _primes_above(number: int, most: int | None) -> Iterator[int]:
    while most is None or number < most:
        number = int(nextprime(number))
        if most is None or number <= most:
            yield number


def _primes_below(number: int, least: int) -> Iterator[int]:
    while number > max(least, _LEAST_PRIME):
        number = int(prevprime(number))
        if number >= least:
            yield number


def _is_zero(expr: Expr, size: int) -> bool:
    """Whether an expression of one symbol is 0 at a size."""
    return expr.substitute(symbols=dict.fromkeys(expr.symbols(), size)).constant == 0


def _remade(leaf: InputLeaf, traced: dict[str, int]) -> Any:
    value = leaf.value
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach().clone()
    for index, dim in leaf.dims.items():
        tensor = _resized(tensor, index, dim.size(traced[dim.root.name]))
    return tensor


def _resized(tensor: torch.Tensor, index: int, size: int) -> torch.Tensor:
    old = tensor.shape[index]
    if old == size:
        return tensor
    if old == 0:
        return tensor.new_zeros((*tensor.shape[:index], size, *tensor.shape[index + 1 :]))
    return tensor.index_select(index, torch.arange(size, device=tensor.device) % old)
