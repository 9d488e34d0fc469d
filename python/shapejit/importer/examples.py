# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Example inputs as torch.export needs them.

torch.export specialises a size of 0 or 1 to a constant, and takes two uses of one tensor object
for an alias. So examples are cloned, and those of size 0 or 1 in a dynamic dim are made larger:
existing elements are repeated (they are valid values, whatever they mean: ids, offsets, masks),
and an empty dim is filled with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sympy import nextprime, prevprime

from shapejit.errors import ErrorId
from shapejit.importer.dynamic_shapes import InputLeaf, LeafDim, RootDim
from shapejit.importer.sizes import LEAST_TRACED

_PREFERRED = (3, 5, 7)
"""Sizes for remade dims: distinct where possible, so that no two dims are equal by accident."""

_LEAST_PRIME = 5
"""Half of a smaller size is 0 or 1, which are no sizes like all others to torch."""


def traced_examples(leaves: Sequence[InputLeaf], *, prime: bool = False) -> list[Any]:
    """The leaves' values to trace with, in order. Examples outside their range are an error.

    Args:
        prime: whether to make dims that vary prime numbers near the example's, where their ranges
            have any: such sizes are multiples of nothing and equal to no other by chance.
    """
    values = _root_values(leaves)
    # A range that ends at 1 is traced at 2 all the same.
    traced = {name: max(value, LEAST_TRACED) for name, (_, value) in values.items()}
    _separate(traced, values, leaves)
    if prime:
        _make_prime(traced, {name: root for name, (root, _) in values.items()})
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


def _make_prime(traced: dict[str, int], roots: Mapping[str, RootDim]) -> None:
    """Gives each root the nearest prime number from `_LEAST_PRIME` on that no other has."""
    for name, root in roots.items():
        taken = {size for other, size in traced.items() if other != name}
        low = max(root.min, _LEAST_PRIME)
        above = nextprime(max(traced[name], low) - 1)
        while above in taken:
            above = nextprime(above)
        if root.max is None or above <= root.max:
            traced[name] = above
            continue
        below = prevprime(root.max + 1) if root.max >= _LEAST_PRIME else 0
        while below in taken and below > _LEAST_PRIME:
            below = prevprime(below)
        if below >= low and below not in taken:
            traced[name] = below


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
